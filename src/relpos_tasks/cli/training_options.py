"""The options that `relpos music compare` and `relpos music train` have in common.

Whatever is slow to import is imported inside the method that needs it.
"""

# ruff: noqa: PLC0415
from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from ..training.limits import MAX_SEED, MAX_STEPS
from .options import DataOption, multiple_of_8

if TYPE_CHECKING:
    from ..music.settings import MusicSettings
    from ..training.devices import Devices

__all__ = ["Preset", "TrainingOptions", "with_training_options"]

# Of a folder's name, on most systems.
_MAX_NAME_BYTES = 255


class Preset(StrEnum):
    """Sizes and budgets."""

    default = "default"
    tiny = "tiny"
    paper = "paper"


@dataclass(frozen=True)
class TrainingOptions:
    """What to train on, for how long, where it goes, and on which devices: a field, an option."""

    data: DataOption = None
    preset: Annotated[
        Preset,
        typer.Option(
            help="Sizes and budget: default (two CPU cores, minutes), tiny (the whole job in a "
            "minute), paper (the sizes of Huang et al. 2018, for a GPU).",
        ),
    ] = Preset.default
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
    window: Annotated[
        int | None,
        typer.Option(
            min=8,
            callback=multiple_of_8,
            help="Tokens in a training sequence, a multiple of 8, in place of the preset's. "
            "Four tokens are a sixteenth.",
        ),
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

    def settings(self) -> MusicSettings:
        """The preset's sizes and budget, with what was given in their place."""
        from ..music.settings import preset

        return preset(
            self.preset, steps=self.steps, batch=self.batch, window=self.window, seed=self.seed
        )

    def where(self) -> Devices:
        """The devices to train on."""
        from ..training.devices import Devices

        return Devices(self.accelerator, self.devices, self.precision)

    def _run_name(self) -> str:
        name = self.name
        if name is None:
            pieces = "chorales" if self.data is None else "literature"
            return pieces if self.preset is Preset.default else f"{pieces}-{self.preset}"
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


def with_training_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command for Typer with each field of `TrainingOptions` as an option.

    Args:
        command: takes them as `options`, beside options of its own.
    """
    hints = get_type_hints(TrainingOptions, include_extras=True)
    shared = [
        Parameter(
            field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
        for field in fields(TrainingOptions)
    ]
    parameters = signature(command, eval_str=True).parameters.values()
    own = [parameter for parameter in parameters if parameter.name != "options"]

    @wraps(command)
    def run(**given: Any) -> None:
        taken = {parameter.name: given.pop(parameter.name) for parameter in shared}
        command(**given, options=TrainingOptions(**taken))

    # Typer reads both.
    run.__signature__ = Signature([*own, *shared])  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in (*own, *shared)}
    return run
