"""The keys and values of the tokens seen so far, for decoding step by step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ..checks import check_floating, check_integers, check_like, check_shape

__all__ = ["KeyValueCache", "check_cache", "rollback_on_error"]


def check_cache(function: str, argument: str, cache: KeyValueCache | None) -> None:
    """Raise unless `cache` is a cache or None.

    Args:
        function: the class on whose behalf the check is made.
        argument: the argument's name as the user wrote it.
        cache: the argument.

    Raises:
        TypeError: otherwise.
    """
    if cache is not None and not isinstance(cache, KeyValueCache):
        name = cache.__name__ if isinstance(cache, type) else f"a {type(cache).__name__}"
        raise TypeError(f"{function}: {argument} must be a KeyValueCache or None, got {name}")


@contextmanager
def rollback_on_error(*caches: KeyValueCache | None) -> Iterator[None]:
    """A context in which an error leaves the caches as they were before it.

    Args:
        caches: those that may grow inside; None is passed over.

    >>> import torch
    >>> cache = KeyValueCache()
    >>> try:
    ...     with rollback_on_error(cache):
    ...         keys, values = cache.append(torch.ones(1, 2, 3, 4), torch.ones(1, 2, 3, 4))
    ...         keys @ torch.ones(7)
    ... except RuntimeError:
    ...     cache.length
    0
    """
    held = [(cache, cache._length, cache._buffers) for cache in caches if cache is not None]
    try:
        yield
    except BaseException:
        # What was appended lies behind the earlier length, or in other buffers.
        for cache, length, buffers in held:
            cache._length, cache._buffers = length, buffers
        raise


class KeyValueCache:
    """One layer's keys and values, in buffers that grow by doubling; holds no graph.

    >>> import torch
    >>> cache = KeyValueCache()
    >>> keys, values = cache.append(torch.ones(1, 2, 3, 4), torch.ones(1, 2, 3, 4))
    >>> cache.length
    3
    """

    def __init__(self) -> None:
        self._length = 0
        self._buffers: tuple[Tensor, Tensor] | None = None

    @property
    def length(self) -> int:
        """Number of tokens held: the position of the next one."""
        return self._length

    def append(
        self, k: Float[Tensor, "b g i d"], v: Float[Tensor, "b g i dv"]
    ) -> tuple[Float[Tensor, "b g j d"], Float[Tensor, "b g j dv"]]:
        """All keys and values so far, the new ones last, detached: for inference only.

        Args:
            k: keys of the new tokens, before any position acts on them.
            v: their values.

        Returns:
            Views that later calls do not change.

        Raises:
            ShapeError: if `k` or `v` does not continue what is held.
        """
        check_floating("KeyValueCache.append", "k", k, "b g i d")
        check_floating(
            "KeyValueCache.append", "v", v, "b g i dv",
            {"b": k.shape[0], "g": k.shape[1], "i": k.shape[2]},
        )  # fmt: skip
        new = {"k": k.detach(), "v": v.detach()}
        if self._buffers is not None:
            self._check_continues(new)
        keys, values = (
            _write_at(buffer, x, self._length)
            for buffer, x in zip(self._buffers or (None, None), new.values(), strict=True)
        )
        self._buffers, self._length = (keys, values), self._length + k.shape[2]
        return keys[:, :, : self._length], values[:, :, : self._length]

    def reset(self) -> None:
        """Forget everything, and free the memory."""
        self._length, self._buffers = 0, None

    def reorder(self, index: Int64[Tensor, "b_new"]) -> None:
        """Keep the batch entries `index`, in that order, as a beam search asks for.

        Args:
            index: numbers of batch entries; one may come several times.

        Raises:
            ShapeError: if `index` is no line of integers.
            TypeError: if it is no tensor.
        """
        check_shape("KeyValueCache.reorder", "index", index, "b_new")
        check_integers("KeyValueCache.reorder", "index", index)
        if self._buffers is not None:
            keys, values = (buffer.index_select(0, index.long()) for buffer in self._buffers)
            self._buffers = (keys, values)

    def _check_continues(self, new: dict[str, Tensor]) -> None:
        assert self._buffers is not None
        for (name, x), held in zip(new.items(), self._buffers, strict=True):
            b, g, _, d = held.shape
            check_floating("KeyValueCache.append", name, x, "b g i d", {"b": b, "g": g, "d": d})
            check_like("KeyValueCache.append", name, x, held, "the tokens before are")


def _write_at(buffer: Tensor | None, x: Tensor, start: int) -> Tensor:
    """`buffer` with `x` written from token `start` on; another buffer if it does not fit."""
    needed = start + x.shape[2]
    # What was made under `inference_mode` may not be written to outside it.
    frozen = buffer is not None and buffer.is_inference() and not torch.is_inference_mode_enabled()
    if buffer is None or frozen or buffer.shape[2] < needed:
        larger = x.new_empty(*x.shape[:2], max(needed, 2 * start), x.shape[3])
        if buffer is not None:
            larger[:, :, :start] = buffer[:, :, :start]
        buffer = larger
    buffer[:, :, start:needed] = x
    return buffer
