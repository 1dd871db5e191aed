"""Settings drawn by Optuna from the validation scores of earlier trials."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .sweep import Choices

__all__ = ["Sampler"]


class Sampler:
    """Draws settings. The same trials and scores give the same draws in any process.

    Args:
        name: "tpe" or "random".
        over: settings to vary: lists of values and ranges.
        larger: whether larger scores are better.
        seed: seed of the draws.
    """

    def __init__(self, name: str, over: Choices, *, larger: bool, seed: int = 0) -> None:
        try:
            import optuna  # noqa: PLC0415
        except ImportError:
            raise ValueError(
                f"sampler {name!r} needs Optuna, which is not installed: pip install 'kernelfield[sweep]'"
            ) from None
        self._optuna, self.name, self.larger, self.seed = optuna, name, larger, seed
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._space: dict[str, Any] = {}
        for key, values in over.items():
            if isinstance(values, list):
                self._space[key] = optuna.distributions.CategoricalDistribution(values)
            elif values.integer:
                self._space[key] = optuna.distributions.IntDistribution(
                    int(values.low), int(values.high), log=values.log
                )
            else:
                self._space[key] = optuna.distributions.FloatDistribution(values.low, values.high, log=values.log)

    def draw(self, trials: Sequence[list[str]], scores: Sequence[float | None], count: int) -> list[list[str]]:
        """Return the settings of ``count`` further trials.

        Args:
            trials: settings of all trials so far.
            scores: scores of the trials, None for failed ones; may be shorter than ``trials``.
            count: number of trials to draw.
        """
        states = self._optuna.trial.TrialState
        study = self._optuna.create_study(
            sampler=self._sampler(len(trials)), direction="maximize" if self.larger else "minimize"
        )
        for point, score in zip(trials, scores, strict=False):
            study.add_trial(
                self._optuna.trial.create_trial(
                    params={key: self._value(key, value) for key, value in (s.split("=", 1) for s in point)},
                    distributions=self._space,
                    value=score,
                    state=states.COMPLETE if score is not None else states.FAIL,
                )
            )
        drawn = [study.ask(self._space) for _ in range(count)]
        return [[f"{key}={trial.params[key]}" for key in self._space] for trial in drawn]

    def _value(self, key: str, text: str) -> Any:
        kind = self._optuna.distributions
        space = self._space[key]
        if isinstance(space, kind.CategoricalDistribution):
            return text
        return int(text) if isinstance(space, kind.IntDistribution) else float(text)

    def _sampler(self, drawn: int) -> Any:
        """Return a sampler whose seed depends on the number of earlier trials, so a resumed sweep draws the same."""
        seed = self.seed + 1_000_003 * drawn
        samplers = self._optuna.samplers
        return (
            samplers.TPESampler(seed=seed, n_startup_trials=8) if self.name == "tpe" else samplers.RandomSampler(seed)
        )
