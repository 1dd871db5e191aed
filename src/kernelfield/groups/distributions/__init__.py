"""Distributions over a group, fixed or learned (chapter 11, section 3.4)."""
