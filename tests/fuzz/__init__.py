"""Fuzzers: wrong arguments and damaged files end in an error that names them."""
