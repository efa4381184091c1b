"""x-transformers' `Attend`, which is given queries, keys, values and a bias."""

from __future__ import annotations

import inspect
from functools import partial
from importlib import import_module
from typing import Any, ClassVar

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import softplus

from ....terms import OffsetTable, Terms
from ...adapted import Adapted
from ...attend import attend
from ...drop_probability import drop_probability
from .biases import bias_of_pairs
from .lazy_intermediates import LazyIntermediates, as_now
from .originals import ATTEND_LIBRARY, has, is_not

__all__ = ["Attend"]

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
        cls.intermediates = import_module(ATTEND_LIBRARY).Intermediates
        cls.lazy_intermediates = type("Intermediates", (LazyIntermediates, cls.intermediates), {})

    @classmethod
    def unsupported(cls, module: Any) -> str | None:
        # Versions add to these from week to week.
        found = tuple(inspect.signature(type(module).forward).parameters)[: len(_ATTEND)]
        if reason := is_not(type(module), "Attend", ATTEND_LIBRARY):
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
            return original(attn_bias=bias_of_pairs(attn_bias, keys))
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
            softcap=self.logit_softclamp_value if has(self, "softclamp_logits") else None,
            sinks=self._sinks(q),
        )  # fmt: skip
        if self.flash:
            return output.transpose(1, 2), self.intermediates()
        compute = as_now(lambda: original(attn_bias=bias_of_pairs(attn_bias, keys))[1], q.device)
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


def _is_softmax(function: Any) -> bool:
    """Whether a function is torch's softmax over the keys, however many settings it is given."""
    settings: dict[str, Any] = {}
    while isinstance(function, partial):
        settings = function.keywords | settings
        function = function.func
    return function is nn.functional.softmax and settings.get("dim") == -1
