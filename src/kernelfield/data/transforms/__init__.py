"""Transforms of samples, batches and splits.

The files:

- splits: ``split`` (divide, pad and normalise), ``group_split``, ``drop_samples``;
- batches: ``batch`` (normalisation and augmentation), ``augment_series``, ``log_mel``, ``mfcc``;
- series: ``series`` (of any length and at any times), ``series_checks``, ``fill_values``;
- images and clouds: ``resize``, ``rotate``, ``to_sequence``, ``clouds``.
"""
