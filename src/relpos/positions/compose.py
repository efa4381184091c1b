"""Several position schemes in one attention: rotary queries and keys with Shaw's values, and so on.

    q, k, terms_1 = first(q, k);  q, k, terms_2 = second(q, k);  ...;  all terms together

- Order: each scheme is given the `q` and `k` that the one before returned, and its terms belong to
  those that it returned itself. So `Compose(Shaw(d, 8), Rotary(d))` takes Shaw's rows times plain
  queries, turning only the content, and `Compose(Rotary(d), Shaw(d, 8))` times turned ones: scores
  then depend on where the queries are, too, so that it is not `shift_invariant`. After `XPos`,
  whose queries depend on the length of the call, such a scheme is refused.
- Terms of different kinds stand beside each other. Two biases are added, over the union of their
  windows, whatever each has beyond its own; so are two joint biases of a grid. Two tables of keys,
  queries or values are refused.
- Scale: what one scheme needs (`attention_scale`) all get; different needs are refused.
- Schemes at the layer's input (`Sinusoidal`, `LearnedAbsolute`) are no part of attention: apply
  them before the first layer.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from ..terms import GridTerms, Terms
from .base import Position
from .handover import apply_position, check_position, resolve_scale
from .joining import join_terms, pin_queries

__all__ = ["Compose"]


class Compose(Position):
    """The schemes one after the other, with the terms of all.

    Args:
        positions: schemes in order; a `Compose` may be one of them.

    Raises:
        TypeError: if one is no module, is not called as `position(q, k)`, or acts on the layer's
            input.
        ValueError: if there is none, they need different scales, or one reads queries and keys of
            which an earlier one has only the products right (`XPos`).

    >>> import torch
    >>> from relpos.positions import Alibi, Rotary, Shaw
    >>> position = Compose(Rotary(8), Shaw(8, 4, keys=False), Alibi(2))
    >>> q = torch.zeros(1, 2, 5, 8)
    >>> list(position(q, q)[2].tables)
    ['bias', 'values']
    """

    def __init__(self, *positions: nn.Module) -> None:
        super().__init__()
        if not positions:
            raise ValueError("Compose: positions must be at least one, got none")
        for position in positions:
            if not isinstance(position, nn.Module):
                hint = "; NoPosition() stands for none" if position is None else ""
                got = type(position).__name__
                raise TypeError(f"Compose: positions must be modules, got {got}{hint}")
            check_position("Compose", "positions", position)
        factors = [each for each in positions if getattr(each, "only_products_hold", False)]
        if factors and (readers := _readers_behind(factors[0], positions)):
            name = type(factors[0]).__name__
            raise ValueError(
                f"Compose: positions must come in an order in which none behind {name} reads its "
                f"queries or keys, of which only the products are right, got "
                f"{type(readers[0]).__name__} there; put {name} last"
            )
        self.positions = nn.ModuleList(positions)
        self.attention_scale = _common_scale(positions)
        self.assumes_default_scale = self._any("assumes_default_scale")
        # What each reads is asked of it, and none must be asked for what it does not know.
        self.reads_input = self._any("reads_input")
        self.reads_query_start = self._any("reads_query_start")
        self.reads_key_start = self._any("reads_key_start")
        self.reads_shape = self._any("reads_shape")
        self.reads_query_shape = self._all("reads_query_shape")
        self.keeps_content = self._all("keeps_content")
        self.reads_content = any(map(_reads_content, positions))
        self.only_products_hold = self._any("only_products_hold")
        turning = [each for each in positions if not getattr(each, "keeps_content", False)]
        read = bool(turning and _readers_behind(turning[0], positions))
        self.shift_invariant = self._all("shift_invariant") and not read

    def forward(
        self,
        q: Float[Tensor, "b h i d"],
        k: Float[Tensor, "b g j d"],
        x: Float[Tensor, "b n e"] | None = None,
        *,
        query_start: int | None = None,
        key_start: int = 0,
        shape: tuple[int, ...] | None = None,
        query_shape: tuple[int, ...] | None = None,
    ) -> tuple[Float[Tensor, "b h i d"], Float[Tensor, "b g j d"], Terms | GridTerms]:
        """`q` and `k` as the last scheme returns them, and the terms of all.

        Args:
            q: queries.
            k: keys.
            x: the layer's input, for schemes that read it.
            query_start: position of the first query; None means that the queries are the last.
            key_start: position of the first key, for schemes that change the keys; terms are as if
                these keys were the first ones.
            shape: the keys' grid, for schemes that are made for one.
            query_shape: the queries' grid, likewise.

        Raises:
            ValueError: if terms cannot be joined: two tables of one kind, different grids.
        """
        joined: Terms | GridTerms = Terms()
        for position in self.positions:
            new_q, new_k, terms = apply_position(
                position, q, k, x, query_start=query_start, key_start=key_start, shape=shape,
                query_shape=query_shape,
            )  # fmt: skip
            joined = pin_queries(
                "Compose", joined, None if new_q is q else q, None if new_k is k else k
            )
            joined = join_terms("Compose", joined, terms)
            q, k = new_q, new_k
        return q, k, joined

    def head_axes(self) -> dict[str, int] | None:
        """The axes of the heads of all schemes, if each says them."""
        found: dict[str, int] = {}
        for number, position in enumerate(self.positions):
            axes = position.head_axes() if isinstance(position, Position) else None
            if axes is None:
                return None
            found |= {f"positions.{number}.{name}": axis for name, axis in axes.items()}
        return found

    def _any(self, name: str) -> bool:
        return any(getattr(position, name, False) for position in self.positions)

    def _all(self, name: str) -> bool:
        return all(getattr(position, name, False) for position in self.positions)


def _reads_content(position: nn.Module) -> bool:
    return getattr(position, "reads_content", True)


def _readers_behind(first: nn.Module, positions: tuple[nn.Module, ...]) -> list[nn.Module]:
    """The schemes behind the first place of `first` that read queries or keys."""
    return [each for each in positions[positions.index(first) + 1 :] if _reads_content(each)]


def _common_scale(positions: tuple[nn.Module, ...]) -> float | None:
    """The scale that the schemes need, if any does."""
    scale: float | None = None
    for position in positions:
        try:
            scale = resolve_scale("Compose", position, scale)
        except ValueError:
            needs = ", ".join(
                f"{type(each).__name__} {each.attention_scale:g}"
                for each in positions
                if getattr(each, "attention_scale", None) is not None
            )
            raise ValueError(
                f"Compose: positions must need the same scale of attention, got {needs}"
            ) from None
    if scale is None:
        return None
    for part in (part for position in positions for part in position.modules()):
        if getattr(part, "assumes_default_scale", False) and not isinstance(part, Compose):
            raise ValueError(
                f"Compose: {type(part).__name__} must be given scale={scale:g}, which another of "
                "the positions needs, got None"
            )
    return scale
