"""Adapted models in time: one layer and its attention, beside the best of the originals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from typing import cast as typed

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map
from transformers import PreTrainedModel

from relpos.adapters import adapt, register_attn_implementation

from ..workloads.adapted import AdaptedModel, cast, draw, on_device
from .passes import BOTH, FORWARD
from .timing import Clock, interleaved, percentiles, ratios, wall_clock

__all__ = ["ADAPTED", "choose", "implementations", "measure_time", "use_relpos"]

ADAPTED = "relpos"

# What modules of timm, NeMo and MONAI go by, whether they attend by torch's SDPA.
_SWITCHES = ("fused_attn", "use_pytorch_sdpa", "use_flash_attention")


def implementations(model: nn.Module) -> list[str]:
    """What a model's attention can be computed with; flex has no backward on a CPU."""
    if not isinstance(model, PreTrainedModel):
        switches = any(hasattr(part, name) for part in model.modules() for name in _SWITCHES)
        return ["eager", "sdpa"] if switches else ["eager"]
    if not model._can_set_attn_implementation():
        # It has one way.
        return [model.config._attn_implementation or "eager"]
    return ["eager", "sdpa"] if model._supports_sdpa else ["eager"]


def choose(model: nn.Module, implementation: str) -> None:
    """Have a model attend by one of its implementations."""
    if len(implementations(model)) == 1:
        return
    if isinstance(model, PreTrainedModel):
        model.set_attn_implementation(implementation)
        return
    for part in model.modules():
        for name in _SWITCHES:
            if hasattr(part, name):
                setattr(part, name, implementation == "sdpa")


def use_relpos(model: AdaptedModel, built: nn.Module) -> None:
    """Adapt a built model, or have it attend by relpos if it has no relative positions."""
    if model.family:
        adapt(built)
        return
    register_attn_implementation()
    typed(PreTrainedModel, built).set_attn_implementation("relpos")


@dataclass(frozen=True)
class _Call:
    """A module and what its model calls it with."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def output(self) -> Tensor:
        return _first(self.module(*self.args, **self.kwargs))

    def forward(self) -> None:
        with torch.no_grad():
            self.output()

    def both(self) -> None:
        given = tree_leaves((self.args, self.kwargs))
        leaves = [x for x in given if isinstance(x, Tensor) and x.requires_grad]
        leaves += list(self.module.parameters())
        output = self.output()
        torch.autograd.grad(output, leaves, torch.ones_like(output), allow_unused=True)


def _captured(model: nn.Module, inputs: dict[str, Any], name: str) -> _Call:
    """The call of a submodule in a forward pass of its model, its first tensor a leaf."""
    module, calls = model.get_submodule(name), []
    hook = module.register_forward_pre_hook(
        lambda _, args, kwargs: calls.append((args, kwargs)), with_kwargs=True
    )
    with torch.no_grad():
        model(**inputs)
    hook.remove()
    args, kwargs = calls[0]
    hidden = _first(args or tuple(kwargs.values()))
    leaf = hidden.detach().clone().requires_grad_()
    # It may be given more than once: as queries, keys and values.
    return _Call(module, *tree_map(lambda x: leaf if x is hidden else x, (args, kwargs)))


def _first(x: Tensor | tuple[Any, ...]) -> Tensor:
    """The first tensor of what a module takes or returns, which may be tuples in tuples."""
    return _first(x[0]) if isinstance(x, tuple) else x


def _contenders(model: AdaptedModel, dtype: torch.dtype, device: str) -> dict[str, nn.Module]:
    """The model by every implementation that it names, and adapted, all with the same numbers."""
    models = {}
    for name in model.implementations or implementations(model.build(2)):
        models[name] = draw(model.build(2)).to(device, dtype)
        choose(models[name], name)
    models[ADAPTED] = draw(model.build(2)).to(device, dtype)
    use_relpos(model, models[ADAPTED])
    return models


def measure_time(
    model: AdaptedModel, *, seconds: float = 2.0, dtype: torch.dtype = torch.float32,
    device: str = "cpu", clock: Clock = wall_clock,
) -> list[dict]:  # fmt: skip
    """A row for each length, part and pass: seconds of each, and how many times as fast."""
    models = _contenders(model, dtype, device)
    rows = []
    for length in model.lengths:
        inputs = on_device(cast(model.inputs(length), dtype), device)
        for part in ("attention", "layer"):
            name = f"{model.layer}.{model.attention}" if part == "attention" else model.layer
            calls = {key: _captured(each, inputs, name) for key, each in models.items()}
            error = _error(calls, inputs.get("attention_mask"))
            for label in (FORWARD, BOTH):
                runs = {
                    key: call.forward if label == FORWARD else call.both
                    for key, call in calls.items()
                }
                row = _row(model, length, part, label, runs, seconds, clock)
                rows.append(row | {"error": error})
                _print(rows[-1])
    return rows


def _error(calls: dict[str, _Call], tokens: Tensor | None) -> float:
    """The largest difference of the adapted output at tokens, relative to the largest entry."""
    with torch.no_grad():
        outputs = {name: call.output() for name, call in calls.items()}
    if tokens is not None and tokens.shape == outputs[ADAPTED].shape[:2]:
        outputs = {name: output[tokens.bool()] for name, output in outputs.items()}
    ours = outputs.pop(ADAPTED)
    theirs = next(iter(outputs.values()))
    return float((ours - theirs).abs().max() / theirs.abs().max())


def _row(
    model: AdaptedModel, length: int, part: str, label: str,
    runs: dict[str, Callable[[], None]], seconds: float, clock: Clock,
) -> dict:  # fmt: skip
    rounds = interleaved(runs, leading=(ADAPTED,), seconds=seconds, clock=clock)
    taken = {
        name: percentiles([timings[name] for timings in rounds if name in timings]) for name in runs
    }
    best = min((name for name in runs if name != ADAPTED), key=lambda name: taken[name]["median"])
    return {
        "model": model.name,
        "unit": model.unit,
        "length": length,
        "part": part,
        "pass": label,
        "rounds": len(rounds),
        "seconds": taken,
        "best": best,
        "speedup": percentiles(ratios(rounds, best, ADAPTED)),
    }


def _print(row: dict) -> None:
    taken = row["seconds"]
    print(
        f"{row['model']:24} {row['length']:6} {row['part']:10} {row['pass']:17}"
        f"{row['speedup']['median']:6.2f} x as fast as {row['best']:6}"
        f"{1e3 * taken[row['best']]['median']:9.1f} -> {1e3 * taken[ADAPTED]['median']:8.1f} ms"
        f"  error {row['error']:.1e}",
        flush=True,
    )
