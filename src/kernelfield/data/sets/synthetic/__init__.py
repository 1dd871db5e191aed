"""Data generated in code."""
