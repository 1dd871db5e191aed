"""Data, one file per kind: made in code, or read from where its user says."""
