"""Estimators that train a CCNN."""

from __future__ import annotations

from sklearn.base import ClassifierMixin, RegressorMixin

from ._partial import NetworkClassifier, NetworkRegressor

__all__ = ["CCNNClassifier", "CCNNRegressor"]


class CCNNClassifier(ClassifierMixin, NetworkClassifier):
    """A trained network as a classifier of series and images: by default a small :class:`kernelfield.CCNN`.

    Series may lie at irregular times: X is then a list of pairs (times, values) or of dicts of such pairs by channel.
    Channels may be observed at different times.

    For up to 5,000 samples, its probabilities are averaged with those of :class:`RandomKernelClassifier`, which
    generalises better from few samples. For up to 500 samples, three networks are trained, each without a third of the
    samples. Their predictions for these held-out samples determine the weight and the temperature of the networks in
    the average.

    Args:
        model: name of a network of :func:`kernelfield.list_models` that predicts one target per sample; by default
            ``ccnn_4_140`` with 2 blocks of 32 channels.
        start_from: pretrained network to fine-tune instead: a weight of ``list_models(pretrained=True)``, or the folder
            of a run. Its classifier is replaced. X must have its number of channels.
        field: field of the kernels, a class of :mod:`kernelfield.fields` or its name; by default that of the network.
        channels: width; by default that of the network.
        blocks: depth; by default that of the network.
        options: further arguments of the network.
        networks: number of networks, each trained without its share of the samples; 1 trains one network on all
            samples. The default is 3 for 12 to 500 samples, and 1 for other numbers, for series at irregular times, and
            if ``model``, ``start_from``, ``validation_fraction`` or ``random_kernels=0`` is given.
        random_kernels: number of random kernels; 0 for none. The default is 1,000 for up to 5,000 samples, and none for
            more samples or for series at irregular times.
        epochs: passes over the training samples; by default enough for 400 steps, at least 10.
        batch: samples per step.
        lr: learning rate.
        weight_decay: weight decay of all weights outside kernel networks and masks.
        dropout: dropout rate inside the blocks.
        label_smoothing: label smoothing of the cross-entropy.
        validation_fraction: share of the samples to hold out; the epoch with the best score on them is kept.
        patience: epochs without a better validation score after which training stops; None to train to the end.
        device: "auto", "cpu" or "cuda".
        verbose: 1 prints progress.
        random_state: seed.

    Attributes:
        networks_: the trained networks, which take the result of ``prepare(X)``.
        network_: the first network.
        random_kernels_: the fitted :class:`~kernelfield.models.RandomKernelNet`, or None.
        history_: one row of metrics per evaluated epoch of the last network.
        n_iter_: number of steps of each network.
        validation_score_: best score on the held-out samples; None if there are none.
        classes_: the classes.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(20, 1, 16))
    >>> y = np.array(["up", "down"] * 10)
    >>> X[y == "up"] += np.linspace(0, 4, 16)
    >>> clf = CCNNClassifier(channels=8, blocks=1, epochs=20, random_kernels=50).fit(X, y)
    >>> float(clf.score(X, y)) > 0.8
    True
    """


class CCNNRegressor(RegressorMixin, NetworkRegressor):
    """A trained network as a regressor on series and images, with the arguments of :class:`CCNNClassifier`.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(20, 1, 16))
    >>> CCNNRegressor(channels=4, blocks=1, epochs=1, random_kernels=50).fit(X, X.mean(axis=(1, 2))).predict(X).shape
    (20,)
    """
