"""``python -m kernelfield`` and the ``kernelfield`` command."""

from __future__ import annotations

import sys

from ._memory import keep_freed_memory


def main() -> None:
    """Run the command line, or exit with the name of the missing package."""
    try:
        from .cli import app  # noqa: PLC0415
    except ModuleNotFoundError as error:
        sys.exit(f"kernelfield: the command needs {error.name}: pip install 'kernelfield[train]'")
    keep_freed_memory()
    app()


if __name__ == "__main__":
    main()
