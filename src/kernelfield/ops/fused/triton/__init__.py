"""The fused operators as Triton kernels, and their launches."""
