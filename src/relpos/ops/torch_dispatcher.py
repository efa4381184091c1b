"""Whether torch's dispatcher may be passed by: where nobody is to be told of operators."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn import Parameter

from .transforms import is_traced

# Torch's own, which another version of it may move.
try:
    from torch._C import _len_torch_dispatch_stack as _modes
except ImportError:

    def _modes() -> int:
        return 1


__all__ = ["PLAIN_TENSORS", "has_no_modes", "may_pass_by_dispatcher"]

#: The classes of usual tensors, for which torch calls no Python.
PLAIN_TENSORS = (Tensor, Parameter)


def may_pass_by_dispatcher(tensors: Sequence[Tensor]) -> bool:
    """Whether a call has nobody to tell: no tracing or dispatch mode, usual tensors in memory."""
    return has_no_modes() and all(map(_is_plain, tensors))


def _is_plain(x: Tensor) -> bool:
    """Whether its numbers lie in memory as they are: else the dispatcher makes such a tensor."""
    return type(x) in PLAIN_TENSORS and not (x.is_meta or x.is_neg() or x._is_zerotensor())


def has_no_modes() -> bool:
    """Whether nobody is told of operators, by tracing or by a dispatch mode."""
    return not is_traced() and _modes() == 0
