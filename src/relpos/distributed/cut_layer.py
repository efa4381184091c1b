"""A layer of which this rank has some heads: the same input and the whole output on every rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from hashlib import blake2b
from inspect import signature
from typing import Any, ClassVar

import torch
from torch import Tensor, distributed, nn
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.func import functional_call
from torch.nn.functional import linear

from ..autocast import without_autocast
from ..checks import one_line
from ..errors import ShapeError
from ..jagged import is_jagged
from ..layers import KeyValueCache, MultiheadAttention
from ..ops.dispatch import choose
from ..ops.inputs import DropoutOrigin, prepare
from ..terms import GridTerms, Terms
from .agreement import Outcome, agree, fail_together
from .derivatives import refuse_second_derivatives
from .facts import described
from .group import Ranks
from .heads import terms_of_heads
from .not_compiled import not_compiled
from .positions import check_gathered

__all__ = ["PROJECTIONS", "CutLayer", "SummedLinear"]

PROJECTIONS = ("q_proj", "k_proj", "v_proj")


class CutLayer(MultiheadAttention):
    """A layer's heads `first..first + num_heads - 1`; a module becomes one in place."""

    ranks: Ranks
    check: bool
    all_heads: int
    all_kv_heads: int
    knows_some_heads: bool
    dropouts_around: tuple[nn.Module, ...]

    @not_compiled
    def forward(  # type: ignore[override]
        self, query: Tensor, key: Tensor, value: Tensor, *args: Any, **options: Any
    ) -> tuple[Tensor, Tensor | None]:
        """As of the layer: the same input and the whole output on every rank."""
        with self._failing_with_tokens():
            given = self._agree(query, key, value, *args, **options)
        outcome = Outcome(self.ranks, "MultiheadAttention", check=self.check)
        try:
            return self._forward_of_heads(**given)
        except Exception as error:
            outcome.fail(error)

    def _failing_with_tokens(self) -> AbstractContextManager[None]:
        """What fails within is told to the ranks that have other tokens, if any have."""
        style = getattr(self.attend_elsewhere, "style", None)
        ranks = getattr(self.attend_elsewhere, "ranks", None)
        if ranks is None or style is None:
            return nullcontext()
        return fail_together(ranks, "MultiheadAttention", check=style.check)

    def _agree(self, *args: Any, **options: Any) -> dict[str, Any]:
        """The arguments by name, once it is sure that all ranks have the same."""
        facts: dict[str, object] = {}
        given, error = {}, None
        try:
            bound = _SIGNATURE.bind(self, *args, **options)
            bound.apply_defaults()
            given = dict(bound.arguments)
            del given["self"]
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
            facts = _facts(self, given)
        except Exception as found:
            error = found
        if self.check:
            agree(self.ranks, "MultiheadAttention", facts, (), error)
        elif error is not None:
            raise error
        return given

    def _forward_of_heads(
        self, query: Tensor, key: Tensor, value: Tensor, **named: Any
    ) -> tuple[Tensor, Tensor | None]:
        copies = {
            id(x): _CopyToRanks.apply(x, self.ranks) if isinstance(x, Tensor) else x
            for x in (query, key, value)
        }
        query, key, value = (copies[id(x)] for x in (query, key, value))
        for name in ("attn_mask", "key_padding_mask"):
            if isinstance(named[name], Tensor) and named[name].requires_grad:
                named[name] = _CopyToRanks.apply(named[name], self.ranks)
        mask = named["attn_mask"]
        if isinstance(mask, Tensor) and mask.ndim == 3:
            each = mask.unflatten(0, (-1, self.all_heads))
            own = slice(self.first_head, self.first_head + self.num_heads)
            named["attn_mask"] = each[:, own].flatten(0, 1)
        output, weights = super().forward(query, key, value, **named)
        if weights is not None:
            weights = _SumOfRanks.apply(weights, self.ranks) / self.ranks.size
        return output, weights

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
    def position_of_heads(self) -> Callable[..., Any] | None:
        """The scheme, called for some heads."""
        return None if self.position is None else _CutPosition(self)

    def _linear(self, part: int, x: Tensor) -> Tensor:
        weight, bias = (getattr(self, f"{PROJECTIONS[part]}_{kind}") for kind in ("weight", "bias"))
        return linear(x, weight.to_local(), None if bias is None else bias.to_local())

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


def _facts(layer: CutLayer, given: Mapping[str, object]) -> dict[str, object]:
    """What must be the same on every rank, by what users call it."""
    device = layer.out_proj.weight.device.type
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
        "the attention alone does not ask),": _generator(layer, layer.out_proj.weight.device),
        # Of each of them gradients are summed, as long as they are wanted.
        "parameters that learn": [n for n, x in layer.named_parameters() if x.requires_grad],
        "tensors given twice": _repeated(given),
    }
    return facts | {name: _described(x) for name, x in given.items()}


def _generator(layer: CutLayer, device: torch.device) -> str | None:
    """The state that all ranks must have, or else their inputs differ from the next layer on."""
    if not any(part.training and getattr(part, "p", 0) for part in layer.dropouts_around):
        return None
    module = torch if device.type == "cpu" else torch.get_device_module(device)
    return blake2b(module.get_rng_state().numpy().tobytes(), digest_size=8).hexdigest()


def _repeated(given: Mapping[str, object]) -> list[str]:
    """Which of query, key and value are the same tensor as one before."""
    tensors = {name: given[name] for name in ("query", "key", "value")}
    first: dict[int, str] = {}
    return [f"{name} is {first[id(x)]}" for name, x in tensors.items()
            if first.setdefault(id(x), name) != name]  # fmt: skip


def _described(x: object) -> object:
    if isinstance(x, KeyValueCache):
        return f"a cache of {x.length} tokens"
    if isinstance(x, Tensor):
        return described(x)
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
        heads, kv_heads = _own_heads(layer, q, k)
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
        return _CopyToRanks.apply(x, ranks)
    shared = all(isinstance(placement, Replicate) for placement in x.placements)
    return _CopyToRanks.apply(x.to_local(), ranks) if shared else x.to_local()


def _own_heads(layer: CutLayer, q: Tensor, k: Tensor) -> tuple[slice, slice]:
    found = []
    for x in (q, k):
        first = layer.ranks.rank * x.shape[1]
        found.append(slice(first, first + x.shape[1]))
    return found[0], found[1]


def _among_zeros(x: Tensor, heads: slice, count: int) -> Tensor:
    b, _, n, d = x.shape
    before, after = x.new_zeros(b, heads.start, n, d), x.new_zeros(b, count - heads.stop, n, d)
    return torch.cat([before, x, after], 1)


class SummedLinear(nn.Linear):
    """`sum over ranks of x_r W_r^T`, then the bias; a module becomes one in place."""

    ranks: Ranks
    check: bool

    def forward(self, x: Tensor) -> Tensor:
        """The whole output, on every rank, from what this rank's heads give."""
        weight, bias = self.weight, self.bias
        assert isinstance(weight, DTensor)
        part = linear(x, weight.to_local())
        Outcome(self.ranks, "MultiheadAttention", check=self.check).raise_together()
        output = _SumOfRanks.apply(part, self.ranks)
        if bias is None:
            return output
        assert isinstance(bias, DTensor)
        return output + bias.to_local()


class _CopyToRanks(torch.autograd.Function):
    """The same tensor, whose gradient is summed over the ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return x.view_as(x)

    @staticmethod
    @refuse_second_derivatives
    def backward(ctx: Any, d_x: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        d_x = d_x.contiguous().clone()
        with ctx.ranks.exchanging("MultiheadAttention", "gradients of the input"):
            distributed.all_reduce(d_x, group=ctx.ranks.group)
        return d_x, None


class _SumOfRanks(torch.autograd.Function):
    """The sum over the ranks, on each of them; the gradient is the same on each."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks) -> Tensor:
        x = x.contiguous().clone()
        with ranks.exchanging("MultiheadAttention", "outputs"):
            distributed.all_reduce(x, group=ranks.group)
        return x

    @staticmethod
    @refuse_second_derivatives
    def backward(ctx: Any, d_x: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return d_x, None
