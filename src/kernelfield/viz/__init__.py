"""Figures and reports of trained networks: kernels, attention, subsets of groups, architectures.

- pages: ``report`` (one run), ``seeds_report``, ``comparison``; ``card`` draws the figure of an efficiency card;
- kernels and fields: ``kernels``, ``fits``, ``families``;
- attention: ``attention``, ``self_attention``, ``coattention``;
- groups and scales: ``groups``, ``wavelets``, ``scalograms``;
- others: ``architecture`` (learned sizes), ``clouds``;
- shared: ``figures`` (saving, figures of samples), ``observe`` (values inside a network).
"""
