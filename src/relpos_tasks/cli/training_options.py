"""The options that `compare` and `train` of every task have in common.

Whatever is slow to import is imported inside the method that needs it.
"""

# ruff: noqa: PLC0415
from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from ..training.limits import MAX_SEED, MAX_STEPS
from .output import loading

if TYPE_CHECKING:
    from ..training.comparison import Comparison
    from ..training.devices import Devices

__all__ = ["PositionsOption", "SeedsOption", "TrainingOptions", "with_training_options"]

PositionsOption = Annotated[
    str | None,
    typer.Option(
        help="Which position schemes to compare, with commas: names of --position of `train`, "
        "or all. By default those of the preset.",
        show_default=False,
    ),
]
SeedsOption = Annotated[
    int,
    typer.Option(
        min=1, max=100, help="Train each scheme so many times, with seeds that rise from --seed."
    ),
]

# Of a folder's name, on most systems.
_MAX_NAME_BYTES = 255


@dataclass(frozen=True)
class TrainingOptions:
    """For how long to train, where it goes, and on which devices: a field, an option.

    Each task has a subclass with options of its own.
    """

    steps: Annotated[
        int | None,
        typer.Option(
            min=1, max=MAX_STEPS, help="Training steps of each model, in place of the preset's."
        ),
    ] = None
    batch: Annotated[
        int | None,
        typer.Option(min=1, help="Sequences per step over all devices, in place of the preset's."),
    ] = None
    seed: Annotated[
        int,
        typer.Option(min=0, max=MAX_SEED, help="Of weights, data order, dropout and sampling."),
    ] = 0
    name: Annotated[
        str | None,
        typer.Option(
            help="Of the run: its folder is RUNS/NAME. Made from the data and the preset by "
            "default. A run of this name with the same settings is taken up where it was stopped.",
        ),
    ] = None
    runs: Annotated[Path, typer.Option(help="The folder of all runs.")] = Path("runs")
    accelerator: Annotated[str, typer.Option(help="auto, cpu, gpu (or cuda), mps, tpu.")] = "auto"
    devices: Annotated[
        str, typer.Option(help="How many (2), which (0,1), or all (-1); auto: as Lightning does.")
    ] = "1"
    precision: Annotated[
        str, typer.Option(help="32-true, bf16-mixed, 16-mixed, 64-true, as Lightning names them.")
    ] = "32-true"

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        try:
            str(self.runs).encode()
        except UnicodeEncodeError:
            # The logs' writers take no other names.
            raise ValueError(f"--runs: must be valid UTF-8, got {str(self.runs)!r}") from None
        return self.runs / self._run_name()

    @property
    def default_name(self) -> str:
        """Of the run, where none is given."""
        raise NotImplementedError

    def where(self) -> Devices:
        """The devices to train on."""
        from ..training.devices import Devices

        return Devices(self.accelerator, self.devices, self.precision)

    def comparison(
        self,
        given: str | None,
        *,
        known: Iterable[str],
        seeds: int,
        compared: Sequence[str],
        numbered: tuple[str, str] | None = None,
    ) -> Comparison:
        """What `compare` is to train.

        Args:
            given: names of schemes with commas, or `"all"`; None for those of the preset.
            known: the names that `"all"` stands for.
            seeds: how many of each.
            compared: the schemes of the preset.
            numbered: a regular expression for further names, and the words that describe them.
        """
        from ..training.comparison import Comparison

        known = list(known)
        if given is None:
            given = ",".join(compared)
        names = known if given == "all" else [name.strip() for name in given.split(",")]
        pattern, words = ("(?!)", ()) if numbered is None else (numbered[0], numbered[1:])
        if wrong := [n for n in names if n not in known and not re.fullmatch(pattern, n)]:
            raise ValueError(
                f"--positions: must be names among {', '.join((*known, *words))} with commas, "
                f"or all, got {wrong[0]!r}"
            )
        if len(set(names)) < len(names):
            raise ValueError(f"--positions: must name each scheme once, got {given!r}")
        return Comparison(names, seed=self.seed, seeds=seeds)

    def _run_name(self) -> str:
        name = self.name
        if name is None:
            return self.default_name
        if name in ("", ".", "..") or Path(name).name != name:
            raise ValueError(
                "--name: must be a folder's name without slashes, and not '.' or '..', "
                f"got {name!r}"
            )
        # What systems refuse, or terminals do not show.
        if not name.isprintable() or len(os.fsencode(name)) > _MAX_NAME_BYTES:
            raise ValueError(
                f"--name: must be printable and at most {_MAX_NAME_BYTES} bytes long, got {name!r}"
            )
        return name


def with_training_options(
    options: type[TrainingOptions],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Makes a command for Typer in which each field of a task's options is an option.

    Args:
        options: of the task; the command takes them as `options`, beside options of its own.
    """
    hints = get_type_hints(options, include_extras=True)
    shared = [
        Parameter(
            field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
        for field in fields(options)
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        parameters = signature(command, eval_str=True).parameters.values()
        own = [parameter for parameter in parameters if parameter.name != "options"]

        @wraps(command)
        def run(**given: Any) -> None:
            taken = {parameter.name: given.pop(parameter.name) for parameter in shared}
            made = options(**taken)
            with loading():
                import lightning  # noqa: F401
            command(**given, options=made)

        # Typer reads both.
        run.__signature__ = Signature([*own, *shared])  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in (*own, *shared)}
        return run

    return decorate
