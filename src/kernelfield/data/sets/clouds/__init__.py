"""Point clouds and voxels."""
