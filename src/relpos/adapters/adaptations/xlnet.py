"""XLNet (Yang et al. 2019): Transformer-XL's positions, and segments.

    s_ij = scale * ((q_i + u) . k_j + (q_i + v) . W R[j - i] + (q_i + w) . S[g_i != g_j])

Softmax sees of the last term only what changes with the key, `(q_i + w) . (S[0] - S[1])` where the
segments `g` are the same: one more entry of queries and keys for each segment. The model makes a
mask and segments of all pairs, and a table for each sequence of the batch, which dropout then makes
differ; here all are linear in the length. As before run: training with dropout, `perm_mask`,
`target_mapping` (both streams, and generation), and segments under `torch.compile`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DynamicOutputShapeException
from torch.nn.functional import one_hot
from transformers.models.xlnet.modeling_xlnet import XLNetModelOutput

from ...terms import OffsetTable, Terms
from ..adapted import Adapted
from ..attend import attend
from ..drop_probability import drop_probability
from ..masks import narrow_mask

__all__ = ["Model", "RelativeAttention"]


class RelativeAttention(Adapted):
    """For `XLNetRelativeAttention`, whose tensors are `(i, b, e)`.

    From `Model` it is given a mask `(b, 1, 1, j)`, True for tokens, segments `(b, 1, j, s)`, a one
    for that of each key, and a table `(r, 1, e)`; given anything else, it runs as before.
    """

    scheme = "Transformer-XL and segments"
    together = True
    signatures = {
        "forward": (
            "self", "h", "g", "attn_mask_h", "attn_mask_g", "r", "seg_mat", "mems",
            "target_mapping", "output_attentions",
        ),
        "post_attention": ("self", "h", "attn_vec", "residual"),
    }  # fmt: skip
    post_attention: Any
    scale: float
    dropout: nn.Dropout
    q: nn.Parameter
    k: nn.Parameter
    v: nn.Parameter
    r: nn.Parameter
    r_r_bias: nn.Parameter
    r_s_bias: nn.Parameter
    r_w_bias: nn.Parameter
    seg_embed: nn.Parameter

    @classmethod
    def described(cls, module: Any) -> str:
        if module.dropout.p:
            return f"{cls.scheme}; in training as before, since dropout is not 0"
        return cls.scheme

    def forward(
        self,
        h: Tensor,
        g: Tensor | None,
        attn_mask_h: Tensor | None,
        attn_mask_g: Tensor | None,
        r: Tensor,
        seg_mat: Tensor | None,
        mems: Tensor | None = None,
        target_mapping: Tensor | None = None,
        output_attentions: bool = False,
    ) -> tuple[Any, ...]:
        masked = attn_mask_h is not None and attn_mask_h.dtype != torch.bool
        paired = seg_mat is not None and seg_mat.shape[1] != 1
        if g is not None or masked or paired or r.shape[1] != 1:
            return super().forward(
                h, g, attn_mask_h, attn_mask_g, r, seg_mat, mems, target_mapping, output_attentions
            )
        known = h if mems is None or mems.dim() < 2 else torch.cat([mems, h])
        q, k, v = (
            torch.einsum("ibe,ehd->bhid", x, weight)
            for x, weight in ((h, self.q), (known, self.k), (known, self.v))
        )
        rows = torch.einsum("re,ehd->hrd", r[:, 0].to(self.r.dtype), self.r).to(q.dtype)
        terms = Terms(keys=OffsetTable(rows, -k.shape[2]), q_rel=q + self.r_r_bias[:, None])
        q, k = self._with_segments(q, k, seg_mat)
        output, weights = attend(
            q, k, v, terms, mask=attn_mask_h, scale=self.scale,
            dropout=drop_probability(self.dropout), weights=output_attentions,
        )  # fmt: skip
        output = self.post_attention(h, output.transpose(0, 1))
        if weights is None:
            return output, None
        return output, None, weights.permute(2, 3, 0, 1)

    def _with_segments(
        self, q: Tensor, k: Tensor, segments: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Queries and keys with an entry for each segment, and the queries' bias."""
        content = q + self.r_w_bias[:, None]
        if segments is None:
            return content, k
        # (b, h, i, 1)
        gain = (q + self.r_s_bias[:, None]) @ (self.seg_embed[0] - self.seg_embed[1])[:, :, None]
        segments = segments.to(q.dtype)
        return (
            torch.cat([content, gain * segments[:, :, -q.shape[2] :]], -1),
            torch.cat([k, segments.expand(-1, k.shape[1], -1, -1)], -1),
        )


class Model(Adapted):
    """For `XLNetModel`: its forward with a mask, segments and positions of `O(L)`."""

    together = True
    signatures = {
        "forward": (
            "self", "input_ids", "attention_mask", "mems", "perm_mask", "target_mapping",
            "token_type_ids", "input_mask", "inputs_embeds", "use_mems", "output_attentions",
            "output_hidden_states", "return_dict", "kwargs",
        ),
        "cache_mem": ("self", "curr_out", "prev_mem"),
        "relative_positional_encoding": ("self", "qlen", "klen", "bsz", "device"),
    }  # fmt: skip
    cache_mem: Any
    relative_positional_encoding: Any
    config: Any
    word_embedding: nn.Module
    layer: nn.ModuleList
    dropout: nn.Dropout

    @classmethod
    def unsupported(cls, module: Any) -> str | None:
        if module.attn_type != "bi":
            return f"attn_type must be 'bi', got {module.attn_type!r}"
        if module.bi_data:
            return "bi_data has other positions for each half of the batch"
        return None

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        mems: Any = None,
        perm_mask: Tensor | None = None,
        target_mapping: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        input_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        use_mems: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        if (
            perm_mask is not None
            or target_mapping is not None
            or (self.training and self.dropout.p)
            or (input_ids is None) == (inputs_embeds is None)
            or (input_mask is not None and attention_mask is not None)
            or (token_type_ids is not None and torch.compiler.is_compiling())
        ):
            return super().forward(
                input_ids, attention_mask, mems, perm_mask, target_mapping, token_type_ids,
                input_mask, inputs_embeds, use_mems, output_attentions, output_hidden_states,
                return_dict, **kwargs,
            )  # fmt: skip
        x = self.word_embedding(input_ids) if inputs_embeds is None else inputs_embeds
        mems = [None] * len(self.layer) if mems is None else mems
        past = 0 if mems[0] is None else mems[0].shape[0]
        tokens = None if attention_mask is None else attention_mask >= 1
        if input_mask is not None:
            tokens = input_mask <= 0
        if tokens is not None:
            tokens = torch.cat([tokens.new_ones(tokens.shape[0], past), tokens], 1)
        config = self.config
        output = self._layers(
            self.dropout(x.transpose(0, 1)), mems,
            mask=narrow_mask(tokens, length=past + x.shape[1], start=0),
            segments=None if token_type_ids is None else _segments(token_type_ids, past),
            attentions=_chosen(output_attentions, config.output_attentions),
            states=_chosen(output_hidden_states, config.output_hidden_states),
            caches=_chosen(
                use_mems, config.use_mems_train if self.training else config.use_mems_eval
            ),
        )  # fmt: skip
        return output if _chosen(return_dict, config.return_dict) else output.to_tuple()

    def _layers(
        self,
        x: Tensor,
        mems: Any,
        *,
        mask: Tensor | None,
        segments: Tensor | None,
        attentions: bool,
        states: bool,
        caches: bool,
    ) -> XLNetModelOutput:
        """What the layers make of `x`, `(i, b, e)`."""
        # Not `len`, which would be a number of the example's in an exported program.
        new = x.shape[0]
        keys = new if mems[0] is None else mems[0].shape[0] + new
        positions = self.relative_positional_encoding(new, keys, bsz=1, device=x.device)
        inputs, weights, cached = [x], [], []
        for layer, known in zip(self.layer, mems, strict=True):
            if caches:
                cached.append(self.cache_mem(x, known))
            x, _, *found = layer(
                x, None, attn_mask_h=mask, attn_mask_g=None, r=positions, seg_mat=segments,
                mems=known, output_attentions=attentions,
            )  # fmt: skip
            inputs.append(x)
            weights += [w.permute(2, 3, 0, 1).contiguous() for w in found]
        new_mems: Any = tuple(cached) if caches else None
        return XLNetModelOutput(
            last_hidden_state=self.dropout(x).transpose(0, 1).contiguous(),
            mems=new_mems,
            hidden_states=tuple(s.transpose(0, 1).contiguous() for s in inputs) if states else None,
            attentions=tuple(weights) if attentions else None,
        )


def _chosen(argument: bool | None, otherwise: bool) -> bool:
    return otherwise if argument is None else argument


def _segments(ids: Tensor, past: int) -> Tensor:
    """`(b, 1, j, s)`, a one for the segment of each key; the past is of segment 0."""
    ids = torch.cat([ids.new_zeros(ids.shape[0], past), ids], 1)
    try:
        found, index = ids.unique(return_inverse=True)
    except (NotImplementedError, DynamicOutputShapeException):
        # On `meta`, or under `FakeTensorMode`: without numbers, one segment gives all shapes.
        return torch.zeros_like(ids)[:, None, :, None]
    # Of an empty batch, which has no segment, one is as good as none.
    return one_hot(index, max(len(found), 1))[:, None]
