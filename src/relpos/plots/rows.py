"""The rows that a position scheme brings, and what they add to scores, as plain arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor, nn

from ..layers import MultiheadAttention
from ..positions import LearnedAbsolute, Position, Sinusoidal
from ..positions.tables import LearnedTables
from ..terms import GridTerms, Terms

__all__ = ["Rows", "decoder_positions", "effect_of", "head_label", "rows_of", "table_rows"]

_SEED_OF_INPUTS = 0x5EED0FF5E7


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of one table for one head.

    Args:
        name: of the table, e.g. `"keys"` or `"layer 2 bias, head 1"`.
        values: vectors `(r, d)`, scalars `(r,)`, or scalars by the offsets down and across a
            grid `(r, c)` where `joint_bias`.
        first: the offset or position of the first row.
        relative: whether rows belong to offsets, and not to positions.
        joint_bias: whether there are two offsets, both 0 in the middle.
    """

    name: str
    values: Float[ndarray, "..."]
    first: int
    relative: bool = True
    joint_bias: bool = False

    @property
    def last(self) -> int:
        """The offset or position of the last row."""
        return self.first + len(self.values) - 1


def table_rows(model: nn.Module) -> tuple[Float[ndarray, "layer r d"], int, bool]:
    """The learned rows of a model's positions.

    Args:
        model: a decoder with Huang, Shaw or learned absolute positions.

    Returns:
        The rows (of several heads, one after the other as layers), the offset or position of the
        first row, and whether the rows are relative. No layer if nothing was learned.
    """
    tables = [module for module in model.modules() if isinstance(module, LearnedTables)]
    keys = [table.keys.detach().cpu().numpy() for table in tables if table.keys is not None]
    if keys:
        return np.concatenate(keys), tables[0].first, True
    absolute = [module for module in model.modules() if isinstance(module, LearnedAbsolute)]
    if absolute:
        return np.stack([table.rows.detach().cpu().numpy() for table in absolute]), 0, False
    return np.zeros((0, 1, 1)), 0, False


def decoder_positions(model: nn.Module) -> dict[str, nn.Module]:
    """The position schemes of a model by `"layer 1"`, ..., or that at its input by `""`.

    Args:
        model: any with layers `MultiheadAttention`; what its attribute `position` is, if it has
            one, acts on its input.

    >>> from relpos.positions import Shaw
    >>> layers = [MultiheadAttention(8, 2, position=Shaw(4, 3)) for _ in range(2)]
    >>> list(decoder_positions(nn.Sequential(*layers)))
    ['layer 1', 'layer 2']
    """
    attentions = [one for one in model.modules() if isinstance(one, MultiheadAttention)]
    found = {
        f"layer {n + 1}": one.position
        for n, one in enumerate(attentions)
        if one.position is not None
    }
    at_input = getattr(model, "position", None)
    return found if at_input is None else {"": at_input} | found


def rows_of(
    position: nn.Module, *, length: int, heads: int, head_dim: int, seed: int = 0
) -> list[Rows]:
    """The rows that a scheme hands to attention for a sequence, or adds to the input.

    Args:
        position: a `Position`, or one that is added to the input (learned, sinusoidal).
        length: tokens.
        heads: query heads.
        head_dim: width of one head.
        seed: of the queries and keys, for schemes whose tables depend on them.

    >>> from relpos.positions import Shaw
    >>> [(rows.name, rows.first) for rows in rows_of(Shaw(4, 2), length=5, heads=1, head_dim=4)]
    [('keys', -2), ('values', -2)]
    """
    if isinstance(position, LearnedAbsolute):
        return [Rows("input", _numbers(position.rows), 0, relative=False)]
    if isinstance(position, Sinusoidal):
        waves = position(torch.zeros(1, length, position.dim))[0]
        return [Rows("input", _numbers(waves), 0, relative=False)]
    q, k, x = _random_inputs(length, heads, head_dim, seed)
    with torch.no_grad():
        _, _, terms = position(q, k, x) if _reads_input(position) else position(q, k)
    found = []
    if isinstance(terms, GridTerms):
        for n, (axis, size) in enumerate(zip(terms.axes, terms.shape, strict=True)):
            words = {2: ("down", "across")}.get(len(terms.shape), range(1, len(terms.shape) + 1))
            found += _rows_of_terms(axis, f" {words[n]} ({size})")
        if terms.joint_bias is not None:
            found += [
                Rows(
                    head_label("joint bias", head, len(terms.joint_bias)),
                    _numbers(one),
                    0,
                    joint_bias=True,
                )
                for head, one in enumerate(terms.joint_bias)
                if one.ndim == 2
            ]
    else:
        found += _rows_of_terms(terms, "")
    return found or _rows_of_ones(position, q) or _rows_added_to_keys(position, q)


def effect_of(
    position: nn.Module, *, length: int, heads: int, head_dim: int, seed: int = 0
) -> Float[ndarray, "h i j"]:
    """What a scheme adds to the scores of random queries and keys of variance 1, in logits.

    Where it only turns both (rotary positions), queries and keys are all ones: of random ones the
    picture would show those and no positions.

    Args:
        position: a scheme.
        length: tokens.
        heads: query heads.
        head_dim: width of one head.
        seed: of queries and keys.
    """
    q, k, x = _random_inputs(length, heads, head_dim, seed)
    with torch.no_grad():
        if isinstance(position, Position):
            read = x if position.reads_input else None
            q, k = (torch.ones_like(q), torch.ones_like(k)) if _turns(position, q) else (q, k)
            return _numbers(position.logits(q, k, read)[0])
    raise TypeError(f"effect_of: position must be a Position, got {type(position).__name__}")


def _rows_of_terms(terms: Terms, where: str) -> list[Rows]:
    found = []
    for name, table in terms.tables.items():
        for head, one in enumerate(table.rows):
            values = _numbers(one)
            # Vectors of width 1, as a gated bias has, are numbers.
            values = values[:, 0] if values.shape[1:] == (1,) else values
            found.append(Rows(head_label(name + where, head, len(table.rows)), values, table.first))
    return found


def _turns(position: nn.Module, q: Tensor) -> bool:
    """Whether a scheme acts on queries and keys and has no terms."""
    if _reads_input(position):
        return False
    turned_q, turned_k, terms = position(q, q)
    return turned_q is not q and turned_k is not q and not terms.tensors


def _rows_of_ones(position: nn.Module, q: Tensor) -> list[Rows]:
    """The score of equal queries and keys by offset, of a scheme that turns those of a line.

    As a part of what it is at offset 0.
    """
    if getattr(position, "reads_shape", False) or not _turns(position, q):
        return []
    with torch.no_grad():
        turned_q, turned_k, _ = position(torch.ones_like(q), torch.ones_like(q))
    scores = (turned_q @ turned_k.mT)[0, 0]
    # The last query's keys look back, the first one's ahead.
    line = torch.cat((scores[-1], scores[0, 1:]))
    return [Rows("score of ones", _numbers(line / scores[0, 0]), 1 - q.shape[2])]


def _rows_added_to_keys(position: nn.Module, q: Tensor) -> list[Rows]:
    """The rows of a scheme without tables that adds one to each key, whatever the key is."""
    with torch.no_grad():
        _, added, _ = position(q, torch.zeros_like(q))
    return [Rows("keys", _numbers(added[0, 0]), 0, relative=False)] if added.any() else []


def head_label(name: str, head: int, heads: int) -> str:
    """The name with the head's number, where there are several.

    Args:
        name: of a table or layer.
        head: from 0.
        heads: how many there are.
    """
    return name if heads == 1 else f"{name}, head {head + 1}"


def _reads_input(position: nn.Module) -> bool:
    return getattr(position, "reads_input", False)


def _random_inputs(
    length: int, heads: int, head_dim: int, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and the layer's input, of variance 1."""
    # Rows drawn from the same seed must not be the queries themselves.
    generator = torch.Generator().manual_seed(seed ^ _SEED_OF_INPUTS)
    q, k = torch.randn(2, 1, heads, length, head_dim, generator=generator).unbind()
    return q, k, torch.randn(1, length, heads * head_dim, generator=generator)


def _numbers(x: Tensor) -> ndarray:
    return x.detach().cpu().double().numpy()
