"""Calls that were made before: one that is alike in all but its tensors' numbers is made at once.

Whether arguments fit each other, which backend takes them, and what its operator is given besides
tensors, follows from their kinds, from settings and from how tensors lie in memory. To find that
out takes longer than a short call, so it is kept. Not for a call that is traced, transformed or
seen by a dispatch mode, that has subclasses of tensors, documents or ranges of keys, or a setting
that is no plain number of Python.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import fields

import torch
from torch import Tensor

from ..autocast import without_autocast
from ..terms import GridTerms, Terms
from .bounded_cache import BoundedCache
from .dispatch import Backend
from .inputs import Inputs, flatten_1d_grid, in_autocast_dtype, with_four_axes
from .layouts import layout_of
from .locality import AnyWindow
from .operator_call import OperatorCall
from .torch_dispatcher import PLAIN_TENSORS, has_no_modes
from .transforms import is_transformed, may_have_tangents

__all__ = ["KNOWN", "KnownCall", "find_call"]

# Of `Inputs`: what follows from a call's key, and what no call has that is kept.
_TENSORS = {"q", "k", "v", "terms", "mask"}
_NONE_OF_THESE = dict.fromkeys(
    ("documents", "query_documents", "key_ranges", "axis_ranges", "seed")
)
_SETTINGS = tuple(
    x.name for x in fields(Inputs) if x.name not in _TENSORS and x.name not in _NONE_OF_THESE
)
_MOST = 1024  # calls that are known at a time
_DEVICES = ("cpu", "cuda")
# Others, such as tensors, may be written to.
_PLAIN_SETTINGS = frozenset({bool, int, float, str, type(None)})


class KnownCall:
    """What was found of a call; what its operator is given, once it is made again.

    Args:
        backend: that was chosen.
        inputs: as it was given them. None of their tensors is kept.
        autocast: whether autocast was on.
    """

    __slots__ = ("_autocast", "_backend", "_operator", "_settings")

    def __init__(self, backend: Backend, inputs: Inputs, *, autocast: bool) -> None:
        self._backend, self._autocast = backend, autocast
        self._settings = tuple([getattr(inputs, name) for name in _SETTINGS])
        self._operator: OperatorCall | None = None

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, terms: Terms | GridTerms, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Output and log-sum-exp of a call with the same key."""
        if not self._autocast:
            return self._run(q, k, v, terms, mask)
        q, k, v, terms = in_autocast_dtype(q, k, v, terms)
        with without_autocast(q):
            return self._run(q, k, v, terms, mask)

    def _run(
        self, q: Tensor, k: Tensor, v: Tensor, terms: Terms | GridTerms, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        terms = flatten_1d_grid(terms)
        if mask is not None:
            mask = with_four_axes(mask)
        operator = self._operator
        if operator is None:
            tensors = {"q": q, "k": k, "v": v, "mask": mask} | _NONE_OF_THESE
            settings = dict(zip(_SETTINGS, self._settings, strict=True))
            inputs = Inputs(terms=terms, **tensors, **settings)
            # A backend whose calls are those of an operator has this function.
            operator_call = getattr(self._backend, "operator_call", lambda _: None)
            operator = self._operator = operator_call(inputs)
            if operator is None:
                return self._backend.attention(inputs)
        assert isinstance(terms, Terms)
        return operator(q, k, v, terms, mask)


#: Of this process.
KNOWN: BoundedCache[KnownCall] = BoundedCache(_MOST)


def find_call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    terms: Terms | GridTerms,
    mask: Tensor | None,
    window: AnyWindow,
    *settings: object,
) -> tuple[Hashable | None, KnownCall | None]:
    """The key of a call, None where it is not to be kept, and what is known of calls with that key.

    Args:
        q: as `relpos.attention` has it, unchecked, like all that follow.
        k: likewise.
        v: likewise.
        terms: likewise.
        mask: likewise.
        window: likewise.
        *settings: the others, but for documents and ranges, in an order of their own.
    """
    if not has_no_modes() or is_transformed() or may_have_tangents():
        return None, None
    kinds = tuple([type(x) for x in settings])  # 1 == 1.0 == True
    if not _PLAIN_SETTINGS.issuperset(kinds):
        return None, None
    try:
        key = (
            _layout(q), _layout(k), _layout(v), _of_terms(terms),
            None if mask is None else _layout(mask),
            None if window is None else _of_window(window), settings, kinds, _state(q),
        )  # fmt: skip
        return key, KNOWN.get(key)
    except (AttributeError, RuntimeError, TypeError):  # some argument is of no kind that is kept
        return None, None


def _layout(x: Tensor) -> Hashable:
    """The layout of a usual tensor, with strides, in memory as it is; else an error."""
    if type(x) not in PLAIN_TENSORS or x.is_neg():
        raise TypeError
    return layout_of(x)


def _of_terms(terms: Terms | GridTerms) -> Hashable:
    """How their tensors lie, and all else that they say."""
    if type(terms) is Terms:
        tables = (terms.keys, terms.queries, terms.bias, terms.values)
        q_rel = terms.q_rel
        return (
            None if q_rel is None else _layout(q_rel),
            *[None if x is None else (x.first, x.beyond, _layout(x.rows)) for x in tables],
        )
    if type(terms) is not GridTerms:
        raise TypeError
    joint_bias = terms.joint_bias
    return (
        terms.shape, terms.query_shape, terms.prefix,
        None if joint_bias is None else _layout(joint_bias),
        *[_of_terms(axis) for axis in terms.axes],
    )  # fmt: skip


def _of_window(sides: object) -> Hashable:
    """The key of a window in tokens, of those of axes, or of a side."""
    if type(sides) is tuple:
        return tuple([_of_window(side) for side in sides])
    if type(sides) not in _PLAIN_SETTINGS:
        raise TypeError
    return sides, type(sides)


def _state(q: Tensor) -> Hashable:
    """What a call goes by besides its arguments."""
    kind = q.device.type
    if kind not in _DEVICES:
        raise TypeError
    autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    precision = None
    if torch.float32 in (q.dtype, autocast):
        precision = (
            torch.backends.mkldnn.matmul.fp32_precision,  # type: ignore[attr-defined]
            torch.backends.cuda.matmul.fp32_precision,
        )
    return autocast, precision
