"""Data of physics and astronomy on grids."""
