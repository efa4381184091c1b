"""Dilation along the axes of a map: each group of tokens, `dilation` apart, is a map of its own."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import torch
from torch import Tensor
from torch.nn.functional import pad

__all__ = ["Dilation"]


class Dilation:
    """How a map is split into smaller ones, which are entries of the batch.

    With dilation `s` along an axis of `n` tokens, group `r` of `s` has the tokens `r`, `r + s`, and
    so on. Where `s` does not divide `n` the later groups have a token less than the first ones, and
    are padded. With more steps than tokens each token is a group.

    Args:
        grid: tokens along each axis of a map.
        dilation: of each axis.
    """

    def __init__(self, grid: tuple[int, ...], dilation: tuple[int, ...]) -> None:
        self._whole = grid
        self._dilation = dilation = tuple(map(min, dilation, grid))
        self.grid = tuple(-(-n // s) for n, s in zip(grid, dilation, strict=True))
        """Tokens along each axis of the smaller maps."""
        self._padding = [m * s - n for n, m, s in zip(grid, self.grid, dilation, strict=True)]

    def split(self, x: Tensor) -> Tensor:
        """`x (b, h, *whole, d)` as `(b * groups, h, *grid, d)`."""
        if prod(self._dilation) == 1:
            return x
        axes = len(self.grid)
        x = pad(x, (0, 0, *(side for more in self._padding[::-1] for side in (0, more))))
        parts = [size for pair in zip(self.grid, self._dilation, strict=True) for size in pair]
        x = x.reshape(*x.shape[:2], *parts, x.shape[-1])
        groups = [3 + 2 * axis for axis in range(axes)]
        return x.movedim(groups, [*range(1, axes + 1)]).flatten(0, axes)

    def join(self, x: Tensor) -> Tensor:
        """`x (b * groups, h, *grid, d)` as `(b, h, *whole, d)`."""
        if prod(self._dilation) == 1:
            return x
        axes = len(self.grid)
        x = x.unflatten(0, (x.shape[0] // prod(self._dilation), *self._dilation))
        x = x.movedim([*range(1, axes + 1)], [3 + 2 * axis for axis in range(axes)])
        for axis in range(axes):
            x = x.flatten(2 + axis, 3 + axis).narrow(2 + axis, 0, self._whole[axis])
        return x

    def ranges(self, of_axis: Callable[[int, int], Tensor], *, batch: int) -> list[Tensor]:
        """Ranges of keys for each axis of the smaller maps, `(b * groups or 1, n, 2)`.

        Args:
            of_axis: those of an axis, by its number and tokens, `(1, n, 2)`.
            batch: maps b that are split.
        """
        found = []
        for axis, (size, steps) in enumerate(zip(self.grid, self._dilation, strict=True)):
            shorter = size - 1 if self._padding[axis] else size
            whole = of_axis(axis, size)
            if shorter == size:
                found.append(whole)
                continue
            # The padding of shorter maps sees nothing and is seen by nothing.
            padded = pad(of_axis(axis, shorter), (0, 0, 0, 1))
            count = self._padding[axis]
            each = [whole] * (steps - count) + [padded] * count
            before, after = prod(self._dilation[:axis]), prod(self._dilation[axis + 1 :])
            groups = torch.cat(each).view(1, steps, 1, size, 2)
            found.append(groups.expand(batch * before, -1, after, -1, -1).flatten(0, 2))
        return found
