"""What the schemes share whose one term is a bias over the offsets along all axes at once."""

from __future__ import annotations

from abc import abstractmethod
from math import prod
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from ..ops import relative_logits
from ..terms import GridTerms
from .base import Position

__all__ = ["JointBiasPosition"]


class JointBiasPosition(Position):
    """A scheme for a window of tokens with one bias, of `heads`, after `prefix` tokens."""

    reads_shape: ClassVar[bool] = True
    heads: int
    prefix: int

    @abstractmethod
    def _terms(self, shape: tuple[int, ...] | None) -> GridTerms:
        """The bias for a window; None means the one this was made for."""

    def dense(self, shape: tuple[int, ...] | None = None) -> Float[Tensor, "h i j"]:
        """The bias of every pair of tokens, the prefix among them, as a plain tensor.

        Args:
            shape: another window; None means the one this was made for.

        Raises:
            ValueError: if `shape` has another number of axes.
        """
        terms = self._terms(shape)
        assert terms.joint_bias is not None
        tokens = terms.joint_bias.new_zeros(1, self.heads, self.prefix + prod(terms.shape), 1)
        return relative_logits(tokens, tokens, terms)[0]
