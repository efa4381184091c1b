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
    of it, and no more than before is held; anything else they do with it is done with the mask of
    all pairs. Only written into it cannot be; its clone is one of all pairs.

    Args:
        ranges: of each query.
        keys: j, in tokens.
        padding: True for tokens, of all keys; None: all are.
        dtype: of the mask: `torch.bool`, True for pairs that take part; or one of numbers, 0 for
            them and the least number there is for the others.
    """

    ranges: Int64[Tensor, "b 1 i 2"]
    padding: Bool[Tensor, "b j"] | None

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
        return mask

    def pairs(self) -> Tensor:
        """The mask of all pairs, `(b, 1, i, j)`."""
        keys = torch.arange(self.shape[-1], device=self.device)
        seen = (keys >= self.ranges[..., :1]) & (keys < self.ranges[..., 1:])
        if self.padding is not None:
            seen = seen & key_padding(self.padding)
        return seen if self.dtype == torch.bool else additive_mask(seen, self.dtype)

    def __repr__(self) -> str:
        return (
            f"KeyRangesMask({self.ranges!r}, keys={self.shape[-1]}, padding={self.padding!r}, "
            f"dtype={self.dtype})"
        )

    def __setitem__(self, where: object, value: object) -> None:
        raise _written_into("mask[...] = ")

    def __deepcopy__(self, memo: dict[int, object]) -> KeyRangesMask:
        return _both(self, Tensor.clone)

    def __tensor_flatten__(self) -> tuple[list[str], torch.dtype]:
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
        if op._schema.is_mutable and isinstance(args[0], KeyRangesMask):
            raise _written_into(str(op))
        kept = _kept(op, *args, **given) if isinstance(args[0], KeyRangesMask) else None
        if kept is not None:
            return kept
        args, given = pytree.tree_map_only(KeyRangesMask, KeyRangesMask.pairs, (args, given))
        return op(*args, **given)


def _written_into(by: str) -> RuntimeError:
    return RuntimeError(
        f"attn_implementation='relpos': a mask of ranges must not be written into, got {by}; its "
        "clone() may be"
    )


def _kept(op: Any, mask: KeyRangesMask, *args: Any, **kwargs: Any) -> KeyRangesMask | None:
    """What an operator makes of the mask, if that is ranges again."""
    if op in (_aten.detach.default, _aten.alias.default):
        return _both(mask, op)
    if op is _aten._to_copy.default and kwargs.pop("dtype", mask.dtype) == mask.dtype:
        return _both(mask, lambda part: op(part, **kwargs))
    if op is _aten.slice.Tensor:
        return _piece(mask, *args)
    return None


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
