"""DeBERTa's disentangled attention, whose scale is the float32 root of a whole number.

With heads of width 12 and three terms the root is 6, with width 8 and two terms it is 4, and
nothing is rounded; of 48 it is.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from transformers import DebertaConfig, DebertaV2Config
from transformers.models.deberta.modeling_deberta import DebertaEncoder, build_relative_position
from transformers.models.deberta_v2.modeling_deberta_v2 import DebertaV2Encoder

from relpos.positions import Deberta, DebertaEmbedding
from tests.parity.comparison import Comparison, Trial, attended, randomized
from tests.parity.oracles.inputs import HEADS, hidden, keep, merge, split

FAR = 50


def encoder(width: int, buckets: int | None, parts: str, **settings: object) -> DebertaV2Encoder:
    """One layer, with the embedding of positions that belongs to all layers."""
    config = DebertaV2Config(
        hidden_size=HEADS * width, num_attention_heads=HEADS, num_hidden_layers=1,
        relative_attention=True, max_relative_positions=FAR, position_buckets=buckets or -1,
        pos_att_type=parts.split("|"), intermediate_size=1, vocab_size=1,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **settings,
    )  # fmt: skip
    return randomized(DebertaV2Encoder(config))


def run(
    length: int,
    padded: bool = False,
    *,
    width: int = 12,
    buckets: int | None = 8,
    parts: str = "c2p|p2c",
    shared: bool = False,
    queries: int | None = None,
) -> Trial:
    """The attention before the output's projection; `queries` are the first ones, if given."""
    model = encoder(width, buckets, parts, share_att_key=shared, norm_rel_ebd="layer_norm")
    theirs = model.layer[0].attention.self
    x, mask = hidden(length, width=HEADS * width), keep(length, padded=padded)[:, None, None]
    q, k, v = (
        split(linear(x)) for linear in (theirs.query_proj, theirs.key_proj, theirs.value_proj)
    )
    rows = model.rel_embeddings.weight
    tables = {
        "embedding.weight": rows,
        "embedding.norm.weight": model.LayerNorm.weight,
        "embedding.norm.bias": model.LayerNorm.bias,
    }
    projections: dict[str, object] = {}
    if shared:
        # Functions, which belong to no scheme.
        projections = {"key_proj": theirs.key_proj.forward, "query_proj": theirs.query_proj.forward}
    own = {"c2p": ("key_proj", "pos_key_proj"), "p2c": ("query_proj", "pos_query_proj")}
    for part in () if shared else parts.split("|"):
        ours_name, their_name = own[part]
        for name, weights in getattr(theirs, their_name).named_parameters():
            tables[f"{ours_name}.{name}"] = weights
    scheme = Deberta(
        width, HEADS, FAR, position_buckets=buckets, c2p="c2p" in parts, p2c="p2c" in parts,
        embedding=DebertaEmbedding(HEADS * width, len(rows) // 2, norm=True, dtype=torch.float64),
        dtype=torch.float64, **projections,
    )  # fmt: skip
    some = slice(queries)
    start = None if queries is None else 0
    ours = attended(
        scheme,
        tables,
        q[:, :, some],
        k,
        v,
        mask=mask,
        scale=scheme.attention_scale,
        query_start=start,
    )
    output = theirs(
        x, mask, query_states=x[:, some], rel_embeddings=model.get_rel_embedding()
    )[0]  # fmt: skip
    return Trial(merge(ours), output, leaves(x, theirs, tables), ["embedding.weight"])


def run_v1(length: int, padded: bool = False) -> Trial:
    """The first version: heads that hold q, k and v each, and no bias in P's query projection."""
    width = 12
    config = DebertaConfig(
        hidden_size=HEADS * width, num_attention_heads=HEADS, num_hidden_layers=1,
        relative_attention=True, max_relative_positions=FAR, pos_att_type=["c2p", "p2c"],
        intermediate_size=1, vocab_size=1, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = randomized(DebertaEncoder(config))
    theirs, rows = model.layer[0].attention.self, model.rel_embeddings.weight
    x, mask = hidden(length, width=HEADS * width), keep(length, padded=padded)[:, None, None]
    q, k, v = split(theirs.in_proj(x)).chunk(3, dim=-1)
    q, v = (
        part + bias.view(HEADS, 1, width) for part, bias in ((q, theirs.q_bias), (v, theirs.v_bias))
    )
    tables = {"embedding.weight": rows, "key_proj.weight": theirs.pos_proj.weight}
    for name, weights in theirs.pos_q_proj.named_parameters():
        tables[f"query_proj.{name}"] = weights
    scheme = Deberta(
        width, HEADS, FAR, dtype=torch.float64,
        key_proj=torch.nn.Linear(HEADS * width, HEADS * width, bias=False, dtype=torch.float64),
    )  # fmt: skip
    ours = attended(scheme, tables, q, k, v, mask=mask, scale=scheme.attention_scale)
    places = build_relative_position(x, x)
    output = theirs(x, mask, relative_pos=places, rel_embeddings=rows)[0]
    return Trial(merge(ours), output, leaves(x, theirs, tables), ["embedding.weight"])


def leaves(x: Tensor, theirs: torch.nn.Module, tables: dict[str, Tensor]) -> dict[str, Tensor]:
    """The input, the layer's projections, and the embedding with its norm."""
    return {"x": x, **dict(theirs.named_parameters()), **tables}


LENGTHS = ({"length": 1}, {"length": 33}, {"length": 65, "padded": True})
FORMULA = "(q_i . k_j + q_i . Wk P[f(i - j)] + k_j . Wq P[f(i - j)]) / sqrt(3d)"
NAME = "DisentangledSelfAttention"
COMPARISONS = [
    Comparison(
        "Deberta", "deberta.DisentangledSelfAttention", "transformers",
        "(q_i . k_j + q_i . Wk P[f(i - j)] + k_j . Wq P[f(i - j)]) / sqrt(3d)", run_v1, LENGTHS,
        remark="version 1, d = 12: f(x) = clip(x, -k, k - 1)",
    ),
    Comparison(
        "Deberta", NAME, "transformers", FORMULA, run, LENGTHS, remark="d = 12, log buckets"
    ),
    Comparison(
        "Deberta", NAME, "transformers", FORMULA, partial(run, buckets=None), LENGTHS,
        remark="d = 12, no buckets: f(x) = clip(x, -k, k - 1)",
    ),
    Comparison(
        "Deberta", NAME, "transformers", FORMULA, partial(run, shared=True), LENGTHS,
        remark="d = 12, Wk and Wq those of the content",
    ),
    Comparison(
        "Deberta", NAME, "transformers",
        "(q_i . k_j + q_i . Wk P[f(i - j)]) / sqrt(2d)", partial(run, width=8, parts="c2p"),
        cases=(*LENGTHS, {"length": 65, "queries": 33}), remark="d = 8, fewer queries too",
    ),
    Comparison(
        "Deberta", NAME, "transformers",
        "(q_i . k_j + k_j . Wq P[f(i - j)]) / sqrt(2d)", partial(run, width=8, parts="p2c"),
        LENGTHS, remark="d = 8",
    ),
    Comparison(
        "Deberta", NAME, "transformers", FORMULA, partial(run, width=16), LENGTHS,
        precision=torch.finfo(torch.float32).eps / 2,
        remark="d = 16: their scale is the root of 48 in float32",
    ),
]  # fmt: skip
