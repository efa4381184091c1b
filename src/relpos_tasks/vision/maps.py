"""What a pixel classifier learned, as maps: where a pixel looks, and what its tables hold."""

from __future__ import annotations

from typing import Any, cast

import torch
from jaxtyping import Float, Float32
from torch import Tensor, nn

from relpos import attention_weights
from relpos.layers import GridAttention
from relpos.positions import NoPosition, Position
from relpos.positions.handover import apply_position, resolve_scale

from ..models.map_positions import LearnedMapPositions

__all__ = ["added_by_offset", "pixel_weights", "similarity_of_places"]


def pixel_weights(
    model: nn.Module, image: Float32[Tensor, "m n"], pixel: tuple[int, int]
) -> Float[Tensor, "layer h m n"]:
    """How much each head of each layer reads from every pixel, for one pixel's answer.

    Args:
        model: its attention layers are `GridAttention`.
        image: what it reads.
        pixel: row and column.

    Returns:
        Weights that sum to 1 for each layer and head; no layer where the model has none.
    """
    width = image.shape[1]
    query = pixel[0] * width + pixel[1]
    found = []
    for layer, inputs in _read(model, image):
        with torch.no_grad():
            q, k, terms = apply_position(layer.position, *inputs, shape=tuple(image.shape))
            scale = resolve_scale("pixel_weights", layer.position, layer.scale, width=q.shape[3])
            weights = attention_weights(q, k, terms, scale=scale)
        found.append(weights[0, :, query].unflatten(-1, tuple(image.shape)))
    return torch.stack(found) if found else torch.zeros(0, 1, *image.shape)


def added_by_offset(
    model: nn.Module, images: Float32[Tensor, "b m n"], ink: float
) -> Float[Tensor, "layer h r s"]:
    """What the positions add to the scores of ink pixels: means by the offset down and across.

    Of positions that turn queries and keys, what turning changes.

    Args:
        model: its attention layers are `GridAttention`, with positions for maps of this size.
        images: over whose ink pixels the mean goes.
        ink: from this much ink on a pixel counts.

    Returns:
        Logits at the offsets `1 - m..m - 1` down and `1 - n..n - 1` across, NaN where no ink pixel
        has a key; no layer where attention has no positions.
    """
    height, width = images.shape[1:]
    shape = (2 * height - 1, 2 * width - 1)
    sums: dict[int, Tensor] = {}
    counts = torch.zeros(shape, dtype=torch.float64)
    for image in images:
        pixels = (image.flatten() >= ink).nonzero()[:, 0].tolist()
        for pixel in pixels:
            counts[_offsets_from(pixel, height, width)] += 1
        for n, (layer, (q, k, tokens)) in enumerate(_read(model, image)):
            position = layer.position
            if not isinstance(position, Position) or isinstance(position, NoPosition):
                continue
            with torch.no_grad():
                added = position.logits(q, k, tokens)[0].double()
            of_layer = sums.setdefault(n, added.new_zeros(len(added), *shape))
            for pixel in pixels:
                of_layer[:, *_offsets_from(pixel, height, width)] += added[:, pixel].unflatten(
                    -1, (height, width)
                )
    if not sums:
        return torch.zeros(0, 1, *shape)
    return torch.stack(list(sums.values())) / counts.where(counts > 0, torch.nan)


def similarity_of_places(model: nn.Module, place: tuple[int, int]) -> Float[Tensor, "m n"] | None:
    """Cosine similarity of one place's learned row with those of all (Dosovitskiy et al. 2021).

    Args:
        model: any.
        place: row and column.

    Returns:
        A map in -1..1; None where the model has learned no row for each place.
    """
    position = getattr(model, "position", None)
    if not isinstance(position, LearnedMapPositions):
        return None
    rows = nn.functional.normalize(position.rows.detach(), dim=0)
    return torch.einsum("emn,e->mn", rows, rows[:, place[0], place[1]])


def _offsets_from(pixel: int, height: int, width: int) -> tuple[slice, slice]:
    """Where the keys of a query lie in a map by offset."""
    row, column = divmod(pixel, width)
    return (
        slice(height - 1 - row, 2 * height - 1 - row),
        slice(width - 1 - column, 2 * width - 1 - column),
    )


def _read(
    model: nn.Module, image: Tensor
) -> list[tuple[GridAttention, tuple[Tensor, Tensor, Tensor]]]:
    """Queries, keys `(1, h, i, d)` and input of each attention layer while it reads an image."""
    found: list[tuple[GridAttention, tuple[Tensor, Tensor, Tensor]]] = []

    def record(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        layer = cast(GridAttention, module)
        tokens = inputs[0].flatten(2).mT
        q, k, _ = layer.in_proj(tokens).chunk(3, dim=-1)
        heads = (layer.num_heads, layer.head_dim)
        q, k = (part.unflatten(-1, heads).transpose(1, 2) for part in (q, k))
        found.append((layer, (q, k, tokens)))

    layers = [one for one in model.modules() if isinstance(one, GridAttention)]
    hooks = [layer.register_forward_pre_hook(record) for layer in layers]
    try:
        with torch.no_grad():
            model(image[None])
    finally:
        for hook in hooks:
            hook.remove()
    return found
