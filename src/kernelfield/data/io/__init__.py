"""Reading files: archives, pickles and meshes, without executing code from them."""
