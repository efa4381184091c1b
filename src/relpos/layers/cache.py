"""The keys and values of the tokens seen so far, for decoding step by step."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from ..checks import check_count, check_floating, check_integers, check_like, check_shape
from ..ops.locality import Window

__all__ = ["KeyValueCache", "check_cache", "rollback_on_error"]

_State = tuple[int, int, int, int, tuple[Tensor, Tensor] | None, bool]


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
    # What is appended lies behind the earlier length, or in other buffers.
    before = [(cache, cache._state()) for cache in caches if cache is not None]
    try:
        yield
    except BaseException:
        for cache, state in before:
            cache._restore(state)
        raise


class KeyValueCache:
    """One layer's keys and values, in buffers that grow by doubling; holds no graph.

    `copy.copy` gives a cache that goes on from the same tokens by itself: the two share memory
    until either of them grows.

    A layer with a window keeps as many tokens as its queries can see: memory then stays in the
    order of the window, and each token is copied once more on average. In a program of
    `torch.export` or `torch.onnx.export`, which makes its caches itself, layers drop nothing, and
    all is copied at each call.

    >>> import torch
    >>> cache, new = KeyValueCache(), torch.ones(1, 2, 3, 4)
    >>> keys, values = cache.append(new, new)
    >>> keys, values = cache.append(new, new, start=2)
    >>> cache.start, cache.length, keys.shape[2]
    (2, 6, 4)
    """

    def __init__(self) -> None:
        self._start = self._length = 0
        # Position of the first token of the buffers, and of the first one of the last call.
        self._base = self._last_call = 0
        self._buffers: tuple[Tensor, Tensor] | None = None
        # Whether a copy has the same buffers, so that neither may write there.
        self._shared = False
        self._made_in_program = torch.compiler.is_exporting()
        self._layer: weakref.ref[nn.Module] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_layer": None}  # a copy goes with a copy of the layer

    def __copy__(self) -> KeyValueCache:
        self._shared = self._buffers is not None
        copied = type(self).__new__(type(self))
        vars(copied).update(self.__getstate__())
        return copied

    @property
    def length(self) -> int:
        """Number of tokens appended so far: the position of the next one."""
        return self._length

    @property
    def start(self) -> int:
        """Position of the first token held: as many were dropped before it."""
        return self._start

    @property
    def keys(self) -> Float[Tensor, "b g j d"] | None:
        """The keys held, of the tokens from `start` on, before any position acts on them.

        A view; None before the first call of `append`.
        """
        return None if self._buffers is None else self._held(self._buffers[0])

    @property
    def values(self) -> Float[Tensor, "b g j dv"] | None:
        """The values held, as `keys`."""
        return None if self._buffers is None else self._held(self._buffers[1])

    def first_seen(self, queries: int, new: int, window: Window | None) -> int:
        """Position of the first key that a query of the next or of a later call may see.

        0 in an exported program, whose layers drop nothing.

        Args:
            queries: of the next call, its last positions.
            new: keys that it appends.
            window: of the layer.
        """
        # An exported program is one for all lengths: it cannot ask how many lie behind the window.
        left = None if window is None or torch.compiler.is_exporting() else window[0]
        first_query = self._length + new - queries
        return 0 if left is None else max(0, min(first_query - left, self._length))

    def claim(self, layer: nn.Module) -> None:
        """Say whose keys and values are appended from now on; not in code that is compiled.

        Args:
            layer: that calls `append` next.

        Raises:
            ValueError: if there are tokens of another layer.
        """
        if torch.compiler.is_compiling():
            return
        other = None if self._layer is None else self._layer()
        if self._length and other is not None and other is not layer:
            raise ValueError(
                f"{type(layer).__name__}: cache must be one layer's, got one with "
                f"{self._length} tokens of another layer: each has a KeyValueCache of its own; a "
                "copy of the layer goes on with copy.copy(cache)"
            )
        self._layer = weakref.ref(layer)

    def append(
        self, k: Float[Tensor, "b g i d"], v: Float[Tensor, "b g i dv"], *, start: int = 0
    ) -> tuple[Float[Tensor, "b g j d"], Float[Tensor, "b g j dv"]]:
        """The keys and values from `start` on, the new ones last.

        Gradients flow to the new ones, where any are wanted, and not to those of earlier calls,
        which are held without a graph, as Transformer-XL's memory is (Dai et al. 2019, section
        3.2). Then all are copied at each call: decode under `torch.inference_mode()`.

        Args:
            k: keys of the new tokens, before any position acts on them.
            v: their values.
            start: position of the first token that is still wanted; those before it are dropped
                for good.

        Returns:
            Views that later calls do not change, but for tokens that are cropped; copies where
            gradients are wanted.

        Raises:
            ShapeError: if `k` or `v` does not continue what is held.
            ValueError: if tokens from `start` on were dropped before, as by another layer, or
                there is no such position yet; or if a program is exported and the cache was made
                before: its tokens would be constants of the program, which would not keep others.
        """
        if torch.compiler.is_exporting() and not self._made_in_program:
            raise ValueError(
                "KeyValueCache.append: in a program that is exported, a cache must be made by the "
                "program, from keys and values that it is given and gives back, as it keeps none "
                f"(docs/ecosystem.md), got one that was made before, of {self._length} tokens"
            )
        check_floating("KeyValueCache.append", "k", k, "b g i d")
        check_floating(
            "KeyValueCache.append", "v", v, "b g i dv",
            {"b": k.shape[0], "g": k.shape[1], "i": k.shape[2]},
        )  # fmt: skip
        new = {"k": k.detach(), "v": v.detach()}
        if self._buffers is not None:
            self._check_continues(new)
        start = self._check_start(start)
        end = self._length + k.shape[2]
        if torch.compiler.is_exporting():
            # A program for all lengths cannot ask whether there is room for one more.
            buffers, base = self._with_new(new), self._base
        else:
            buffers, base = self._with_room(new, start)
            for buffer, x in zip(buffers, new.values(), strict=True):
                buffer[:, :, self._length - base : end - base] = x
        self._restore((start, end, base, self._length, buffers, False))
        keys, values = (self._held(buffer) for buffer in buffers)
        if torch.is_grad_enabled() and (k.requires_grad or v.requires_grad):
            past = keys.shape[2] - k.shape[2]
            keys, values = (
                torch.cat([held[:, :, :past], x], 2) for held, x in ((keys, k), (values, v))
            )
        return keys, values

    def crop(self, length: int) -> None:
        """Forget the tokens from position `length` on, as those that speculative decoding rejects.

        The next tokens take their place in the same memory: what `append` returned of them changes
        then. They must be as those before are; `reset` frees the memory.

        Args:
            length: number of tokens to keep, with those that a window has dropped. Where one has,
                tokens of the last call alone can be forgotten: queries at earlier positions would
                see what was dropped.

        Raises:
            ValueError: if there are not as many, or too few are left.

        >>> import torch
        >>> cache, new = KeyValueCache(), torch.ones(1, 2, 3, 4)
        >>> keys, values = cache.append(new, new)
        >>> cache.crop(1)
        >>> cache.length
        1
        """
        length, rule = check_count("KeyValueCache.crop", "length", length, least=0), None
        if length > self._length:
            rule = f"at most {self._length}, the number of tokens so far"
        elif self._start and length < self._last_call:
            rule = f"at least {self._last_call}, as a layer with a window dropped what others see"
        if rule is not None:
            raise ValueError(f"KeyValueCache.crop: length must be {rule}, got {length}")
        self._length = length

    def reset(self) -> None:
        """Forget everything, count from 0 again, and free the memory."""
        self._restore((0, 0, 0, 0, None, False))

    def reorder(self, index: Int64[Tensor, "b_new"]) -> None:
        """Keep the batch entries `index`, in that order, as a beam search asks for.

        Args:
            index: numbers of batch entries; one may come several times.

        Raises:
            ShapeError: if `index` is no line of integers.
            TypeError: if it is no tensor.
            ValueError: if there is no such batch entry.
        """
        check_shape("KeyValueCache.reorder", "index", index, "b_new")
        check_integers("KeyValueCache.reorder", "index", index)
        if self._buffers is not None:
            try:
                keys, values = (buffer.index_select(0, index.long()) for buffer in self._buffers)
            except IndexError as error:  # on the CPU; others do not look
                raise ValueError(
                    "KeyValueCache.reorder: index must be numbers of batch entries, "
                    f"0..{self._buffers[0].shape[0] - 1}, got {index.tolist()}"
                ) from error
            self._buffers, self._shared = (keys, values), False

    def _check_continues(self, new: dict[str, Tensor]) -> None:
        assert self._buffers is not None
        for (name, x), held in zip(new.items(), self._buffers, strict=True):
            b, g, _, d = held.shape
            check_floating("KeyValueCache.append", name, x, "b g i d", {"b": b, "g": g, "d": d})
            check_like("KeyValueCache.append", name, x, held, "the tokens before are")

    def _check_start(self, start: int) -> int:
        start, rule = check_count("KeyValueCache.append", "start", start, least=0), None
        if start < self._start:
            rule = f"at least {self._start}, as a layer with a window dropped the tokens before"
        elif start > self._length:
            rule = f"at most {self._length}, the position of the next token"
        if rule is not None:
            raise ValueError(f"KeyValueCache.append: start must be {rule}, got {start}")
        return start

    def _held(self, buffer: Tensor) -> Tensor:
        return buffer[:, :, self._start - self._base : self._length - self._base]

    def _with_new(self, new: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Buffers of what is held and of `new`, without further room."""
        if self._buffers is None:
            return new["k"].clone(), new["v"].clone()
        held = (x[:, :, : self._length - self._base] for x in self._buffers)
        keys, values = (torch.cat(pair, 2) for pair in zip(held, new.values(), strict=True))
        return keys, values

    def _with_room(self, new: dict[str, Tensor], start: int) -> tuple[tuple[Tensor, Tensor], int]:
        """Buffers that have room for `new`, and the position of their first token.

        Those there are, or else larger or smaller ones with what is held from `start` on.
        """
        held, i = self._buffers, new["k"].shape[2]
        fits = held is not None and self._length - self._base + i <= held[0].shape[2]
        if held is not None and fits and not self._shared and not _frozen(held[0]):
            return held, self._base
        count = self._length - start
        room = max(count + i, 2 * count)
        keys, values = (x.new_empty(*x.shape[:2], room, x.shape[3]) for x in new.values())
        if held is not None:
            first = start - self._base
            for buffer, x in zip((keys, values), held, strict=True):
                buffer[:, :, :count] = x[:, :, first : first + count]
        return (keys, values), start

    def _state(self) -> _State:
        return (
            self._start, self._length, self._base, self._last_call, self._buffers, self._shared
        )  # fmt: skip

    def _restore(self, state: _State) -> None:
        self._start, self._length, self._base, self._last_call, self._buffers, self._shared = state


def _frozen(buffer: Tensor) -> bool:
    """Whether it was made under `inference_mode` and may not be written to outside it.

    `torch.compile` cannot trace the question, so that compiled steps never ask.
    """
    if torch.compiler.is_compiling():
        return False
    return buffer.is_inference() and not torch.is_inference_mode_enabled()
