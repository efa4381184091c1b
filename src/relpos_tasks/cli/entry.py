"""The `relpos` command: errors are one line and status 2, Ctrl-C is 130 and SIGTERM 143."""

from __future__ import annotations

import io
import os
import sys
import warnings

from ..stopping import stop_on_signals

__all__ = ["main"]

# What the commands need beyond `import relpos`, as modules.
_EXTRAS = {
    "jinja2", "lightning", "matplotlib", "mido", "music21", "numpy", "pretty_midi", "rich",
    "safetensors", "tensorboard", "typer", "verovio",
}  # fmt: skip


def main() -> None:
    """Run a command and exit."""
    stop_on_signals(_stopped)
    sys.exit(_run())


def _run() -> int:
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A path may have bytes that are no text; stderr is lenient by itself.
        sys.stdout.reconfigure(errors="backslashreplace")
    warnings.formatwarning = lambda message, *_: f"relpos: {message}\n"
    try:
        from .app import run  # noqa: PLC0415

        return run(sys.argv[1:])
    except ModuleNotFoundError as error:
        if (extra := _extra(error)) is None:
            raise
        return _fail(f'{extra} is not installed; run: pip install "relpos[music]"')
    except ValueError as error:
        # Every check of ours is a ValueError with a line of its own.
        return _fail(str(error))
    except MemoryError:
        return _fail("not enough memory; ask for less at once")
    except OSError as error:
        return _fail(f"{error.filename or 'cannot go on'}: {error.strerror or error}")


def _stopped() -> str:
    if os.environ.get("LOCAL_RANK", "0") != "0":
        # The first process says it.
        return ""
    goes_on = sys.argv[1:3] in (["music", "compare"], ["music", "train"])
    way_out = "; the same command goes on from the last checkpoint" if goes_on else ""
    return f"relpos: stopped{way_out}"


def _extra(error: ModuleNotFoundError) -> str | None:
    """The package of the extra that is missing; None where it is something else."""
    if error.name:
        package = error.name.partition(".")[0]
        return package if package in _EXTRAS else None
    # Lightning words its own: "Neither `tensorboard` nor ... is available".
    return next((package for package in sorted(_EXTRAS) if package in str(error)), None)


def _fail(message: str) -> int:
    print(f"relpos: {' '.join(message.split())}", file=sys.stderr)
    return 2
