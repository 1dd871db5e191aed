"""Readers of files with a limit on memory; none of them runs code from a file.

Every reader takes regular files only, refuses files that would unpack to more than :func:`~.files.max_bytes`, and
raises a ValueError that names a damaged file.
"""
