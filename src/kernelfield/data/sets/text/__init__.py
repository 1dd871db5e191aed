"""Texts and other sequences of tokens."""
