"""What importing the library does to a process; run in a new process, so nothing of the library is imported here."""

from __future__ import annotations

from torch.optim import optimizer

__all__ = ["hooks_before_and_after_import"]


def hooks_before_and_after_import() -> tuple[int, int, int]:
    """Return the number of torch's global optimiser hooks before and after the import, and after two learned sizes."""
    hooks = optimizer._global_optimizer_post_hooks
    before = len(hooks)
    import kernelfield  # noqa: PLC0415

    after = len(hooks)
    for _ in range(2):
        kernelfield.FlexConv(1, 1, size=8)
    return before, after, len(hooks)
