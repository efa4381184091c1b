"""The position schemes of a sequence model by name: what stands at its input, what in its blocks.

Encoders are given both sides of a query, decoders the past alone. Parameters of the schemes that
have a table of every offset are bounded by the length of the training sequences, so that models
are compared at nearly equal size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import nn

from relpos.layers import MultiheadAttention
from relpos.positions import (
    AbsoluteKeys,
    Alibi,
    Bidirectional,
    Deberta,
    GatedBias,
    Huang,
    Kerple,
    LearnedAbsolute,
    RelativeLogits,
    Rotary,
    Sandwich,
    Shaw,
    Sinusoidal,
    T5Bias,
    TransformerXL,
    XPos,
)

__all__ = ["POSITIONS", "PositionScheme", "PositionSizes"]

# How far Shaw's rows reach where nothing else is asked for, in tokens.
_SHAW_DISTANCE = 64
# Of the relative queries of `RelativeLogits`, as in the released model.
_LOGITS_WIDTH = 16


@dataclass(frozen=True)
class PositionSizes:
    """What a scheme is made for.

    Args:
        width: of the residual stream.
        heads: of a block's attention.
        max_length: rows of tables of absolute positions, in tokens; the length of the training
            sequences bounds those of all offsets too.
        max_distance: the farthest offset with a row of its own in schemes that are `clipped`, in
            tokens; None means 64 for `"shaw"`, and every offset of `max_length` for the others.
        causal: whether the blocks see the past alone.
        shared_heads: whether the heads of a block share one table, in schemes that allow both.
        relative_keys: whether `"shaw"` has keys.
        relative_values: whether `"shaw"` has values.
    """

    width: int
    heads: int
    max_length: int
    max_distance: int | None = None
    causal: bool = True
    shared_heads: bool = True
    relative_keys: bool = True
    relative_values: bool = True

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.width // self.heads

    @property
    def tables(self) -> int:
        """Tables of a block: one, or one for each head."""
        return 1 if self.shared_heads else self.heads

    @property
    def rows(self) -> int:
        """Distances with a row of their own, 0 among them, in tables of every offset."""
        return self.max_length if self.max_distance is None else self.max_distance + 1


_Make = Callable[[PositionSizes], nn.Module | None]


@dataclass(frozen=True)
class PositionScheme:
    """How a scheme enters a model.

    Args:
        title: for tables and figures.
        at_input: makes what is added to the embeddings; None: nothing.
        in_block: makes what acts in each block's self-attention; None: nothing.
        causal_only: whether encoders have no use for it.
        from_start: whether what acts in the blocks counts positions from the first token.
        clipped: whether `max_distance` says for which offsets there are rows.
    """

    title: str
    at_input: _Make | None = None
    in_block: _Make | None = None
    causal_only: bool = False
    from_start: bool = False
    clipped: bool = False

    @property
    def relative(self) -> bool:
        """Whether scores depend on how far two tokens are apart, and not on where they stand."""
        return self.in_block is not None and not self.from_start

    def put_into(
        self, attentions: Iterable[MultiheadAttention], sizes: PositionSizes
    ) -> nn.Module | None:
        """Give each attention a position of its own, and make what stands at the input.

        Args:
            attentions: of the blocks, which have no position yet.
            sizes: what the scheme is made for.

        Returns:
            The module at the input, whose numbers are drawn before those in the blocks.
        """
        at_input = None if self.at_input is None else self.at_input(sizes)
        for attention in attentions:
            attention.position = None if self.in_block is None else self.in_block(sizes)
        return at_input


def _huang(sizes: PositionSizes) -> nn.Module:
    scheme = Huang if sizes.causal else Bidirectional
    return scheme(sizes.head_dim, sizes.rows, sizes.tables)


def _shaw(sizes: PositionSizes) -> nn.Module | None:
    if not (sizes.relative_keys or sizes.relative_values):
        return None
    distance = _SHAW_DISTANCE if sizes.max_distance is None else sizes.max_distance
    # In a causal model no offset selects a row for keys to the right.
    reach = (distance, 0) if sizes.causal else distance
    return Shaw(
        sizes.head_dim, reach, sizes.tables, sizes.relative_keys, sizes.relative_values
    )  # fmt: skip


def _sinusoidal(sizes: PositionSizes) -> nn.Module:
    # The embeddings have variance 1 / width, so the waves are brought down to the same size.
    return Sinusoidal(sizes.width, scale=sizes.width**-0.5)


def _t5(sizes: PositionSizes) -> nn.Module:
    return T5Bias(sizes.heads, bidirectional=not sizes.causal)


POSITIONS: dict[str, PositionScheme] = {
    "huang": PositionScheme("Huang", in_block=_huang, clipped=True),
    "shaw": PositionScheme("Shaw", in_block=_shaw, clipped=True),
    "absolute": PositionScheme(
        "learned absolute", at_input=lambda s: LearnedAbsolute(s.width, s.max_length)
    ),
    "sinusoidal": PositionScheme("sinusoidal", at_input=_sinusoidal),
    "none": PositionScheme("no positions"),
    "t5": PositionScheme("T5", in_block=_t5),
    "alibi": PositionScheme("ALiBi", in_block=lambda s: Alibi(s.heads, causal=s.causal)),
    "kerple": PositionScheme("Kerple", in_block=lambda s: Kerple(s.heads, causal=s.causal)),
    "sandwich": PositionScheme("Sandwich", in_block=lambda s: Sandwich(s.heads, causal=s.causal)),
    "gated": PositionScheme(
        "gated T5 bias", in_block=lambda s: GatedBias(_t5(s), s.heads, s.head_dim)
    ),
    "rotary": PositionScheme("rotary", in_block=lambda s: Rotary(s.head_dim)),
    "xpos": PositionScheme("xPos", in_block=lambda s: XPos(s.head_dim), causal_only=True),
    "transformer-xl": PositionScheme(
        "Transformer-XL",
        in_block=lambda s: TransformerXL(s.head_dim, s.heads, causal=s.causal),
    ),
    "deberta": PositionScheme(
        "DeBERTa", in_block=lambda s: Deberta(s.head_dim, s.heads, s.rows), clipped=True
    ),
    "relative-logits": PositionScheme(
        "relative logits",
        in_block=lambda s: RelativeLogits(s.rows, _LOGITS_WIDTH, s.heads, s.width),
        causal_only=True,
        clipped=True,
    ),
    "absolute-keys": PositionScheme(
        "absolute keys",
        in_block=lambda s: AbsoluteKeys(s.head_dim, s.max_length),
        from_start=True,
    ),
}
