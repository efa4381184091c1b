"""x-transformers' biases by offset: T5's (Raffel et al. 2020), ALiBi (Press et al. 2022), computed.

    s_ij = scale * q_i . k_j + B[j - i]

Its layers ask one module for the bias of all pairs and hand it to every self-attention. Here the
module gives a row for each offset, `(h, 1, i + j - 1)`, from `1 - j` on, which for a single query
is the same, and what attends reads it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from functools import partial
from importlib import import_module
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad, softplus

from ...terms import OffsetTable, Terms
from ..adapted import Adapted
from ..attend import attend
from ..drop_probability import drop_probability

__all__ = ["Alibi", "Attend", "Attention", "DynamicBias", "Layers", "OffsetBias", "T5Bias"]

_LIBRARY = "x_transformers.x_transformers"
_ATTEND_LIBRARY = "x_transformers.attend"

# What the parameters of an `Attend` begin with.
_ATTEND = ("self", "q", "k", "v", "mask", "attn_bias", "prev_attn")

# What an `Attend` may hold: a value that changes no score, and in words what another one does.
_PLAIN = {
    "pre_softmax_talking_heads": (None, "scores are mixed between heads"),
    "post_softmax_talking_heads": (None, "weights are mixed between heads"),
    "pre_scale_post_talking_heads": (None, "weights are mixed between heads"),
    "selective": (False, "scores depend on those of earlier queries"),
    "cog_signed": (False, "weights have signs"),
    "l2_distance": (False, "scores are distances"),
    "cope": (None, "positions depend on what tokens contain"),
    "flash_pack_seq": (False, "flash-attn takes packed sequences"),
}  # fmt: skip


# What an `Attention` may hold besides, and in words what it does.
_OTHERS = {
    "max_attend_past": "max_attend_past is a mask of all pairs",
    "rel_proj_pos_bias": "a bias of queries (use_rel_proj_pos_bias) is added to that of offsets",
    "data_dependent_alibi": (
        "biases that come from what tokens contain take the place of those of offsets"
    ),
}


class OffsetBias(Adapted):
    """A base of modules that give a bias for each offset."""

    signatures = {"forward": ("self", "i", "j")}
    #: What the report of `Layers` says.
    words: ClassVar[str] = ""
    device: torch.device

    @classmethod
    def unsupported(cls, module: Any) -> str | None:
        known = any(_is(type(module), name) for name in _BIASES)
        return None if known else f"it must be one of {', '.join(_BIASES)}"

    def forward(self, i: int, j: int) -> Float[Tensor, "h 1 r"]:
        return self.of_offsets(torch.arange(1 - j, i, device=self.device))[:, None]

    def of_offsets(self, offsets: Tensor) -> Float[Tensor, "h r"]:
        """The bias of each offset, in the order of key minus query.

        Args:
            offsets: `(r,)`, of integers.
        """
        raise NotImplementedError


class T5Bias(OffsetBias):
    """For `RelativePositionBias`."""

    words = "T5 bias"
    scale: float
    causal: bool
    num_buckets: int
    max_distance: int
    relative_attention_bias: nn.Module
    _relative_position_bucket: Callable[..., Tensor]

    def of_offsets(self, offsets: Tensor) -> Tensor:
        buckets = self._relative_position_bucket(
            offsets, causal=self.causal, num_buckets=self.num_buckets,
            max_distance=self.max_distance,
        )  # fmt: skip
        return self.relative_attention_bias(buckets).mT * self.scale


class DynamicBias(OffsetBias):
    """For `DynamicPositionBias`, a network of query minus key."""

    words = "computed bias"
    log_distance: bool
    mlp: nn.ModuleList

    def of_offsets(self, offsets: Tensor) -> Tensor:
        behind = -offsets.float()
        if self.log_distance:
            behind = behind.sign() * (behind.abs() + 1).log()
        x = behind[:, None]
        for layer in self.mlp:
            x = layer(x)
        return x.mT


class Alibi(OffsetBias):
    """For `AlibiPositionalBias`, which makes and keeps the bias of all pairs."""

    words = "ALiBi"
    total_heads: int
    slopes: Tensor

    def of_offsets(self, offsets: Tensor) -> Tensor:
        bias = -offsets.abs() * self.slopes[:, 0]
        return pad(bias, (0, 0, 0, self.total_heads - len(bias)))


_BIASES = {
    "RelativePositionBias": T5Bias,
    "DynamicPositionBias": DynamicBias,
    "AlibiPositionalBias": Alibi,
}


class Attend(Adapted):
    """For `Attend` of a self-attention; without a row for each offset it runs as before.

    What it gives of scores and weights, `(b, h, i, j)`, is computed when somebody reads it, with
    the parameters (learned sinks) that it has then.
    """

    #: Of x-transformers, and of `prepare`: its fields of pairs come when they are read.
    intermediates: ClassVar[Any]
    lazy_intermediates: ClassVar[Any]
    scale: float | None
    causal: bool
    flash: bool
    dropout: float
    attn_dropout: nn.Dropout
    softclamp_logits: bool
    logit_softclamp_value: float
    add_zero_kv: bool

    @classmethod
    def prepare(cls) -> None:
        cls.intermediates = import_module(_ATTEND_LIBRARY).Intermediates
        cls.lazy_intermediates = type("Intermediates", (_Lazy, cls.intermediates), {})

    @classmethod
    def unsupported(cls, module: Any) -> str | None:
        # Versions add to these from week to week.
        found = tuple(inspect.signature(type(module).forward).parameters)[: len(_ATTEND)]
        if reason := _is_not(type(module), "Attend", _ATTEND_LIBRARY):
            return reason
        if found != _ATTEND:
            return f"forward begins with {', '.join(found)}, not with {', '.join(_ATTEND)}"
        for name, (plain, words) in _PLAIN.items():
            if getattr(module, name, plain) is not plain:
                return words
        if not _is_softmax(module.attn_fn):
            return "weights are no softmax of the scores"
        dropout = module.dropout if module.flash else getattr(module.attn_dropout, "p", 0.0)
        if not 0 <= dropout < 1:
            return f"dropout must be in 0 <= dropout < 1, got {dropout}"
        return None

    def forward(
        self,
        q: Float[Tensor, "b h i d"],
        k: Float[Tensor, "b g j d"],
        v: Float[Tensor, "b g j dv"],
        mask: Tensor | None = None,
        attn_bias: Tensor | None = None,
        prev_attn: Tensor | None = None,
        **others: Any,
    ) -> tuple[Tensor, Any]:
        queries, keys = q.shape[2], k.shape[2]
        original = partial(super().forward, q, k, v, mask=mask, prev_attn=prev_attn, **others)
        if attn_bias is None or attn_bias.ndim != 3 or attn_bias.shape[1] != 1:
            return original(attn_bias=attn_bias)
        if queries == 1 and attn_bias.shape[2] != keys:
            return original(attn_bias=attn_bias)  # at a given position, or beside other keys
        if attn_bias.shape[2] != queries + keys - 1:
            raise ValueError(
                f"{type(self).__name__}: keys must be as many as positions, "
                f"{attn_bias.shape[2] - queries + 1}, got {keys}"
            )
        # The mask of rows is for weights that are normalized over the queries.
        unknown = {name for name, x in others.items() if x is not None} - {"causal", "row_mask"}
        if prev_attn is not None or unknown:
            return original(attn_bias=_of_pairs(attn_bias, keys))
        if 1 < k.shape[1] < q.shape[1]:
            # One after the other: its groups are not of neighbours.
            k, v = (x.repeat(1, q.shape[1] // x.shape[1], 1, 1) for x in (k, v))
        if mask is not None and mask.ndim == 2:
            mask = mask[:, None, None]
        if self.flash:
            # To SDPA the original hands neither the call's `causal` nor what its module would drop.
            causal, dropout = None, self.dropout if self.training else 0.0
        else:
            causal, dropout = others.get("causal"), drop_probability(self.attn_dropout)
        causal = self.causal if causal is None else causal
        if causal and mask is not None and mask.shape[2] > 1:
            mask = mask & mask.new_ones(queries, keys).tril(keys - queries)
        scale = q.shape[-1] ** -0.5 if self.scale is None else self.scale
        output, _ = attend(
            q, k, v, Terms(bias=OffsetTable(attn_bias[:, 0].to(q.dtype), 1 - keys)),
            mask=mask, causal=causal, scale=scale, dropout=dropout,
            softcap=self.logit_softclamp_value if _has(self, "softclamp_logits") else None,
            sinks=self._sinks(q),
        )  # fmt: skip
        if self.flash:
            return output.transpose(1, 2), self.intermediates()
        compute = _as_now(lambda: original(attn_bias=_of_pairs(attn_bias, keys))[1], q.device)
        return output.transpose(1, 2), self.lazy_intermediates(compute)

    def _sinks(self, q: Tensor) -> Float[Tensor, "b h i 1"] | None:
        """The score of what takes a share of the weights and gives nothing."""
        # Older versions have no learned ones.
        sinks: Tensor | None = getattr(self, "head_attn_sink", None)
        if self.add_zero_kv:
            # Beside it a key of zeros, whose score is 0.
            sinks = q.new_zeros(q.shape[1]) if sinks is None else softplus(sinks)
        if sinks is None:
            return None
        return sinks[:, None, None].expand(len(q), -1, q.shape[2], 1)


class Attention(Adapted):
    """For `Attention`, which runs as before: it hands on to its `Attend` what biases give."""

    @classmethod
    def unsupported(cls, module: Any) -> str | None:
        if reason := _is_not(type(module), "Attention", _LIBRARY):
            return reason
        if module.num_mem_kv:
            return "keys of memories (num_mem_kv) have no positions"
        return next((why for name, why in _OTHERS.items() if _has(module, name)), None)


class Layers(Adapted):
    """For `AttentionLayers` and its kin, which run as before on a bias for each offset."""

    scheme = "T5 bias, or computed bias, or ALiBi"

    @classmethod
    def applies(cls, module: Any) -> bool:
        return module.rel_pos is not None and "a" in module.layer_types

    @classmethod
    def parts_of(cls, module: Any) -> dict[str, type[Adapted]]:
        found: dict[str, type[Adapted]] = {"rel_pos": _bias_of(module)}
        for name in _self_attentions(module):
            found |= {name: Attention, f"{name}.attend": Attend}
        return found

    @classmethod
    def unsupported(cls, module: Any) -> str | None:
        if _has(module, "rotary_pos_emb") or _has(module, "polar_pos_emb"):
            return "beside rotary positions it takes positions that are given, and has all pairs"
        if module.residual_attn:
            return "residual_attn hands the scores of all pairs to the next layer"
        if len(list(_self_attentions(module))) < module.layer_types.count("a"):
            return "its self-attention is of another class"
        return None

    @classmethod
    def described(cls, module: Any) -> str:
        return _bias_of(module).words


_OF_PAIRS = ("qk_similarities", "pre_softmax_attn", "post_softmax_attn")


def _computed(name: str) -> property:
    """A field of `_Lazy` of this name."""
    return property(
        lambda lazy: lazy.read(name), lambda lazy, value: lazy.known.__setitem__(name, value)
    )


class _Lazy:
    """What stands before `Intermediates`: its fields of pairs, computed when they are read."""

    def __init__(self, compute: Callable[[], Any] | None = None, **fields: Any) -> None:
        self.compute = compute
        self.known: dict[str, Any] = {}
        super().__init__(**fields)
        if compute is not None:
            self.known.clear()

    def __copy__(self) -> Any:
        found = object.__new__(type(self))
        vars(found).update(vars(self) | {"known": dict(self.known)})
        return found

    def __reduce__(self) -> Any:
        original = next(base for base in type(self).__mro__[1:] if base is not _Lazy)
        return original, tuple(getattr(self, field.name) for field in fields(original))

    def read(self, name: str) -> Any:
        """The field of this name.

        Args:
            name: of `_OF_PAIRS`.
        """
        if name not in self.known:
            assert self.compute is not None
            found, self.compute = self.compute(), None
            self.known = {field: getattr(found, field) for field in _OF_PAIRS} | self.known
        return self.known[name]

    qk_similarities = _computed("qk_similarities")
    pre_softmax_attn = _computed("pre_softmax_attn")
    post_softmax_attn = _computed("post_softmax_attn")


def _as_now(function: Callable[[], Any], device: torch.device) -> Callable[[], Any]:
    """A function that is called later, with gradients and autocast as they are now.

    What it draws changes nothing that is drawn afterwards.
    """
    kind, gradients = device.type, torch.is_grad_enabled()
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext
    if torch.amp.is_autocast_available(kind):
        enabled, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
        autocast = partial(torch.autocast, kind, dtype, enabled=enabled)
    devices = [device] if kind == "cuda" else []

    def call() -> Any:
        with torch.set_grad_enabled(gradients), autocast(), torch.random.fork_rng(devices):
            return function()

    return call


def _bias_of(layers: Any) -> type[OffsetBias]:
    """What the module of biases is adapted by; it refuses those that are not known."""
    return _BIASES.get(type(layers.rel_pos).__qualname__, OffsetBias)


def _self_attentions(layers: Any) -> Iterator[str]:
    """The name in the layers of each `Attention`, or subclass of it, that is handed the bias."""
    for i, kind in enumerate(layers.layer_types):
        if kind == "a":
            for name, module in layers.layers[i][1].named_modules(prefix=f"layers.{i}.1"):
                if any(_is(base, "Attention") for base in type(module).__mro__):
                    yield name


def _has(module: Any, name: str) -> bool:
    """Whether a module has something of this name, or says yes; older ones may not know it."""
    found = getattr(module, name, None)
    return found is not None and found is not False


def _is(cls: type, name: str) -> bool:
    """Whether a class is the library's of this name."""
    return cls.__module__ == _LIBRARY and cls.__qualname__ == name


def _is_not(cls: type, name: str, library: str) -> str | None:
    """Why a module's forward is not that of the library's class of this name; None if it is."""
    if (cls.__module__, cls.__qualname__) != (library, name):
        return f"a subclass of {name}, which may compute something else"
    found = inspect.unwrap(vars(cls)["forward"]).__module__
    return None if found == library else f"{name}.forward was replaced by one of {found}"


def _is_softmax(function: Any) -> bool:
    """Whether a function is torch's softmax over the keys, however many settings it is given."""
    settings: dict[str, Any] = {}
    while isinstance(function, partial):
        settings = function.keywords | settings
        function = function.func
    return function is nn.functional.softmax and settings.get("dim") == -1


def _of_pairs(table: Float[Tensor, "h 1 r"], keys: int) -> Float[Tensor, "h i j"]:
    """The bias of all pairs, as the original has it."""
    return table[:, 0].unfold(1, keys, 1).flip(1)
