"""A model before and after `adapt`: time, peak memory, and how far the outputs are apart."""

from __future__ import annotations

import ctypes
import gc
import statistics
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from relpos.adapters import Adapted, Report, adapt, restore
from relpos.errors import is_out_of_memory
from relpos.ops.locality import Window

from ..machine import status_mib

__all__ = ["Gain", "measure_gain"]

_PART = "of a larger model save the part with relative attention by itself, and check that"


@dataclass(frozen=True)
class Run:
    """Forward passes of one model.

    Args:
        seconds: one for each round.
        peak_mib: the memory that one took beyond the model's; None where the system does not say.
        output: of the last one.
    """

    seconds: list[float]
    peak_mib: float | None
    output: Tensor


@dataclass(frozen=True)
class Gain:
    """What became of a model.

    Args:
        report: of `adapt`.
        original: None if memory ran out.
        adapted: with full attention.
        windowed: with the window, if one was asked for.
    """

    report: Report
    original: Run | None
    adapted: Run
    windowed: Run | None

    def lines(self) -> list[str]:
        """The measurements in words; all times are of one round.

        It is the one in which the ratio of original to adapted is the median of all rounds, or,
        without an original, in which the time of the adapted model is.
        """
        n = self._median_round()
        found = [
            f"original  {_described(self.original, n)}",
            f"adapted   {_described(self.adapted, n)}",
        ]
        if self.original is not None:
            ratio = self.original.seconds[n] / self.adapted.seconds[n]
            apart = _distance(self.adapted.output, self.original.output)
            found.append(f"{ratio:.2f} times as fast; outputs differ by {apart}")
        if self.windowed is not None:
            apart = _distance(self.windowed.output, self.adapted.output)
            found.append(f"windowed  {_described(self.windowed, n)}")
            found.append(f"the window changes the outputs by {apart}")
        if self.original is not None or self.windowed is not None:
            found.append("(differences: root mean square, as a part of the outputs' own)")
        return found

    def _median_round(self) -> int:
        times = self.adapted.seconds
        if self.original is not None:
            times = [x / y for x, y in zip(self.original.seconds, times, strict=True)]
        # Of an even number the lower one, so that it is that of a round.
        return times.index(statistics.median_low(times))


def measure_gain(
    model: nn.Module, inputs: dict[str, Tensor], *, window: Window | None = None, rounds: int = 3
) -> Gain:
    """Run a model as it is and adapted, in turns; it is as it was afterwards.

    Args:
        model: of transformers.
        inputs: of one call.
        window: that an encoder is given as well; None: none.
        rounds: of one run each, after a first one that does not count.

    Raises:
        ValueError: if the model has nothing to adapt, takes no window, or not these inputs, or
            calls nothing that is adapted for them.
    """
    if window is not None:
        # Refused before anything is run.
        adapt(model, window=window)
        restore(model)
    report = adapt(model)
    restore(model)
    if not report:
        raise ValueError(f"adapt: a check must be of a model that is adapted, got\n{report}")
    ways: dict[str, dict[str, Any] | None] = {"original": None, "adapted": {}}
    if window is not None:
        ways["windowed"] = {"window": window}
    runs: dict[str, Run | None] = {}
    # What there is now stays: garbage is collected before each run, and need not look there.
    gc.collect()
    gc.freeze()
    try:
        for _ in range(rounds + 1):
            for name, options in ways.items():
                if name in runs and runs[name] is None:
                    continue
                runs[name] = _next(runs.get(name), _once(model, inputs, options))
    finally:
        gc.unfreeze()
    adapted = runs["adapted"]
    if adapted is None:
        raise MemoryError
    return Gain(report, runs["original"], adapted, runs.get("windowed"))


def _once(
    model: nn.Module, inputs: dict[str, Tensor], options: dict[str, Any] | None
) -> Run | None:
    """One forward pass; None if memory runs out."""
    called: list[nn.Module] = []
    hooks = []
    if options is not None:
        adapt(model, **options)
        hooks = [
            module.register_forward_pre_hook(lambda module, _: called.append(module))
            for module in model.modules()
            if isinstance(module, Adapted) and module.scheme
        ]
    try:
        before = _reset_peak()
        with torch.no_grad():
            # Some draw numbers even in evaluation.
            torch.manual_seed(0)
            start = time.perf_counter()
            outputs = model(**inputs)
            seconds = time.perf_counter() - start
        peak = None if before is None else max(0.0, status_mib("VmHWM") - before)
    except Exception as error:  # of whatever the model's own code raises
        if is_out_of_memory(error):
            return None
        said = textwrap.shorten(f"{type(error).__name__}: {error}", 200)
        raise ValueError(
            f"adapt: {type(model).__name__} must take random inputs, got {said}; {_PART}"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
        restore(model)
    if hooks and not called:
        raise ValueError(
            f"adapt: {type(model).__name__} must attend in adapted modules where it is given "
            f"{', '.join(inputs)} alone, got none; {_PART}"
        )
    return Run([seconds], peak, _first_tensor(outputs))


def _next(runs: Run | None, run: Run | None) -> Run | None:
    """The runs so far and one more; the first, which loads libraries, is not kept."""
    if runs is None or run is None:
        return run if run is None else Run([], None, run.output)
    return Run([*runs.seconds, *run.seconds], run.peak_mib, run.output)


def _first_tensor(outputs: Any) -> Tensor:
    """The first floating tensor with more than one axis that a model returns; of maps the last."""
    if isinstance(outputs, Tensor):
        outputs = (outputs,)
    values = outputs if isinstance(outputs, tuple) else outputs.values()
    for value in values:
        last = value[-1] if isinstance(value, (tuple, list)) and value else value
        if isinstance(last, Tensor) and last.is_floating_point() and last.ndim > 1:
            return last
    raise ValueError("adapt: a check must be of a model that returns tensors, got none")


def _described(run: Run | None, n: int) -> str:
    if run is None:
        return "asks for more memory than there is"
    memory = "" if run.peak_mib is None else f", {run.peak_mib:.0f} MiB"
    return f"{run.seconds[n]:.3g} s{memory}"


def _distance(x: Tensor, y: Tensor) -> str:
    """The distance of x from y as a part of y; of a model that predicts lengths, their shapes."""
    if x.shape != y.shape:
        return f"their shapes, {tuple(x.shape)} and {tuple(y.shape)}"
    return f"{float((x - y).double().norm() / y.double().norm()):.1e}"


def _reset_peak() -> float | None:
    """Forget the process's peak of memory so far; what it has now, in MiB, or None if unknown.

    What runs before have freed goes back to the system first: it would count as what there is now.
    """
    gc.collect()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):  # glibc's
        trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return status_mib("VmRSS")
    except OSError:
        return None
