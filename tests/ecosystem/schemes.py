"""Every scheme, layer and kind of local attention once, as a module from tensors to one tensor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from relpos import chunk_ranges, global_local_attention
from relpos.adapters import (
    AbsPosEmb1D,
    NeighborhoodAttention1D,
    NeighborhoodAttention2D,
    NeighborhoodAttention3D,
    RelativeGlobalAttention,
    RelPosEmb1D,
    RelPosEmb2D,
)
from relpos.layers import (
    BottleneckBlock,
    DecoderBlock,
    EncoderBlock,
    GridAttention,
    MultiheadAttention,
)
from relpos.positions import (
    AbsoluteKeys,
    Alibi,
    AxialRotary,
    Bidirectional,
    Compose,
    ContinuousBias,
    Deberta,
    GatedBias,
    Grid,
    Huang,
    Kerple,
    LearnedAbsolute,
    NoPosition,
    RelativeLogits,
    Rotary,
    Sandwich,
    Shaw,
    Sinusoidal,
    T5Bias,
    TransformerXL,
    WindowBias,
    XPos,
)

__all__ = ["IN_FLOAT64", "LENGTHS", "SUBJECTS", "Attention", "Subject", "inputs", "made"]

# Longer than most tables of the schemes below, and two of them no multiple of 2.
LENGTHS = (5, 33, 65)
# The map that stands for each length.
_MAPS = {5: (3, 5), 33: (4, 7), 65: (6, 9)}
_WIDTH, _HEADS, _HEAD = 16, 2, 8
# Shorter than most of the lengths.
_TRAINED = {"factor": 4.0, "original_max_position_embeddings": 16}
_YARN = {"rope_type": "yarn", **_TRAINED}
_LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, **_TRAINED}
_DYNAMIC = {"rope_type": "dynamic", **_TRAINED}
_LONGROPE = {
    "rope_type": "longrope", "short_factor": [1.0] * (_HEAD // 2),
    "long_factor": [2.0] * (_HEAD // 2), **_TRAINED,
}  # fmt: skip


class Attention(nn.Module):
    """Self-attention with one scheme, and maybe one at the input."""

    def __init__(
        self,
        position: nn.Module | None,
        causal: bool = False,
        at_input: nn.Module | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.at_input = at_input
        self.attention = MultiheadAttention(_WIDTH, _HEADS, position=position, **options)
        self.causal = causal

    def forward(self, x: Tensor) -> Tensor:
        if self.at_input is not None:
            x = self.at_input(x)
        return self.attention(x, x, x, need_weights=False, is_causal=self.causal)[0]


class _Chunks(nn.Module):
    """A streaming encoder's block: each token sees its own chunk and the one before it."""

    def __init__(self) -> None:
        super().__init__()
        attention = MultiheadAttention(_WIDTH, _HEADS, position=Shaw(_HEAD, 3), softcap=2.0)
        self.block = EncoderBlock(attention)

    def forward(self, x: Tensor) -> Tensor:
        ranges = chunk_ranges(x.shape[1], 4, left_chunks=1, device=x.device)
        return self.block(x, key_ranges=ranges)


class _GlobalTokens(nn.Module):
    """A window, and tokens here and there that see all and are seen by all."""

    def __init__(self) -> None:
        super().__init__()
        self.in_proj = nn.Linear(_WIDTH, 3 * _WIDTH)
        self.position = Shaw(_HEAD, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.in_proj(x).unflatten(2, (3, _HEADS, _HEAD)).permute(2, 0, 3, 1, 4)
        q, k, terms = self.position(q, k)
        heads = global_local_attention(q, k, v, terms, window=(2, 1), global_tokens=[0, 1, 4])
        return heads.transpose(1, 2).flatten(2)


class _WithMemory(nn.Module):
    """A decoder's block, whose memory has another length than its input."""

    def __init__(self) -> None:
        super().__init__()
        self.block = DecoderBlock(
            MultiheadAttention(_WIDTH, _HEADS, position=Shaw(_HEAD, (3, 0))),
            cross=MultiheadAttention(_WIDTH, _HEADS, position=Bidirectional(_HEAD, 7)),
        )

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        return self.block(x, memory=memory)


@dataclass(frozen=True)
class Subject:
    """A module, and what it is called with.

    Args:
        make: the module, in training mode.
        shapes: of the inputs, for one of `LENGTHS`.
        dynamic: the axes of each input that follow the length, with their names; None where the
            module is made for one size.
        graphs: how many graphs serve all lengths. A map of the size that the scheme was made for
            has one of its own, without resized rows.
    """

    make: Callable[[], nn.Module]
    shapes: Callable[[int], tuple[tuple[int, ...], ...]]
    dynamic: tuple[dict[int, str], ...] | None
    graphs: int = 1


def _line(
    position: Callable[[], nn.Module | None], causal: bool = False, at_input: bool = False
) -> Subject:
    def make() -> nn.Module:
        scheme = position()
        return Attention(None, causal, scheme) if at_input else Attention(scheme, causal)

    return _sequence(make)


def _sequence(make: Callable[[], nn.Module]) -> Subject:
    return Subject(make, lambda n: ((2, n, _WIDTH),), ({1: "length"},))


def _map(make: Callable[[], nn.Module]) -> Subject:
    axes = ({2: "height", 3: "width"},)
    return Subject(make, lambda n: ((2, _WIDTH, *_MAPS[n]),), axes, graphs=2)


def _natten(make: Callable[[], nn.Module], *outer: int) -> Subject:
    """Maps with their channels last, along the last axes as long as others'."""
    axes = ({1 + len(outer): "height", 2 + len(outer): "width"},)
    return Subject(make, lambda n: ((2, *outer, *_MAPS[n], _WIDTH),), axes)


def _queries(make: Callable[[], nn.Module], tokens: int) -> Subject:
    """The dense logits of AI Summer's classes, for maps and sequences of one size."""
    return Subject(make, lambda n: ((2, _HEADS, tokens, _HEAD),), None)


def _pooled() -> nn.Module:
    # As in MViT: queries at every second coordinate along both axes.
    pool = nn.AvgPool2d(2, ceil_mode=True)
    return GridAttention(_WIDTH, _HEADS, position=Grid(_HEAD, (3, 5)), query_pool=pool)


SUBJECTS: dict[str, Subject] = {
    "none": _line(lambda: None),
    "Shaw": _line(lambda: Shaw(_HEAD, 3, _HEADS)),
    "Huang": _line(lambda: Huang(_HEAD, 7), causal=True),
    "Bidirectional": _line(lambda: Bidirectional(_HEAD, 7, _HEADS)),
    "AbsoluteKeys": _line(lambda: AbsoluteKeys(_HEAD, 7)),
    "TransformerXL": _line(lambda: TransformerXL(_HEAD, _HEADS)),
    "Deberta": _line(lambda: Deberta(_HEAD, _HEADS, 16, position_buckets=4)),
    "T5Bias": _line(lambda: T5Bias(_HEADS, 8, 20)),
    "Alibi": _line(lambda: Alibi(_HEADS, learned=True)),
    "Alibi, causal": _line(lambda: Alibi(_HEADS, causal=True), causal=True),
    "NoPosition": _line(NoPosition),
    "Rotary": _line(lambda: Rotary(_HEAD)),
    "Rotary, interleaved YaRN": _line(lambda: Rotary(_HEAD, interleaved=True, scaling=_YARN)),
    "Rotary, a part by Llama 3": _line(
        lambda: Rotary(_HEAD, rotary_dim=6, scaling=_LLAMA3), causal=True
    ),
    "Rotary, dynamic": _line(lambda: Rotary(_HEAD, scaling=_DYNAMIC)),
    "Rotary, LongRoPE": _line(lambda: Rotary(_HEAD, scaling=_LONGROPE)),
    "XPos": _line(lambda: XPos(_HEAD), causal=True),
    "Kerple": _line(lambda: Kerple(_HEADS)),
    "Kerple, power": _line(lambda: Kerple(_HEADS, "power", causal=True), causal=True),
    "Sandwich": _line(lambda: Sandwich(_HEADS, 16)),
    "Compose": _line(
        lambda: Compose(
            Shaw(_HEAD, 3),
            Rotary(_HEAD),
            T5Bias(_HEADS, 8, 20),
            Compose(Alibi(_HEADS, learned=True), NoPosition()),
        )
    ),
    "Compose, with gates": _line(
        lambda: Compose(XPos(_HEAD), GatedBias(T5Bias(_HEADS, 8, 20), _HEADS, _HEAD)), causal=True
    ),
    "GatedBias": _line(lambda: GatedBias(T5Bias(_HEADS, 8, 20), _HEADS, _HEAD)),
    "RelativeLogits": _line(lambda: RelativeLogits(7, 3, _HEADS, _WIDTH), causal=True),
    "a window": _sequence(lambda: Attention(Shaw(_HEAD, 3, _HEADS), window=(4, 2))),
    "a causal window": _sequence(lambda: Attention(Rotary(_HEAD), True, window=(4, None))),
    "a softcap": _sequence(lambda: Attention(T5Bias(_HEADS, 8, 20), softcap=2.0)),
    "chunks": _sequence(_Chunks),
    "global tokens": _sequence(_GlobalTokens),
    "Sinusoidal": _line(lambda: Sinusoidal(_WIDTH), at_input=True),
    "LearnedAbsolute": _line(lambda: LearnedAbsolute(_WIDTH, 7), at_input=True),
    "AbsPosEmb1D": _line(lambda: AbsPosEmb1D(7, _HEAD)),
    "RelPosEmb1D": _line(lambda: RelPosEmb1D(7, _HEAD, _HEADS)),
    "RelPosEmb2D": Subject(
        lambda: Attention(RelPosEmb2D((3, 5), _HEAD)), lambda n: ((2, 15, _WIDTH),), None
    ),
    "logits of AbsPosEmb1D": _queries(lambda: AbsPosEmb1D(7, _HEAD), 7),
    "logits of RelPosEmb1D": _queries(lambda: RelPosEmb1D(7, _HEAD, _HEADS), 7),
    "logits of RelPosEmb2D": _queries(lambda: RelPosEmb2D((3, 5), _HEAD), 15),
    "EncoderBlock": _sequence(
        lambda: EncoderBlock(MultiheadAttention(_WIDTH, _HEADS, position=T5Bias(_HEADS, 8, 20)))
    ),
    "DecoderBlock": Subject(
        _WithMemory,
        lambda n: ((2, n, _WIDTH), (2, n + 2, _WIDTH)),
        ({1: "length"}, {1: "memory"}),
    ),
    "RelativeGlobalAttention": _sequence(
        lambda: RelativeGlobalAttention(_WIDTH, _HEADS, max_len=7, dropout=0.0)
    ),
    "NeighborhoodAttention1D": _sequence(lambda: NeighborhoodAttention1D(_WIDTH, _HEADS, 3)),
    "NeighborhoodAttention2D": _natten(lambda: NeighborhoodAttention2D(_WIDTH, _HEADS, (2, 3))),
    "NeighborhoodAttention3D": _natten(
        lambda: NeighborhoodAttention3D(
            _WIDTH, _HEADS, (2, 2, 3), stride=(1, 2, 2), is_causal=(True, False, False)
        ),
        2,
    ),
    "Grid": _map(lambda: GridAttention(_WIDTH, _HEADS, position=Grid(_HEAD, (3, 5)))),
    "Grid, pooled queries": _map(_pooled),
    "a neighbourhood": _map(
        lambda: GridAttention(
            _WIDTH, _HEADS, position=Grid(_HEAD, (3, 5)), window=((1, 1), (2, 0)), softcap=2.0
        )
    ),
    "neighborhoods": _map(
        lambda: GridAttention(_WIDTH, _HEADS, position=Grid(_HEAD, (3, 5)), neighborhood=(2, 3))
    ),
    "WindowBias": _map(
        lambda: GridAttention(_WIDTH, _HEADS, position=WindowBias(_HEADS, (3, 5)))
    ),
    "ContinuousBias": _map(
        lambda: GridAttention(
            _WIDTH, _HEADS, position=ContinuousBias(_HEADS, (3, 5), hidden=16)
        )
    ),
    "AxialRotary": _map(
        lambda: GridAttention(_WIDTH, _HEADS, position=AxialRotary(_HEAD, (3, 5)))
    ),
    "Compose on a map": _map(
        lambda: GridAttention(
            _WIDTH, _HEADS, position=Compose(AxialRotary(_HEAD, (3, 5)), WindowBias(_HEADS, (3, 5)))
        )
    ),
    "BottleneckBlock": _map(
        lambda: BottleneckBlock(_WIDTH, (3, 5), dim_out=32, downsample=True, heads=2, dim_head=8)
    ),
}  # fmt: skip


# Tried in float64 too, which `native` does not take and `tiled` does.
IN_FLOAT64 = ("Shaw", "Grid", "a window", "chunks", "a neighbourhood", "neighborhoods")


def made(name: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    """The module with the same numbers each time, at inference."""
    torch.manual_seed(0)
    module = SUBJECTS[name].make().eval()
    # What starts at 0 or 1 (biases, norms) would hide a term that is left out.
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return module.to(dtype)


def inputs(name: str, length: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    """The same draws each time."""
    generator = torch.Generator().manual_seed(length)
    return tuple(
        torch.randn(shape, generator=generator).to(dtype) for shape in SUBJECTS[name].shapes(length)
    )
