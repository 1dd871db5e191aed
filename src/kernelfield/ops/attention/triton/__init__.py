"""Group attention as Triton kernels, and their launches."""
