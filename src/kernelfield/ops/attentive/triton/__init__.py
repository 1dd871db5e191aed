"""Attentive group convolutions as Triton kernels, and their launches."""
