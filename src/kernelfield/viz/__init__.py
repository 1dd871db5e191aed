"""Figures and reports of trained networks: kernels, attention, subsets of groups, architectures."""
