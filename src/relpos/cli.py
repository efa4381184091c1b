"""The `relpos` command: its errors are one line and exit status 2, Ctrl-C is 130."""

from __future__ import annotations

import sys
import warnings

__all__ = ["main"]

# What the commands need beyond `import relpos`, as modules.
_EXTRAS = {
    "jinja2", "lightning", "matplotlib", "mido", "music21", "numpy", "pretty_midi", "rich",
    "safetensors", "tensorboard", "typer", "verovio",
}  # fmt: skip


def main() -> None:
    """Run a command and exit."""
    sys.exit(_run())


def _run() -> int:
    warnings.formatwarning = lambda message, *_: f"relpos: {message}\n"
    try:
        from .commands import run  # noqa: PLC0415

        return run(sys.argv[1:])
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRAS:
            raise
        return _fail(f'{error.name} is not installed; run: pip install "relpos[music]"')
    except ValueError as error:
        # Every check of ours is a ValueError with a line of its own.
        return _fail(str(error))
    except OSError as error:
        return _fail(f"{error.filename or 'cannot go on'}: {error.strerror or error}")
    except KeyboardInterrupt:
        print("relpos: stopped; the same command goes on from the last checkpoint", file=sys.stderr)
        return 130


def _fail(message: str) -> int:
    print(f"relpos: {' '.join(message.split())}", file=sys.stderr)
    return 2
