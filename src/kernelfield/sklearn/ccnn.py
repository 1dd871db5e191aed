"""Estimators that train a CCNN."""

from __future__ import annotations

from sklearn.base import ClassifierMixin, RegressorMixin

from ._partial import NetworkClassifier, NetworkRegressor

__all__ = ["CCNNClassifier", "CCNNRegressor"]


class CCNNClassifier(ClassifierMixin, NetworkClassifier):
    """A trained network as a classifier of series and images: by default a small :class:`kernelfield.CCNN`.

    Series may lie at irregular times: X is then a list of pairs (times, values) or of dicts of such pairs by channel.
    Channels observed at different times are taken as they are.

    Up to 5,000 samples, its probabilities are averaged with those of :class:`RandomKernelClassifier`, which generalises
    better from few samples. Up to 500 samples, three networks are trained, each without a third of the samples. Their
    predictions for the samples left out decide about the weight and the temperature of the networks in the average.

    Args:
        model: name of the network, any of :func:`kernelfield.list_models` that predicts one target per sample; a
            ``ccnn_4_140`` with 2 blocks of 32 channels by default.
        start_from: fine-tune a pretrained network instead: a weight of ``list_models(pretrained=True)``, or the folder
            of a run. Its classifier is replaced. X must have its channels.
        field: field of the kernels, a class of :mod:`kernelfield.fields` or its name; the network's own by default.
        channels: width; that of the network by default.
        blocks: depth; that of the network by default.
        options: further arguments of the network.
        networks: number of networks, each trained without its share of the samples; 1 for one network trained on all.
            By default 3 from 12 to 500 samples, and 1 for more, for series at irregular times, and if ``model``,
            ``start_from``, ``validation_fraction`` or ``random_kernels=0`` is given.
        random_kernels: number of random kernels; 0 for none. By default 1,000 up to 5,000 samples, and none beyond;
            none for series at irregular times.
        epochs: passes over the training samples; by default as many as make 400 steps, at least 10.
        batch: samples per step.
        lr: learning rate.
        weight_decay: weight decay of all weights outside kernel networks and masks.
        dropout: probability inside the blocks.
        label_smoothing: of the cross-entropy.
        validation_fraction: share of the samples that is held out; the epoch with the best score on it is kept.
        patience: epochs without improvement on it after which training stops; None to train to the end.
        device: "auto", "cpu" or "cuda".
        verbose: 1 prints progress.
        random_state: seed.

    Attributes:
        networks_: the trained networks; they take what ``prepare(X)`` returns.
        network_: the first of them.
        random_kernels_: the fitted :class:`~kernelfield.models.RandomKernelNet`, or None.
        history_: a row of metrics per evaluated epoch, of the last network.
        n_iter_: number of steps of each network.
        validation_score_: best score on the samples that were held out; None if there were none.
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
    """A trained network as a regressor on series and images; arguments and attributes as :class:`CCNNClassifier`.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(20, 1, 16))
    >>> CCNNRegressor(channels=4, blocks=1, epochs=1, random_kernels=50).fit(X, X.mean(axis=(1, 2))).predict(X).shape
    (20,)
    """
