"""The command line, called as a user would."""

from __future__ import annotations

from typer.testing import CliRunner

from kernelfield.cli import app

__all__ = ["call"]


def call(*arguments: object, code: int = 0) -> str:
    """Return what a command prints; it must end with this exit code."""
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if result.exit_code != code and result.exception is not None:
        raise result.exception
    assert result.exit_code == code, result.output
    return result.output
