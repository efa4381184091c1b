"""A model whose layers have this rank's tokens of every sequence.

    mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("dp", "cp"))
    parallelize_module(model, mesh["cp"], ContextParallel())
    output = model(shard(tokens, mesh["cp"]))

Everything but attention and what is added at the input acts on tokens one by one, and needs no
change. Gradients of parameters are those of this rank's tokens: they are averaged over the ranks of
context and data together, as by `DistributedDataParallel` or `fully_shard` over both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ParallelStyle

from ...adapters.adapted import Adapted
from ...checks import check_count, check_flag, check_floating, check_module, check_shape
from ...layers import MultiheadAttention
from ...layers.masks import merge_masks
from ...ops.locality import AnyKeyRanges
from ...positions import LearnedAbsolute, Sinusoidal
from ...positions.handover import resolve_scale
from ...terms import GridTerms, Terms
from ..api import Method, attention
from ..head_parallel.cut_layer import CutLayer
from ..layout import (
    KeyLayout,
    Layout,
    Span,
    check_key_layout,
    check_layout,
    spans_of_shards,
    unshard,
)
from ..methods.attend import attend
from ..methods.choice import check_method
from ..positions import CutTokens, apply_cut_position
from ..ranks.agreement import agree, fail_together
from ..ranks.group import AnyGroup, Ranks, resolve_group
from ..ranks.not_compiled import not_compiled
from .around_attention import check_around, cut_around, join_around
from .own_schemes import check_own_scheme
from .parakeet import check_parakeet_layout, cut_encoder, is_parakeet, join_encoder

__all__ = ["ContextParallel"]


class ContextParallel(ParallelStyle):
    """Sequences are cut along their tokens, which every rank gives and gets as `shard` cuts them.

    For `torch.distributed.tensor.parallel.parallelize_module`: it changes, in the module it is
    given and all that it contains, each `relpos.layers.MultiheadAttention`, which then attends by
    `relpos.distributed.attention`, and each `Sinusoidal` and `LearnedAbsolute`, which then count
    positions in the whole sequence. Of what `relpos.adapters.adapt` has adapted it changes the
    attention of T5 and its kin, of DeBERTa, and encoders of Parakeet (`parakeet.py`), and what such
    a model makes of its tokens by where they are (`around_attention.py`).

    A layer's `key_padding_mask` and `documents` are those of this rank's keys, the rows of
    `attn_mask` and `key_ranges` those of its queries, whose columns and numbers are those of the
    whole sequence. `need_weights` must be False.

    Other attention in the module, known by `Attention`, `Attn` or `MHA` in its class's name, is
    refused, unless it, or what it is in, has the attribute `acts_on_cut_tokens = True`: because it
    acts on tokens one by one, or calls `relpos.distributed.attention` itself.

    Args:
        layout: `"zigzag"`, for which causal work is even, or `"contiguous"`.
        method: as in `relpos.distributed.attention`.
        key_layout: that of the keys where they are those of another sequence, an encoder's output;
            None: `layout`. `"whole"`: every rank has all of them, the same. It is for layers of
            cross-attention alone: `{"cross": ContextParallel(key_layout="whole")}`.
        check: as in `relpos.distributed.attention`.

    Raises:
        ValueError: if an argument is none of those, or a module has nothing to change, or attention
            that cannot be changed.
        TypeError: if the mesh is no mesh.
    """

    def __init__(
        self,
        *,
        layout: Layout = "zigzag",
        method: Method = "auto",
        key_layout: KeyLayout | None = None,
        check: bool = True,
    ) -> None:
        super().__init__()
        check_layout("ContextParallel", "layout", layout)
        check_key_layout("ContextParallel", key_layout)
        check_method("ContextParallel", method)
        check_flag("ContextParallel", "check", check)
        self.layout: Layout = layout
        self.method: Method = method
        self.key_layout: KeyLayout | None = key_layout
        self.check = check

    def apply_to(self, module: nn.Module, group: AnyGroup) -> nn.Module:
        """Change a module in place, with any group; `parallelize_module` does it with a mesh.

        Args:
            module: of which layers are.
            group: a process group, or a mesh of one dimension or two, as `attention` takes them.
        """
        ranks = resolve_group("ContextParallel", group, most_dims=2)
        check_module("ContextParallel", "module", module)
        parts = list(module.modules())
        encoders = [part for part in parts if is_parakeet(part)]
        for part in parts:
            if isinstance(part, CutLayer) and part.ranks.shares_ranks(ranks):
                raise ValueError(
                    "ContextParallel: group must be another dimension of the mesh than that of "
                    "HeadParallel, got one with the same ranks"
                )
            reason = part.refuses_cut() if isinstance(part, Adapted) else None
            if reason is not None:
                raise ValueError(
                    f"ContextParallel: module must have no {type(part).__name__}, whose sequence "
                    f"cannot be cut: {reason}"
                )
        adapted = any(isinstance(part, Adapted) and part.scheme for part in parts)
        check_around(module, adapted=adapted)
        if adapted and self.key_layout not in (None, self.layout):
            raise ValueError(
                "ContextParallel: key_layout must be None or the layout for adapted models, "
                f"whose encoder and decoder are cut alike, got {self.key_layout!r}"
            )
        if encoders:
            check_parakeet_layout(self.layout)
        changed = [part for part in parts if self._change(part, ranks)]
        for encoder in encoders:
            cut_encoder(encoder, ranks)
        if adapted:
            cut_around(module, ranks, self.layout, partial(_own_spans, ranks, self))
        if not changed and not encoders:
            raise ValueError(
                "ContextParallel: module must have a relpos.layers.MultiheadAttention, Sinusoidal, "
                f"LearnedAbsolute, or an adapted attention, got {type(module).__name__} without any"
            )
        return module

    def _change(self, part: nn.Module, ranks: Ranks) -> bool:
        """Change a module if it is one to be changed."""
        if isinstance(part, MultiheadAttention):
            part.attend_elsewhere = _AttendAcrossRanks(ranks, self)
        elif isinstance(part, LearnedAbsolute | Sinusoidal):
            part.forward = partial(_add_at_input, part, ranks, self)
        elif isinstance(part, Adapted) and part.scheme:
            part.attend_elsewhere = _AttendAdapted(ranks, self)
            part.least_heads = self._least_heads(ranks)
        else:
            return False
        return True

    def _least_heads(self, ranks: Ranks) -> int:
        """How many heads a call must have at least."""
        if self.method == "heads":
            return ranks.size
        dims = ranks.outer_and_inner
        return 1 if dims is None else dims[1].size

    def remove_from(self, module: nn.Module) -> nn.Module:
        """Undo `apply_to`: the layers attend on one device again.

        Args:
            module: that was changed.
        """
        check_module("ContextParallel", "module", module)
        for part in module.modules():
            if isinstance(part, MultiheadAttention):
                part.attend_elsewhere = None
            elif isinstance(part, LearnedAbsolute | Sinusoidal):
                vars(part).pop("forward", None)
            elif isinstance(part, Adapted):
                for name in ("attend_elsewhere", "least_heads"):
                    vars(part).pop(name, None)
                if is_parakeet(part):
                    join_encoder(part)
        join_around(module)
        return module

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return self.apply_to(module, device_mesh)

    def __repr__(self) -> str:
        return (
            f"ContextParallel(layout={self.layout!r}, method={self.method!r}, "
            f"key_layout={self.key_layout!r}, check={self.check})"
        )


@dataclass(frozen=True)
class _AttendAdapted:
    """What an adapted attention calls in place of `relpos.attention`."""

    ranks: Ranks
    style: ContextParallel

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        terms: Terms | GridTerms,
        *,
        mask: Tensor | None,
        **options: Any,
    ) -> Any:
        style = self.style
        return attention(
            q, k, v, terms, mask=self._mask(mask, k), group=self.ranks.given, layout=style.layout,
            key_layout=style.key_layout, method=style.method, check=style.check, **options,
        )  # fmt: skip

    @not_compiled
    def _mask(self, mask: Tensor | None, k: Tensor) -> Tensor | None:
        """The mask; of padding as every rank has it, where any of them has padding to hide."""
        if not k.is_cpu:  # where nobody looks whether there is
            return mask
        of_keys = mask is not None and mask.dtype == torch.bool and mask.shape[1:3] == (1, 1)
        said = [(of_keys or mask is None, k.shape[2])] * self.ranks.size
        if self.style.check:
            said = agree(self.ranks, "attention", {}, (of_keys, k.shape[2]))
        if not (of_keys or mask is None) or not any(has for has, _ in said):
            return mask
        sizes = (k.shape[0], 1, 1, k.shape[2])
        mask = k.new_ones(sizes, dtype=torch.bool) if mask is None else mask.expand(sizes)
        if sum(keys for _, keys in said) > self.ranks.size:
            return mask
        # A single key may be taken for one that stands for all.
        return unshard(mask, self.ranks.given, self.style.layout, dim=3)


@dataclass(frozen=True)
class _AttendAcrossRanks:
    """What a layer calls in place of `relpos.attention`."""

    ranks: Ranks
    style: ContextParallel

    @not_compiled
    def __call__(
        self,
        layer: MultiheadAttention,
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
        given = {
            "key_padding_mask": key_padding_mask, "attn_mask": attn_mask, "documents": documents,
            "query_documents": query_documents, "key_ranges": key_ranges,
        }  # fmt: skip
        together = partial(fail_together, self.ranks, "MultiheadAttention", check=self.style.check)
        if self_attention and self._key_layout != self.style.layout:
            with together():
                raise ValueError(
                    "MultiheadAttention: key_layout of ContextParallel must be None or the layout "
                    f"where keys are the queries' own tokens, got {self._key_layout!r}"
                )
        tokens = self._tokens(q, k, query_start, given)
        b, h, i, j = q.shape[0], q.shape[1], q.shape[2], k.shape[2]
        # As `attn_mask` is. A single key may be taken for one that stands for all.
        of_all_keys = attn_mask is not None or tokens.num_keys <= self.ranks.size
        key_layout = self._key_layout
        if of_all_keys and key_padding_mask is not None and key_layout != "whole":
            with together():
                check_shape(
                    "MultiheadAttention", "key_padding_mask", key_padding_mask, "b j",
                    {"b": b, "j": j},
                )  # fmt: skip
            key_padding_mask = unshard(key_padding_mask, self.ranks.given, key_layout, dim=1)
        with together():
            columns = tokens.num_keys if of_all_keys else j
            mask = merge_masks(key_padding_mask, attn_mask, sizes=(b, h, i, columns))
            # Resolved here too, since the position may have been given later.
            scale = resolve_scale(
                "MultiheadAttention", layer.position, layer.scale, width=q.shape[3]
            )
            check_own_scheme("ContextParallel", layer.position_of_heads, q, k, x)
            q, k, terms = apply_cut_position(
                "ContextParallel", layer.position_of_heads, q, k, x, tokens
            )
        heads = {}
        if isinstance(layer, CutLayer):
            heads = {"all_heads": layer.all_heads, "first_head": layer.first_head}
        output, _ = attend(
            q, k, v, terms, group=self.ranks.given, layout=self.style.layout,
            key_layout=key_layout, method=self.style.method, causal=causal, mask=mask,
            dropout=layer.dropout if layer.training else 0.0, scale=scale,
            query_start=tokens.query_start, documents=documents,
            query_documents=query_documents, window=layer.window, key_ranges=key_ranges,
            softcap=layer.softcap, backend="auto", return_lse=False, check=self.style.check,
            **heads,
        )  # fmt: skip
        return output

    @property
    def _key_layout(self) -> KeyLayout:
        return self.style.key_layout or self.style.layout

    def _tokens(
        self, q: Tensor, k: Tensor, query_start: int | None, given: dict[str, Tensor | None]
    ) -> CutTokens:
        """This rank's tokens, once it is sure that all ranks have the same masks and the like."""
        facts: dict[str, object] = {
            name: f"a tensor of {x.dtype}" if isinstance(x, Tensor) else type(x).__name__
            for name, x in given.items()
        }
        facts |= {"query_start": query_start, "layout": (self.style.layout, self._key_layout)}
        sides: dict[str, tuple[int, KeyLayout]] = {
            "query": (q.shape[2], self.style.layout), "key": (k.shape[2], self._key_layout)
        }  # fmt: skip
        (queries, num_queries), (keys, num_keys) = _spans(
            self.ranks, "MultiheadAttention", sides, facts, check=self.style.check
        )
        start = num_keys - num_queries if query_start is None else query_start
        return CutTokens(queries, keys, num_queries, num_keys, start)


def _spans(
    ranks: Ranks,
    function: str,
    sides: Mapping[str, tuple[int, KeyLayout]],
    facts: Mapping[str, object],
    *,
    check: bool,
) -> list[tuple[tuple[Span, ...], int]]:
    """Where this rank's tokens lie, and how many there are on all ranks.

    Args:
        ranks: of the group.
        function: the public class.
        sides: by the argument, how many tokens are here and how they are cut.
        facts: what must be the same on every rank.
        check: whether ranks compare them; without, all have as many tokens.
    """
    own = tuple(count for count, _ in sides.values())
    said = agree(ranks, function, facts, own) if check else [own] * ranks.size
    found = []
    for (argument, (_, layout)), counts in zip(sides.items(), zip(*said, strict=True), strict=True):
        spans, length = spans_of_shards(function, argument, counts, layout)
        found.append((spans[ranks.rank], length))
    return found


def _own_spans(ranks: Ranks, style: ContextParallel, count: int) -> tuple[tuple[Span, ...], int]:
    """Where so many tokens of an adapted model lie, and how many all ranks have."""
    sides: dict[str, tuple[int, KeyLayout]] = {"input_ids": (count, style.layout)}
    return _spans(ranks, "ContextParallel", sides, {}, check=style.check)[0]


@not_compiled
def _add_at_input(
    position: LearnedAbsolute | Sinusoidal,
    ranks: Ranks,
    style: ContextParallel,
    x: Tensor,
    start: int = 0,
) -> Tensor:
    """The scheme's own `forward` for each run of this rank's tokens."""
    name = type(position).__name__
    # As the scheme does, which a later run of tokens would not show.
    least = 0 if isinstance(position, LearnedAbsolute) else None
    with fail_together(ranks, name, check=style.check):
        start = check_count(name, "start", start, least=least)
        check_floating(name, "x", x, "b i e", {"e": position.dim})
    sides: dict[str, tuple[int, KeyLayout]] = {"x": (x.shape[1], style.layout)}
    ((runs, _),) = _spans(ranks, name, sides, {"start": start}, check=style.check)
    forward: Any = type(position).forward
    parts, at = [], 0
    for first, end in runs:
        parts.append(forward(position, x[:, at : at + end - first], start + first))
        at += end - first
    return torch.cat(parts, 1) if parts else forward(position, x, max(start, 0))
