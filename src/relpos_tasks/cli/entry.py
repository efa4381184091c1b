"""The `relpos` command: errors are one line and status 2, Ctrl-C is 130 and SIGTERM 143."""

from __future__ import annotations

import io
import os
import sys
import warnings

from ..stopping import stop_on_signals

__all__ = ["main"]

# What the commands need beyond `import relpos`, as modules, by the extra that brings them. Each
# task's extra brings `train` too.
_EXTRAS = {
    "transformers": {"transformers"},
    "music": {"mido", "music21", "pretty_midi", "symusic", "verovio"},
    "translation": {"langcodes", "sacrebleu", "tokenizers"},
    "vision": {"PIL", "sklearn"},
    "train": {
        "jinja2", "lightning", "matplotlib", "numpy", "rich", "safetensors", "tensorboard", "typer",
    },
}  # fmt: skip


def main() -> None:
    """Run a command and exit."""
    # OpenMP's threads spin while they wait for each other, and beside another busy process for a
    # whole time slice: small steps then take several times as long. A short spin costs little where
    # nothing else runs (benchmarks/busy.py). OpenMP reads this when torch is imported, so that it
    # is too late for `python -m relpos`, which has imported relpos by then.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
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
        if (package := _missing(error)) is None:
            raise
        extra = _extra_of(package)
        return _fail(f'{package} is not installed; run: pip install "relpos[{extra}]"')
    except ValueError as error:
        # Every check of ours is a ValueError with a line of its own.
        return _fail(str(error))
    except (MemoryError, RuntimeError) as error:
        from relpos.errors import is_out_of_memory  # noqa: PLC0415

        if not is_out_of_memory(error):
            raise
        return _fail("not enough memory; ask for less at once")
    except OSError as error:
        return _fail(f"{error.filename or 'cannot go on'}: {error.strerror or error}")


def _stopped() -> str:
    if os.environ.get("LOCAL_RANK", "0") != "0":
        # The first process says it.
        return ""
    goes_on = sys.argv[2:3] in (["compare"], ["train"])
    way_out = "; the same command goes on from the last checkpoint, if there is one"
    return f"relpos: stopped{way_out if goes_on else ''}"


def _missing(error: ModuleNotFoundError) -> str | None:
    """The package of an extra that is missing; None where it is something else."""
    packages = set().union(*_EXTRAS.values())
    if error.name:
        package = error.name.partition(".")[0]
        return package if package in packages else None
    # Lightning words its own: "Neither `tensorboard` nor ... is available".
    return next((package for package in sorted(packages) if package in str(error)), None)


def _extra_of(package: str) -> str:
    """The extra to install: that of the task which was asked for, or the one with the package."""
    task = next(iter(sys.argv[1:]), "")
    return task if task in _EXTRAS else next(e for e, has in _EXTRAS.items() if package in has)


def _fail(message: str) -> int:
    print(f"relpos: {' '.join(message.split())}", file=sys.stderr)
    return 2
