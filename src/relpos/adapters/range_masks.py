"""Masks of transformers as ranges of keys, for `attn_implementation="relpos"`.

Query `i` sees the keys `lo..hi-1`, as in `relpos.attention(..., key_ranges=)`: causality, sliding
windows, chunks, packed sequences, blocks of an image and padding all do so, and two numbers a query
say what transformers' own masks say in `i x j`. Padding between tokens is kept beside them. A rule
by which some query sees keys on both sides of one that it does not see stays a mask of all pairs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from jaxtyping import Bool, Int64
from torch import Tensor
from transformers import PreTrainedModel, masking_utils
from transformers.utils.import_utils import is_tracing

from ..ranges import intersect_ranges
from .key_ranges_mask import KeyRangesMask
from .mask_function import slides
from .masks import has_numbers

__all__ = ["range_mask"]

# Pairs that are looked at at a time, where a mask is known as a function of them alone.
_PAIRS = 1 << 24


def range_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: int = 0,
    mask_function: Any = masking_utils.causal_mask_function,
    attention_mask: Tensor | None = None,
    **arguments: Any,
) -> Tensor | None:
    """The mask `(b, 1, i, j)` as ranges; or None, or of pairs, as SDPA's are.

    Args:
        batch_size: b.
        q_length: i, in tokens.
        kv_length: j, in tokens.
        q_offset: position of the first query; a tensor where a cache is static.
        kv_offset: position of the first key.
        mask_function: of batch, head, query and key, by their positions: whether the pair takes
            part.
        attention_mask: `(b, s)`, True for tokens, of the keys from 0 on; None: all are.
        arguments: what transformers hands to mask functions beside these.
    """
    takes_numbers = _takes_numbers(type(arguments.get("config")))
    causal = mask_function is masking_utils.causal_mask_function
    both_ways = mask_function is masking_utils.bidirectional_mask_function
    device = arguments.get("device", "cpu")
    tracing = is_tracing(attention_mask) or torch.device(device).type == "meta"
    if attention_mask is not None:
        tracing = tracing or not has_numbers(attention_mask)
    padding = _padding(attention_mask, kv_length, kv_offset, looks=not tracing)
    queries = torch.arange(q_length, device=device) + q_offset
    ranges = None
    if both_ways or causal or slides(**arguments):
        # With None some modules would see ahead: they rely on their mask alone to be causal.
        sees_all = both_ways and arguments.get("allow_is_bidirectional_skip", False)
        if causal and q_length == 1 and isinstance(q_offset, int):
            last = q_offset + 1 == kv_offset + kv_length
            sees_all = last and arguments.get("allow_is_causal_skip", True)
        if sees_all and padding is None and not tracing:
            return None
        window = None if both_ways or causal else arguments["local_size"]
        ranges = _ranges(queries - kv_offset, kv_length, causal=not both_ways, window=window)
    elif not (tracing or arguments.get("use_vmap")):
        keys = torch.arange(kv_length, device=device) + kv_offset
        ranges = _found(mask_function, batch_size, queries, keys)
    if ranges is not None:
        if padding is not None and not tracing:
            within = _within_padding(ranges, padding)
            ranges, padding = (ranges, padding) if within is None else (within, None)
        dtype = arguments.get("dtype", torch.float32) if takes_numbers else torch.bool
        ranges = ranges.expand(batch_size, -1, -1)[:, None]
        return KeyRangesMask(ranges, kv_length, padding, dtype)
    of_pairs = masking_utils.eager_mask if takes_numbers else masking_utils.sdpa_mask
    return of_pairs(
        batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask,
        **arguments,
    )  # fmt: skip


# It follows from the class: asked once, and not to be traced.
@torch.compiler.assume_constant_result
def _takes_numbers(config: type) -> bool:
    """Whether the models with such a configuration, if they are found, have no SDPA.

    Args:
        config: the class of the configuration.

    Raises:
        ValueError: if they take no attention from transformers' interface. transformers asks the
            same before it sets an implementation, but not where it makes a model with one.
    """
    model = _model_of(config)
    if model is None:
        return False
    if not model._can_set_attn_implementation():
        raise ValueError(
            f"attn_implementation='relpos': the model must take its attention from transformers' "
            f"interface, got {model.__name__}, whose code has attention of its own alone"
        )
    return not model._supports_sdpa


def _model_of(config: type) -> type[PreTrainedModel] | None:
    """A model of such a configuration in the module beside it; if there is none, the first."""
    name = config.__module__.replace(".configuration_", ".modeling_")
    return _model_in(name, config) if name in sys.modules else None


# Not of a module that may be imported later.
@cache
def _model_in(name: str, config: type) -> type[PreTrainedModel] | None:
    """The model class in the module of that name, which is imported."""
    classes = [cls for cls in vars(sys.modules[name]).values() if isinstance(cls, type)]
    models = [cls for cls in classes if issubclass(cls, PreTrainedModel) and cls.__module__ == name]
    its_own = [model for model in models if model.config_class is config]
    return next(iter(its_own or models), None)


def _padding(
    attention_mask: Tensor | None, length: int, start: int, *, looks: bool
) -> Tensor | None:
    """`(b, j)`, True for tokens; None where all are known to be."""
    padding = masking_utils.prepare_padding_mask(attention_mask, length, start)
    if padding is None:
        return None
    padding = padding[:, start : start + length].to(torch.bool)
    return None if looks and bool(padding.all()) else padding


def _ranges(
    queries: Int64[Tensor, "i"], length: int, *, causal: bool, window: int | None
) -> Int64[Tensor, "1 i 2"]:
    """The ranges of queries at these positions, counted from the first key."""
    last = (queries + 1).clamp(0, length) if causal else torch.full_like(queries, length)
    first = torch.zeros_like(queries)
    if window is not None:
        first = (queries + 1 - window).clamp(0, length)
    return torch.stack([first, last], dim=-1)[None]


def _within_padding(
    ranges: Int64[Tensor, "1 i 2"], padding: Bool[Tensor, "b j"]
) -> Int64[Tensor, "b i 2"] | None:
    """The ranges without padding; None if there is some between tokens."""
    first, last = _ends(padding)
    if bool((padding.sum(-1) != last - first).any()):
        return None
    tokens = torch.stack([first, last], dim=-1)[:, None]
    return intersect_ranges(ranges, tokens.expand(-1, ranges.shape[1], -1))


def _found(
    mask_function: Callable[..., Tensor],
    batch: int,
    queries: Int64[Tensor, "i"],
    keys: Int64[Tensor, "j"],
) -> Int64[Tensor, "b i 2"] | None:
    """The ranges of any rule, by asking it for some queries at a time; None if it has gaps."""
    batches = torch.arange(batch, device=keys.device)[:, None, None, None]
    head = torch.zeros(1, 1, 1, 1, dtype=torch.int64, device=keys.device)
    rows = max(1, _PAIRS // max(1, batch * len(keys)))
    found = []
    for some in queries.split(rows):
        seen = mask_function(batches, head, some[None, None, :, None], keys[None, None, None])
        seen = seen.expand(batch, 1, len(some), len(keys))[:, 0]
        first, last = _ends(seen)
        if bool((seen.sum(-1) != last - first).any()):
            return None
        found.append(torch.stack([first, last], dim=-1))
    return torch.cat(found, dim=1)


def _ends(seen: Bool[Tensor, "*rows j"]) -> tuple[Int64[Tensor, "*rows"], Int64[Tensor, "*rows"]]:
    """The first True of each row, and the one after the last; 0 and 0 where there is none."""
    numbers = seen.to(torch.int8)
    length = seen.shape[-1]
    first, back = numbers.argmax(-1), numbers.flip(-1).argmax(-1)
    some = seen.any(-1)
    return first * some, (length - back) * some
