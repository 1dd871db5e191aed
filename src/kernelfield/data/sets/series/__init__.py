"""Time series."""
