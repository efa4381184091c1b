"""Where the heads of a trained decoder look: their weights on one sequence, and by offset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure, SubFigure
from numpy import ndarray
from torch import Tensor, nn

from ..layers import MultiheadAttention
from ..offsets import offsets
from ..shear import relative_to_absolute
from .style import INK, WIDTH, integer_axis, ramp, styled, subfigures

__all__ = ["attention_figure", "decoder_weights", "mean_by_offset", "mean_distance"]

# Heads beside each other.
_COLUMNS = 4


def decoder_weights(model: nn.Module, tokens: Int64[Tensor, "i"]) -> Float[Tensor, "layer h i i"]:
    """The attention weights of every layer and head while a model reads one sequence.

    Args:
        model: called on a batch of one sequence; its layers are `MultiheadAttention`; dropout is
            left out.
        tokens: what it reads.

    >>> from relpos.layers import DecoderBlock
    >>> block = DecoderBlock(MultiheadAttention(8, 2))
    >>> decoder_weights(nn.Sequential(nn.Embedding(7, 8), block), torch.arange(5)).shape
    torch.Size([1, 2, 5, 5])
    """
    found: list[Tensor] = []

    def record(layer: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> None:
        options = options | {"need_weights": True, "average_attn_weights": False}
        found.append(layer.forward(*inputs, **options)[1][0])

    layers = [one for one in model.modules() if isinstance(one, MultiheadAttention)]
    hooks = [layer.register_forward_pre_hook(record, with_kwargs=True) for layer in layers]
    was_training = model.training
    try:
        with torch.no_grad():
            model.eval()(tokens[None])
    finally:
        model.train(was_training)
        for hook in hooks:
            hook.remove()
    return torch.stack(found)


def mean_by_offset(weights: Float[Tensor, "*batch i i"]) -> Float[Tensor, "*batch w"]:
    """The mean weight at each offset `-(i-1)..i-1`, over the queries that have a key there.

    Args:
        weights: of as many keys as queries.

    >>> mean_by_offset(torch.tensor([[1.0, 0.0], [0.25, 0.75]]))
    tensor([0.2500, 0.8750, 0.0000])
    """
    size = weights.shape[-1]
    by_offset = weights.new_zeros(*weights.shape[:-1], 2 * size - 1)
    # The shear's adjoint: a copy into the same view of zeros.
    relative_to_absolute(by_offset).copy_(weights)
    at = torch.arange(1 - size, size, device=weights.device)
    return by_offset.sum(-2) / (size - at.abs())


def mean_distance(weights: Float[Tensor, "*batch i i"]) -> Float[Tensor, "*batch"]:
    """How far a head looks: the mean over the queries of `sum_j weight_ij |j - i|`, in tokens.

    Args:
        weights: of as many keys as queries.

    >>> mean_distance(torch.tensor([[1.0, 0.0], [0.5, 0.5]]))
    tensor(0.2500)
    """
    size = weights.shape[-1]
    far = offsets(size, size, device=weights.device).abs().to(weights.dtype)
    return (weights * far).sum(-1).mean(-1)


def attention_figure(
    weights: Float[Tensor, "layer h i i"],
    *,
    title: str = "",
    layers: Sequence[int] | None = None,
) -> Figure:
    """The weights of causal heads as maps, one line of maps per layer, and their mean by offset.

    Args:
        weights: what `decoder_weights` returned.
        title: stands above, e.g. the piece's name.
        layers: the numbers by which the layers are called; None counts from 1.

    Raises:
        ValueError: if there is no layer, or `layers` are not as many.

    >>> figure = attention_figure(torch.eye(5).expand(2, 4, 5, 5))
    """
    numbers = range(1, len(weights) + 1) if layers is None else layers
    if not len(weights) or len(numbers) != len(weights):
        raise ValueError(
            "attention_figure: layers must be one number for each of at least one layer, got "
            f"{len(numbers)} for {len(weights)}"
        )
    heads = weights.shape[1]
    columns = min(heads, 2 if heads in (2, 4) else _COLUMNS)
    lines = -(-heads // columns)
    map_height = lines * {1: 3.4, 2: 2.5, 3: 1.9}.get(columns, 1.55) + 0.6
    heights = [part for _ in numbers for part in (map_height, 2.5)]
    with styled():
        figure = Figure(figsize=(WIDTH, sum(heights)), layout="constrained")
        parts = subfigures(figure, heights)
        for n, number in enumerate(numbers):
            above = f"Layer {number}" + (f": {title}" if title else "")
            _maps_part(parts[2 * n], above, weights[n], (lines, columns))
            _mean_by_offset_part(parts[2 * n + 1], weights[n])
    return figure


def _maps_part(part: SubFigure, title: str, weights: Tensor, shape: tuple[int, int]) -> None:
    part.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK)
    panels = list(part.subplots(*shape, squeeze=False).flat)
    ahead = np.triu(np.ones(weights.shape[1:], bool), 1)
    # Small weights are most of them: the root lets them be seen.
    norm = PowerNorm(0.5, vmin=0, vmax=max(float(weights.max()), 1e-12))
    for head, axes in enumerate(panels):
        if head >= len(weights):
            axes.set_visible(False)
            continue
        shown = np.ma.masked_where(ahead, _numbers(weights[head]))
        axes.set_facecolor("#dfe2e7")
        axes.grid(visible=False)
        axes.imshow(shown, cmap="magma_r", norm=norm, interpolation="none")
        axes.set_title(f"head {head + 1}", fontsize=9.5)
        axes.tick_params(labelsize=9)
        integer_axis(axes.xaxis)
        integer_axis(axes.yaxis)
    for axes in panels[:: shape[1]]:
        axes.set_ylabel("query (token)", fontsize=10)
    part.supxlabel("key (token)", fontsize=10.5, color=INK)
    bar = part.colorbar(panels[0].images[0], ax=panels, fraction=0.05, pad=0.02)
    bar.set_label("weight", fontsize=10)
    bar.ax.tick_params(labelsize=9)


def _mean_by_offset_part(part: SubFigure, weights: Tensor) -> None:
    axes: Axes = part.subplots()
    size = weights.shape[-1]
    at = np.arange(1 - size, 1)
    means = _numbers(mean_by_offset(weights)[:, :size])
    far = _numbers(mean_distance(weights))
    for head, color in enumerate(ramp(len(weights))):
        axes.plot(
            at, means[head], color=color, linewidth=1.3,
            label=f"head {head + 1}: {far[head]:.0f} back",
        )  # fmt: skip
    # What underflowed to 0 is far below anything that can be seen.
    axes.set_yscale("log", nonpositive="mask")
    axes.set_xlabel("← looks back     offset (tokens)", fontsize=10.5)
    axes.set_ylabel("mean weight", fontsize=10)
    axes.tick_params(labelsize=9)
    integer_axis(axes.xaxis, 8)
    if len(weights) <= 8:
        axes.legend(
            ncols=4, fontsize=9, loc="lower center", bbox_to_anchor=(0.5, 0.98), handlelength=1
        )


def _numbers(x: Tensor) -> ndarray:
    return x.detach().cpu().double().numpy()
