"""A layer of which this rank has some heads, whose outputs are summed over the ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from hashlib import blake2b
from inspect import signature
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from torch.func import functional_call
from torch.nn.functional import linear

from ...autocast import without_autocast
from ...checks import one_line
from ...errors import ShapeError
from ...jagged import is_jagged
from ...layers import KeyValueCache, MultiheadAttention
from ...layers.cache import rollback_on_error
from ...ops.dispatch import choose
from ...ops.inputs import DropoutOrigin, prepare
from ...terms import GridTerms, Terms
from ..methods.head_cut import terms_of_heads
from ..positions import check_gathered
from ..ranks.agreement import Outcome, agree, fail_together
from ..ranks.exchange import SpansOfRanks
from ..ranks.facts import described
from ..ranks.group import Ranks
from ..ranks.not_compiled import not_compiled
from .exchange_autograd import copy_to_ranks, gather_tokens, scatter_sum, sum_of_ranks
from .token_layouts import (
    INPUTS,
    LocalTokens,
    TokenLayouts,
    cut_axis,
    cut_evenly,
    local_tokens,
    spans_of_lengths,
)

__all__ = ["PROJECTIONS", "CutLayer", "PartialLinear"]

PROJECTIONS = ("q_proj", "k_proj", "v_proj")


class CutLayer(MultiheadAttention):
    """A layer's heads `first..first + num_heads - 1`; a module becomes one in place."""

    ranks: Ranks
    layouts: TokenLayouts
    check: bool
    all_heads: int
    all_kv_heads: int
    all_sizes: tuple[int, int, int]
    knows_some_heads: bool
    dropouts_around: tuple[nn.Module, ...]

    @not_compiled
    def forward(  # type: ignore[override]
        self, query: Tensor, key: Tensor, value: Tensor, *args: Any, **options: Any
    ) -> tuple[Tensor, Tensor | None]:
        """As of the layer; query, key, value and output lie as `layouts` has it."""
        with self._failing_with_tokens():
            given, tokens = self._agree(query, key, value, *args, **options)
        outcome = Outcome(self.ranks, "MultiheadAttention", check=self.check)
        cache = given["cache"]
        # Where another rank fails, too.
        with rollback_on_error(cache if isinstance(cache, KeyValueCache) else None):
            try:
                output, weights = self._forward_of_heads(given, tokens)
            except Exception as error:
                outcome.fail(error)
            outcome.raise_together()
            if weights is not None:
                weights = sum_of_ranks(weights, self.ranks) / self.ranks.size
            return self._summed(output, tokens.get("query")), weights

    def _failing_with_tokens(self) -> AbstractContextManager[None]:
        """What fails within is told to the ranks that have other tokens, if any have."""
        style = getattr(self.attend_elsewhere, "style", None)
        ranks = getattr(self.attend_elsewhere, "ranks", None)
        if ranks is None or style is None:
            return nullcontext()
        return fail_together(ranks, "MultiheadAttention", check=style.check)

    def _agree(self, *args: Any, **options: Any) -> tuple[dict[str, Any], dict[str, SpansOfRanks]]:
        """The arguments by name, once it is sure that all ranks have the same.

        Of what is cut along its tokens, this rank's, and by name what tokens each rank has.
        """
        facts: dict[str, object] = {}
        given, axes, error = {}, {}, None
        lengths: tuple[int, ...] = (0, 0, 0)
        try:
            bound = _SIGNATURE.bind(self, *args, **options)
            bound.apply_defaults()
            given = dict(bound.arguments)
            del given["self"]
            axes = self._make_local(given)
            for name, x in given.items():
                if isinstance(x, DTensor):
                    raise TypeError(
                        f"MultiheadAttention: {name} must be a plain tensor, the same on every "
                        "rank, such as full_tensor() gives, got DTensor"
                    )
                if is_jagged(x):
                    raise ValueError(
                        f"MultiheadAttention: {name} must be dense where heads are cut among "
                        "ranks, got a nested tensor"
                    )
            _check_of_heads(self, given)
            cut_axis(
                "output", self.layouts.output, given["query"].ndim, batch_first=self.batch_first
            )
            facts = _facts(self, given, axes)
            lengths = tuple(given[name].shape[axes[name]] if name in axes else 0 for name in INPUTS)
        except Exception as found:
            error = found
        of_ranks = [lengths] * self.ranks.size
        if self.check:
            of_ranks = agree(self.ranks, "MultiheadAttention", facts, lengths, error)
        elif error is not None:
            raise error
        each = zip(INPUTS, zip(*of_ranks, strict=True), strict=True)
        return given, {name: spans_of_lengths(found) for name, found in each if name in axes}

    def _make_local(self, given: dict[str, Any]) -> dict[str, int]:
        """Plain tensors in place of query, key and value, and the axes along which some are cut."""
        axes: dict[str, int] = {}
        made: dict[tuple[int, Placement], LocalTokens] = {}
        for name, layout in zip(INPUTS, self.layouts.inputs, strict=True):
            x = given[name]
            if (id(x), layout) not in made:
                made[id(x), layout] = local_tokens(
                    name, x, layout, self.layouts.mesh, batch_first=self.batch_first
                )
            found = made[id(x), layout]
            given[name] = found.x
            if found.axis is not None:
                axes[name] = found.axis
        return axes

    def _forward_of_heads(
        self, given: Mapping[str, Any], tokens: Mapping[str, SpansOfRanks]
    ) -> tuple[Tensor, Tensor | None]:
        """What this rank's heads give to the output, of all tokens, and their weights."""
        named = dict(given)
        whole: dict[tuple[int, bool], Tensor] = {}
        for name in INPUTS:
            x, cut = named[name], name in tokens
            if (id(x), cut) not in whole:
                whole[id(x), cut] = (
                    gather_tokens(x, self.ranks, self._axis(x), tokens[name])
                    if cut
                    else copy_to_ranks(x, self.ranks)
                )
            named[name] = whole[id(x), cut]
        for name in ("attn_mask", "key_padding_mask"):
            if isinstance(named[name], Tensor) and named[name].requires_grad:
                named[name] = copy_to_ranks(named[name], self.ranks)
        mask = named["attn_mask"]
        if isinstance(mask, Tensor) and mask.ndim == 3:
            each = mask.unflatten(0, (-1, self.all_heads))
            own = slice(self.first_head, self.first_head + self.num_heads)
            named["attn_mask"] = each[:, own].flatten(0, 1)
        return super().forward(**named)

    def _summed(self, part: Tensor, tokens: SpansOfRanks | None) -> Tensor:
        """The output, laid out as it is to be.

        Args:
            part: what this rank's heads give to it, without bias.
            tokens: what each rank has of the query; None where it is whole.
        """
        layout, bias = self.layouts.output, self.out_proj.bias
        axis = cut_axis("output", layout, part.ndim, batch_first=self.batch_first)
        shape = part.shape
        if axis is None:
            output = sum_of_ranks(part, self.ranks)
        else:
            even = cut_evenly(shape[axis], self.ranks.size)
            tokens = tokens or even
            if not self.layouts.use_local_output and tokens != even:
                had, wanted = (
                    ", ".join(str(end - first) for ((first, end),) in cut) for cut in (tokens, even)
                )
                raise ValueError(
                    "MultiheadAttention: query must be cut as DTensors are where the output is to "
                    f"be one, {wanted} tokens on the ranks, got {had}"
                )
            output = scatter_sum(part, self.ranks, axis, tokens)
        if bias is not None:
            assert isinstance(bias, DTensor)
            shared = bias.to_local().to(output.dtype)  # as autocast has it
            # Of cut tokens each rank has a part of its gradient.
            output = output + (shared if axis is None else copy_to_ranks(shared, self.ranks))
        if self.layouts.use_local_output:
            return output
        stride = output.new_empty(shape, device="meta").stride()
        return DTensor.from_local(
            output,
            self.layouts.mesh,
            [layout if axis is None else Shard(axis)],
            run_check=False,
            shape=shape,
            stride=stride,
        )

    def _axis(self, x: Tensor) -> int:
        """Of the tokens of a query, key or value."""
        return 1 if self.batch_first and x.ndim == 3 else 0

    def reset_parameters(self) -> None:
        """The numbers of one device, as the first rank draws them."""
        weights = [getattr(self, f"{name}_weight") for name in PROJECTIONS]
        # There one weight stands for all three if it can.
        packed = {weight.shape[1] for weight in weights} == {self.embed_dim}
        for count in [3] if packed else [1] * 3:
            these, weights = weights[:count], weights[count:]
            sizes = [weight.shape[0] for weight in these]
            whole = these[0].to_local().new_empty(sum(sizes), these[0].shape[1])
            nn.init.xavier_uniform_(whole)
            for weight, part in zip(these, whole.split(sizes), strict=True):
                _fill(weight, part)
        if self.q_proj_bias is not None:
            for bias in (*(getattr(self, f"{name}_bias") for name in PROJECTIONS),
                         self.out_proj.bias):  # fmt: skip
                nn.init.zeros_(bias)

    @property
    def first_head(self) -> int:
        """Which of all heads is the first here."""
        return self.ranks.rank * self.num_heads

    @property
    def first_kv_head(self) -> int:
        """Which of all key heads is the first here; several ranks may have the same one."""
        return self.first_head * self.all_kv_heads // self.all_heads

    @property
    def position_of_heads(self) -> Callable[..., Any] | None:
        """The scheme, called for some heads."""
        return None if self.position is None else _CutPosition(self)

    def _linear(self, part: int, x: Tensor) -> Tensor:
        weight, bias = (
            self._own_rows(part, getattr(self, f"{PROJECTIONS[part]}_{kind}"))
            for kind in ("weight", "bias")
        )
        assert weight is not None
        return linear(x, weight, bias)

    def _own_rows(self, part: int, parameter: DTensor | None) -> Tensor | None:
        """Those of this rank's heads, of a parameter that is cut along them or whole."""
        if parameter is None:
            return None
        if not _is_shared(parameter):
            return parameter.to_local()
        first = self.first_kv_head * self.head_dim
        return copy_to_ranks(parameter.to_local(), self.ranks)[first : first + self._sizes[part]]

    def _attention(
        self, q: Tensor, k: Tensor, v: Tensor, terms: Terms | GridTerms, **options: Any
    ) -> Tensor:
        if not options["dropout"]:
            return super()._attention(q, k, v, terms, **options)
        masks = [
            options.pop(name) for name in ("mask", "documents", "key_ranges", "query_documents")
        ]
        inputs = prepare("attention", q, k, v, terms, *masks, **options)
        # What `native` drops on one device, if all ranks have the same seed, and else other pairs.
        origin = DropoutOrigin(self.all_heads, self.first_head, q.shape[2], 0, 0)
        inputs = replace(inputs, dropout_origin=origin)
        with without_autocast(q):
            return choose("auto", inputs).attention(inputs)[0]


_SIGNATURE = signature(MultiheadAttention.forward)


def _check_of_heads(layer: CutLayer, given: Mapping[str, Any]) -> None:
    """Raise if what is given for all heads is not, or asked for and not to be had."""
    query, mask = given["query"], given["attn_mask"]
    if isinstance(mask, Tensor) and mask.ndim == 3 and isinstance(query, Tensor):
        batch = 1 if query.ndim < 3 else query.shape[0 if layer.batch_first else 1]
        if len(mask) != batch * layer.all_heads:
            raise ShapeError(
                f"MultiheadAttention: attn_mask must be (i, j) or (b * h, i, j) with b={batch} "
                f"and all h={layer.all_heads}, got {tuple(mask.shape)}"
            )
    if given["need_weights"] and not given["average_attn_weights"]:
        raise ValueError(
            "MultiheadAttention: average_attn_weights must be True where heads are cut among "
            "ranks, got False"
        )


def _facts(
    layer: CutLayer, given: Mapping[str, object], axes: Mapping[str, int]
) -> dict[str, object]:
    """What must be the same on every rank, by what users call it.

    Args:
        layer: whose heads are cut.
        given: the arguments.
        axes: along which some of them are cut.
    """
    device = layer.out_proj.weight.device.type
    # What is dropped out of cut tokens each rank drops for itself.
    of_all_tokens = "query" not in axes or isinstance(layer.layouts.output, Replicate)
    generator = _generator(layer, layer.out_proj.weight.device) if of_all_tokens else None
    facts: dict[str, object] = {
        "the layer": {
            "embed_dim": layer.embed_dim,
            "num_heads": layer.all_heads,
            "num_kv_heads": layer.all_kv_heads,
            "scale": layer.scale,
            "window": layer.window,
            "softcap": layer.softcap,
            "batch_first": layer.batch_first,
            "position": type(layer.position).__name__,
        },
        "autocast": torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None,
        "dropout": layer.dropout if layer.training else 0.0,
        "the state of torch's generator, of which dropout around the layer draws (HeadParallel on "
        "the attention alone does not ask),": generator,
        # Of each of them gradients are summed, as long as they are wanted.
        "parameters that learn": [n for n, x in layer.named_parameters() if x.requires_grad],
        "tensors given twice": _repeated(given),
        "output": layer.layouts.output,
    }
    for name, x in given.items():
        facts[name] = _described(x, {axes[name]: "tokens"} if name in axes else {})
    return facts


def _generator(layer: CutLayer, device: torch.device) -> str | None:
    """The state that all ranks must have, or else their inputs differ from the next layer on."""
    if not any(part.training and getattr(part, "p", 0) for part in layer.dropouts_around):
        return None
    module = torch if device.type == "cpu" else torch.get_device_module(device)
    return blake2b(module.get_rng_state().numpy().tobytes(), digest_size=8).hexdigest()


def _repeated(given: Mapping[str, object]) -> list[str]:
    """Which of query, key and value are the same tensor as one before."""
    tensors = {name: given[name] for name in INPUTS}
    first: dict[int, str] = {}
    return [f"{name} is {first[id(x)]}" for name, x in tensors.items()
            if first.setdefault(id(x), name) != name]  # fmt: skip


def _described(x: object, names: Mapping[int, str]) -> object:
    if isinstance(x, KeyValueCache):
        return f"a cache of {x.length} tokens"
    if isinstance(x, Tensor):
        return described(x, names)
    return x if isinstance(x, bool | int) else one_line(x)


class _CutPosition:
    """A layer's scheme, called with this rank's heads.

    One that knows some heads is called with them, and with its parts of the parameters. Others are
    called with all heads, of which all but these are zeros.

    Args:
        layer: whose heads are cut.
    """

    _TRAITS: ClassVar = (
        "reads_input", "reads_query_start", "reads_key_start", "reads_shape", "reads_query_shape",
        "shift_invariant",
    )  # fmt: skip

    def __init__(self, layer: CutLayer) -> None:
        self._layer = layer
        self.scheme_of_all_heads = layer.position
        for trait in self._TRAITS:
            setattr(self, trait, getattr(layer.position, trait, False))

    def __call__(
        self, q: Tensor, k: Tensor, *x: Tensor, **options: Any
    ) -> tuple[Tensor, Tensor, Terms | GridTerms]:
        layer = self._layer
        if layer.knows_some_heads:
            return self._call(q, k, *x, **options)
        heads = slice(layer.first_head, layer.first_head + layer.num_heads)
        kv_heads = slice(layer.first_kv_head, layer.first_kv_head + layer.num_kv_heads)
        whole_q = _among_zeros(q, heads, layer.all_heads)
        whole_k = _among_zeros(k, kv_heads, layer.all_kv_heads)
        new_q, new_k, terms = self._call(whole_q, whole_k, *x, **options)
        return (
            q if new_q is whole_q else new_q[:, heads],
            k if new_k is whole_k else new_k[:, kv_heads],
            terms_of_heads(terms, range(heads.start, heads.stop), lambda x: x[:, heads]),
        )

    def _call(self, *args: Tensor, **options: Any) -> tuple[Tensor, Tensor, Terms | GridTerms]:
        position = self._layer.position
        assert position is not None
        check_gathered("HeadParallel", position)
        local: dict[str, Tensor] = {}
        made: dict[Tensor, Tensor] = {}
        # One parameter may have several names, and one module, too.
        for prefix, part in position.named_modules():
            for own, x in part.named_parameters(recurse=False, remove_duplicate=False):
                if x not in made:
                    made[x] = _local(x, self._layer.ranks)
                local[f"{prefix}.{own}" if prefix else own] = made[x]
        return functional_call(position, local, args, options, tie_weights=False)


def _fill(parameter: DTensor, whole: Tensor) -> None:
    """Make a parameter what the first rank has of it."""
    mesh, placements = parameter.device_mesh, parameter.placements
    with torch.no_grad():
        parameter.copy_(distribute_tensor(whole.contiguous(), mesh, placements))


def _local(x: Tensor, ranks: Ranks) -> Tensor:
    """This rank's part of a parameter; of one that ranks share, the gradient is summed."""
    if not isinstance(x, DTensor):
        return copy_to_ranks(x, ranks)
    return copy_to_ranks(x.to_local(), ranks) if _is_shared(x) else x.to_local()


def _is_shared(x: DTensor) -> bool:
    """Whether every rank has all of it."""
    return all(isinstance(placement, Replicate) for placement in x.placements)


def _among_zeros(x: Tensor, heads: slice, count: int) -> Tensor:
    b, _, n, d = x.shape
    before, after = x.new_zeros(b, heads.start, n, d), x.new_zeros(b, count - heads.stop, n, d)
    return torch.cat([before, x, after], 1)


class PartialLinear(nn.Linear):
    """`x_r W_r^T`, whose sum over the ranks is the output without bias; made in place."""

    def forward(self, x: Tensor) -> Tensor:
        """What this rank's heads give to the output."""
        assert isinstance(self.weight, DTensor)
        return linear(x, self.weight.to_local())
