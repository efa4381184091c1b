"""What the tests of all families need to know of one small model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from math import isqrt
from typing import Any

import torch
from torch import Tensor, nn

from ..unrounded import unrounded

__all__ = ["Case", "draw", "padded", "pixels", "tokens"]


def draw(model: nn.Module) -> None:
    """Draw every parameter so that scores, positions and values all matter (some start at zero)."""
    for name, parameter in model.named_parameters():
        norm = "norm" in name.lower() or "ln_" in name.lower()
        with torch.no_grad():
            if norm and name.endswith("weight"):
                parameter.uniform_(0.5, 1.5)
            elif parameter.ndim > 1:
                fan = parameter[0].numel() if "embed" not in name.lower() else 2
                parameter.normal_(std=1.5 / max(fan, 1) ** 0.5)
            else:
                parameter.normal_(std=0.2)


@dataclass(frozen=True)
class Case:
    """A small model whose positions matter, and what to call it with.

    Args:
        name: of the test.
        build: the model, without any dropout, in float32; its parameters are drawn anew.
        inputs: `inputs(batch, length, padding)`: the arguments of a call, with padding "none",
            "left" or "right"; labels where the model has a loss.
        positions: what the names of the parameters of positions contain.
        cancelling: what the names of parameters contain whose gradients are sums that cancel, known
            to the original in float32 no better than it errs.
        reloads: whether the original, saved and loaded, gives the same bits.
        left: what the report says of every module that is left; empty: none is.
        output: the field of the output that is compared.
        real: of that output and the inputs, the entries of real tokens.
        lengths: of calls, none of which divides another.
        paddings: that the model takes.
        adapted: how many modules are adapted.
        attention: the name of a module that is adapted.
        long: a length at which nothing but a matrix of all pairs has `long * long` entries.
        build_long: the model that is called at that length, where one takes images of one size.
        first: whether it is the first of its formula, on which costly tests run.
        pretrained: whether it is a `PreTrainedModel` of transformers.
        generates: whether it has `generate`.
        attentions: the field of the output that holds attention weights; None: it has none.
        linears: what LoRA wraps.
        without: of "half", "fp16", "autocast", "pickle" and "static cache", where the original
            raises or gives NaN.
        draw: gives every parameter a size that matters.
        dropout: sets the dropout of the module at `attention`; None: it has none.
        local: whether the original, too, has no entry for each pair at that length.
        without_relative: takes the positions out of an adapted model, if they are no parameters.
        traced: what a call is given besides, where one without it cannot be traced.
    """

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[int, int, str], dict[str, Any]]
    positions: tuple[str, ...]
    adapted: int
    attention: str
    cancelling: tuple[str, ...] = ()
    reloads: bool = True
    left: str = ""
    output: str = "last_hidden_state"
    real: Callable[[Tensor, dict[str, Any]], Tensor] | None = None
    lengths: tuple[int, ...] = (33, 20)
    paddings: tuple[str, ...] = ("none", "left", "right")
    long: int = 1024
    build_long: Callable[[], nn.Module] | None = None
    first: bool = True
    pretrained: bool = True
    generates: bool = False
    attentions: str | None = "attentions"
    linears: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    draw: Callable[[nn.Module], None] = draw
    dropout: Callable[[Any, float], None] | None = None
    local: bool = False
    without_relative: Callable[[Any], None] | None = None
    traced: Mapping[str, Any] = field(default_factory=dict)

    def model(self, dtype: torch.dtype = torch.float32, *, long: bool = False) -> nn.Module:
        """The model with drawn parameters, not training; `long`: that of the length `long`."""
        torch.manual_seed(0)
        model = self.build_long() if long and self.build_long is not None else self.build()
        self.draw(model)
        return model.to(dtype).eval()

    def call(self, model: nn.Module, inputs: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
        """The output at real tokens, and the loss if the model has one."""
        with self.unrounded(model):
            outputs = model(**inputs)
        output = self.of_tokens(getattr(outputs, self.output), inputs)
        return output, getattr(outputs, "loss", None)

    def of_tokens(self, output: Tensor, inputs: dict[str, Any]) -> Tensor:
        """What an output has of real tokens."""
        if self.real is not None:
            return self.real(output, inputs)
        if (mask := inputs.get("attention_mask")) is not None and output.shape[:2] == mask.shape:
            return output[mask.bool()]
        return output

    def unrounded(self, model: nn.Module) -> AbstractContextManager[object]:
        """What keeps a model in float64 from rounding to float32 on its way, as some would."""
        double = next(model.parameters()).dtype == torch.float64
        return unrounded() if double else nullcontext()

    def with_dtype(self, inputs: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
        """The inputs with their floating tensors in a dtype."""
        return {
            name: x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x
            for name, x in inputs.items()
        }


def padded(batch: int, length: int, padding: str) -> Tensor | None:
    """`(b, length)`, 1 for tokens; each sequence has a length of its own. None without padding."""
    if padding == "none":
        return None
    counts = torch.tensor([length - 1 - (7 * n) % (length // 2) for n in range(batch)])
    mask = torch.arange(length) < counts[:, None]
    return (mask.flip(1) if padding == "left" else mask).long()


def tokens(batch: int, length: int, padding: str, *, vocabulary: int = 50) -> dict[str, Any]:
    """`input_ids` and, with padding, `attention_mask`."""
    ids = torch.randint(3, vocabulary, (batch, length))
    mask = padded(batch, length, padding)
    return {"input_ids": ids} if mask is None else {"input_ids": ids, "attention_mask": mask}


def pixels(batch: int, length: int, *, channels: int = 3) -> Tensor:
    """Images of `length` pixels, as nearly square as it divides."""
    height = max(n for n in range(1, isqrt(length) + 1) if length % n == 0)
    return torch.randn(batch, channels, height, length // height)
