"""Data sets, one folder per kind of data and one file per set."""
