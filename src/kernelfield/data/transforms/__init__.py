"""Transforms of samples, batches and splits."""
