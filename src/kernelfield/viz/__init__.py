"""Figures of trained networks: kernels, attention, subsets of groups, architectures, reports."""
