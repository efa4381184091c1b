"""What a layer's heads are given to where they do not attend on one device."""

from __future__ import annotations

from typing import Protocol, TypeVar

from torch import Tensor

from ..ops.locality import AnyKeyRanges
from .cache import KeyValueCache

__all__ = ["AttendElsewhere", "check_elsewhere"]

_Layer_contra = TypeVar("_Layer_contra", contravariant=True)


class AttendElsewhere(Protocol[_Layer_contra]):
    """What `MultiheadAttention` calls with its heads, `(b, h, i, d)`, and gets them from."""

    def __call__(
        self,
        layer: _Layer_contra,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        x: Tensor,
        *,
        self_attention: bool,
        causal: bool,
        key_padding_mask: Tensor | None,
        attn_mask: Tensor | None,
        query_start: int | None,
        documents: Tensor | None,
        query_documents: Tensor | None,
        key_ranges: AnyKeyRanges,
    ) -> Tensor:
        """The heads' outputs `(b, h, i, d)`, from arguments as `forward` is given them.

        `self_attention` says whether queries, keys and values are made of one tensor.
        """
        ...


def check_elsewhere(*, need_weights: bool, cache: KeyValueCache | None) -> None:
    """Raise a ValueError if a layer is asked for what it has on one device alone.

    Args:
        need_weights: as of the layer.
        cache: likewise.
    """
    refused = "need_weights must be False, got True" if need_weights else None
    if cache is not None:
        refused = "cache must be None, got one"
    if refused:
        raise ValueError(f"MultiheadAttention: over several devices {refused}")
