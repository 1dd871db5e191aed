"""Reading files: bounded in memory, and without running code that a file names.

Every reader takes regular files only, refuses what would unpack to more than :func:`~.files.max_bytes`, and raises a
ValueError that names the file if it is damaged.
"""
