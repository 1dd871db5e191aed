"""Kernel networks as Triton kernels, and their launches."""
