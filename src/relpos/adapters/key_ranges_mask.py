"""A mask of all pairs of which no more than ranges of keys, and their padding, is held."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Int64
from torch import Tensor
from torch.utils import _pytree as pytree

from .masks import additive_mask, key_padding

__all__ = ["KeyRangesMask"]

_aten = torch.ops.aten


class KeyRangesMask(Tensor):
    """A mask `(b, 1, i, j)` by the keys `lo..hi-1` that each query sees, and by which are padding.

    To models it is the mask that it stands for: they may read its sizes, move it and cut pieces out
    of it, and no more than before is held. Anything else they do with it is done with the mask of
    all pairs; that is what counts once they have a view of it, since they may write into it. (In
    compiled code only its clone is to be written into.)

    Args:
        ranges: of each query.
        keys: j, in tokens.
        padding: True for tokens, of all keys; None: all are.
        dtype: of the mask: `torch.bool`, True for pairs that take part; or one of numbers, 0 for
            them and the least number there is for the others.
    """

    ranges: Int64[Tensor, "b 1 i 2"]
    padding: Bool[Tensor, "b j"] | None
    _pairs: Tensor | None
    _viewed: bool
    # Of a piece: the mask that it was cut from, and how. They share what is written.
    _whole: tuple[KeyRangesMask, Callable[[Tensor], Tensor]] | None

    @staticmethod
    def __new__(
        cls,
        ranges: Int64[Tensor, "b 1 i 2"],
        keys: int,
        padding: Bool[Tensor, "b j"] | None = None,
        dtype: torch.dtype = torch.bool,
    ) -> KeyRangesMask:
        """The tensor; it has no memory of its own."""
        size = (*ranges.shape[:3], keys)
        mask = Tensor._make_wrapper_subclass(cls, size, dtype=dtype, device=ranges.device)
        mask.ranges, mask.padding = ranges, padding
        mask._pairs = mask._whole = None
        mask._viewed = False
        return mask

    def pairs(self) -> Tensor:
        """The mask of all pairs, `(b, 1, i, j)`, the same tensor each time."""
        if self._pairs is None:
            if self._whole is None:
                self._pairs = self._made()
            else:
                whole, cut = self._whole
                self._pairs = cut(whole.pairs())
        return self._pairs

    def _made(self) -> Tensor:
        keys = torch.arange(self.shape[-1], device=self.device)
        seen = (keys >= self.ranges[..., :1]) & (keys < self.ranges[..., 1:])
        if self.padding is not None:
            seen = seen & key_padding(self.padding)
        return seen if self.dtype == torch.bool else additive_mask(seen, self.dtype)

    @property
    def viewed(self) -> bool:
        """Whether `pairs()` may have been written into."""
        return self._viewed or (self._whole is not None and self._whole[0].viewed)

    def _now_viewed(self) -> None:
        self._viewed = True
        if self._whole is not None:
            self._whole[0]._now_viewed()

    def __repr__(self) -> str:
        if self.viewed:
            return f"KeyRangesMask({self.pairs()!r})"
        return (
            f"KeyRangesMask({self.ranges!r}, keys={self.shape[-1]}, padding={self.padding!r}, "
            f"dtype={self.dtype})"
        )

    def __deepcopy__(self, memo: dict[int, object]) -> Tensor:
        return self.clone() if self.viewed else _both(self, Tensor.clone)

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self.viewed:
            return self.pairs().__reduce_ex__(protocol)
        return KeyRangesMask, (self.ranges, self.shape[-1], self.padding, self.dtype)

    def __tensor_flatten__(self) -> tuple[list[str], torch.dtype]:
        # While it is traced, what was written is in the graph already.
        if self.viewed and type(self.ranges) is Tensor:
            raise RuntimeError(
                "attn_implementation='relpos': a mask that others have views of must not be "
                "traced; its clone() may be"
            )
        return ["ranges"] if self.padding is None else ["ranges", "padding"], self.dtype

    @staticmethod
    def __tensor_unflatten__(
        inner: dict[str, Tensor], dtype: torch.dtype, size: Any, stride: Any
    ) -> KeyRangesMask:
        return KeyRangesMask(inner["ranges"], size[-1], inner.get("padding"), dtype)

    @classmethod
    def __torch_dispatch__(
        cls, op: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if isinstance(args[0], KeyRangesMask) and not args[0].viewed:
            kept = _kept(op, *args, **given)
            if kept is not None:
                return kept
        positions = zip(op._schema.arguments, args, strict=False)
        named = [(x, given[x.name]) for x in op._schema.arguments if x.name in given]
        # What is written, or seen by the result.
        shared = [value for x, value in (*positions, *named) if x.alias_info is not None]
        pytree.tree_map_only_(KeyRangesMask, KeyRangesMask._now_viewed, shared)
        written = op._schema.is_mutable and isinstance(args[0], KeyRangesMask)
        if written and torch.compiler.is_compiling():
            raise RuntimeError(
                "attn_implementation='relpos': compiled code must write into clones of masks "
                f"alone, got {op}"
            )
        args, given = pytree.tree_map_only(KeyRangesMask, KeyRangesMask.pairs, (args, given))
        return op(*args, **given)


def _kept(op: Any, mask: KeyRangesMask, *args: Any, **kwargs: Any) -> KeyRangesMask | None:
    """What an operator makes of the mask, if that is ranges again."""
    if op is _aten._to_copy.default and kwargs.pop("dtype", mask.dtype) == mask.dtype:
        return _both(mask, lambda part: op(part, **kwargs))
    found = None
    if op in (_aten.detach.default, _aten.alias.default):
        found = _both(mask, op)
    if op is _aten.slice.Tensor:
        found = _piece(mask, *args)
    if found is not None:
        found._whole = mask, lambda pairs: op(pairs, *args)
    return found


def _both(mask: KeyRangesMask, change: Callable[[Tensor], Tensor]) -> KeyRangesMask:
    padding = None if mask.padding is None else change(mask.padding)
    return KeyRangesMask(change(mask.ranges), mask.shape[-1], padding, mask.dtype)


def _piece(
    mask: KeyRangesMask, dim: int = 0, start: int | None = None, end: int | None = None,
    step: int = 1,
) -> KeyRangesMask | None:  # fmt: skip
    """Some rows, queries or keys; None if there is no such mask of ranges."""
    dim, keys = dim % 4, mask.shape[-1]
    ranges, padding = mask.ranges, mask.padding
    if dim != 3:
        ranges = _aten.slice.Tensor(ranges, dim, start, end, step)
        if padding is not None and dim == 0:
            padding = _aten.slice.Tensor(padding, dim, start, end, step)
        return KeyRangesMask(ranges, keys, padding, mask.dtype)
    if step != 1:
        return None
    start, end, _ = slice(start, end).indices(keys)
    keys = max(0, end - start)
    padding = None if padding is None else padding[:, start:end]
    return KeyRangesMask((ranges - start).clamp(0, keys), keys, padding, mask.dtype)
