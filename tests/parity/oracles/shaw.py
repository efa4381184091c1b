"""Shaw's relative keys and values elsewhere: four sets of rows, two signs."""

from __future__ import annotations

import torch
from conformer.conformer import Attention as ConformerAttention
from torch import Tensor, nn
from transformers import VitsConfig, Wav2Vec2BertConfig
from transformers.models.speecht5.modeling_speecht5 import (
    SpeechT5Attention,
    SpeechT5RelativePositionalEncoding,
)
from transformers.models.vits.modeling_vits import VitsAttention
from transformers.models.wav2vec2_bert.modeling_wav2vec2_bert import (
    Wav2Vec2BertSelfAttention,
    _apply_relative_key_position_encoding,
)

from relpos.positions import Huang, Shaw
from tests.parity.comparison import Comparison, Trial, attended, randomized
from tests.parity.oracles.inputs import HEADS, MODEL, WIDTH, additive, hidden, keep, merge, split


def wav2vec2_bert(left: int, right: int) -> Wav2Vec2BertSelfAttention:
    """A layer of w2v-BERT 2.0, which clips at another distance on each side."""
    config = Wav2Vec2BertConfig(
        hidden_size=MODEL, num_attention_heads=HEADS, position_embeddings_type="relative_key",
        left_max_position_embeddings=left, right_max_position_embeddings=right,
        attn_implementation="eager",
    )  # fmt: skip
    return randomized(Wav2Vec2BertSelfAttention(config))


def like_wav2vec2_bert(
    theirs: Wav2Vec2BertSelfAttention, position: nn.Module, x: Tensor, **arguments: object
) -> Tensor:
    """The same layer with relpos between its projections."""
    q, k, v = (split(linear(x)) for linear in (theirs.linear_q, theirs.linear_k, theirs.linear_v))
    tables = {"keys": theirs.distance_embedding.weight[None]}
    return theirs.linear_out(merge(attended(position, tables, q, k, v, **arguments)))


def run_wav2vec2_bert(length: int, padded: bool = False) -> Trial:
    theirs, x = wav2vec2_bert(64, 8), hidden(length)
    mask = keep(length, padded=padded)[:, None, None]
    position = Shaw(WIDTH, (64, 8), values=False, dtype=torch.float64)
    return Trial(
        ours=like_wav2vec2_bert(theirs, position, x, mask=mask),
        theirs=theirs(x, additive(mask))[0],
        leaves={"x": x, **dict(theirs.named_parameters())},
        tables=["distance_embedding.weight"],
    )


def run_first_queries(queries: int, keys: int) -> Trial:
    """Fewer queries than keys, which are the first ones in their code."""
    theirs = wav2vec2_bert(64, 8)
    q, k, v = (hidden(length, seed=seed) for seed, length in enumerate((queries, keys, keys)))
    heads = [split(each) for each in (q, k, v)]
    position = Shaw(WIDTH, (64, 8), values=False, dtype=torch.float64)
    tables = {"keys": theirs.distance_embedding.weight[None]}
    _, bias = _apply_relative_key_position_encoding(theirs, *heads[:2])
    scores = heads[0] @ heads[1].mT * theirs.scaling + bias
    return Trial(
        ours=attended(position, tables, *heads, query_start=0),
        theirs=scores.softmax(-1) @ heads[2],
        leaves={"q": q, "k": k, "v": v, "rows": theirs.distance_embedding.weight},
        tables=["rows"],
    )


def run_causal(length: int, rows: int = 40) -> Trial:
    """Huang's table is Shaw's with nothing ahead, under a causal mask."""
    theirs, x = wav2vec2_bert(rows - 1, 0), hidden(length)
    mask = torch.ones(length, length, dtype=torch.bool).tril()
    position = Huang(WIDTH, rows, dtype=torch.float64)
    return Trial(
        ours=like_wav2vec2_bert(theirs, position, x, causal=True),
        theirs=theirs(x, additive(mask))[0],
        leaves={"x": x, **dict(theirs.named_parameters())},
        tables=["distance_embedding.weight"],
    )


def run_vits(length: int, padded: bool = False) -> Trial:
    window = 4
    config = VitsConfig(hidden_size=MODEL, num_attention_heads=HEADS, window_size=window)
    theirs, x = randomized(VitsAttention(config)), hidden(length)
    mask = keep(length, padded=padded)[:, None, None]
    position = Shaw(WIDTH, window, beyond="zero", dtype=torch.float64)
    q, k, v = (split(linear(x)) for linear in (theirs.q_proj, theirs.k_proj, theirs.v_proj))
    tables = {"keys": theirs.emb_rel_k, "values": theirs.emb_rel_v}
    full = additive(mask).expand(-1, -1, length, -1)
    return Trial(
        ours=theirs.out_proj(merge(attended(position, tables, q, k, v, mask=mask))),
        theirs=theirs(x, attention_mask=full)[0],
        leaves={"x": x, **dict(theirs.named_parameters())},
        tables=list(tables_of(theirs, "emb_rel")),
    )


def run_speecht5(length: int, padded: bool = False) -> Trial:
    distance = 20
    layer = randomized(SpeechT5Attention(MODEL, HEADS))
    encoding = randomized(SpeechT5RelativePositionalEncoding(WIDTH, distance), seed=1)
    x, mask = hidden(length), keep(length, padded=padded)[:, None, None]
    # Query minus key: their last row is our first. There is no row for a key `distance` behind.
    position = Shaw(WIDTH, (distance - 1, distance), values=False, dtype=torch.float64)
    q, k, v = (split(linear(x)) for linear in (layer.q_proj, layer.k_proj, layer.v_proj))
    tables = {"keys": encoding.pe_k.weight.flip(0)[None]}
    full = additive(mask).expand(-1, -1, length, -1)
    return Trial(
        ours=layer.out_proj(merge(attended(position, tables, q, k, v, mask=mask))),
        theirs=layer(x, attention_mask=full, position_bias=encoding(x))[0],
        leaves={"x": x, "pe_k": encoding.pe_k.weight, **dict(layer.named_parameters())},
        tables=["pe_k"],
    )


def run_conformer(length: int, padded: bool = False) -> Trial:
    distance = 20
    theirs = randomized(ConformerAttention(MODEL, HEADS, WIDTH, max_pos_emb=distance))
    x, mask = hidden(length), keep(length, padded=padded)
    position = Shaw(WIDTH, distance, values=False, dtype=torch.float64)
    k, v = theirs.to_kv(x).chunk(2, dim=-1)
    tables = {"keys": theirs.rel_pos_emb.weight.flip(0)[None]}
    ours = attended(
        position, tables, split(theirs.to_q(x)), split(k), split(v), mask=mask[:, None, None]
    )
    # A padded query averages the values in their code and sees the text in ours: compare the text.
    return Trial(
        ours=theirs.to_out(merge(ours))[mask],
        theirs=theirs(x, mask=mask)[mask],
        leaves={"x": x, **dict(theirs.named_parameters())},
        tables=["rel_pos_emb.weight"],
    )


def tables_of(module: nn.Module, prefix: str) -> list[str]:
    """Names of the parameters that begin with `prefix`."""
    return [name for name, _ in module.named_parameters() if name.startswith(prefix)]


COMPARISONS = [
    Comparison(
        "Shaw", "Wav2Vec2BertSelfAttention", "transformers",
        "S q_i . (k_j + E[clip(j - i, -64, 8)])", run_wav2vec2_bert,
        cases=({"length": 1}, {"length": 33}, {"length": 97, "padded": True}),
    ),
    Comparison(
        "Shaw", "_apply_relative_key_position_encoding", "transformers",
        "S q_i . (k_j + E[clip(j - i, -64, 8)])", run_first_queries,
        cases=({"queries": 1, "keys": 33}, {"queries": 33, "keys": 65}),
        remark="the first queries of more keys",
    ),
    Comparison(
        "Shaw", "VitsAttention", "transformers",
        "S q_i . (k_j + K[j - i]), v_j + V[j - i]", run_vits,
        remark="nothing beyond 4 tokens",
    ),
    Comparison(
        "Shaw", "SpeechT5Attention", "transformers",
        "S q_i . (k_j + E[clip(i - j, -k, k - 1)])", run_speecht5,
        remark="2k rows: +k falls into k - 1",
    ),
    Comparison(
        "Shaw", "Attention", "conformer",
        "S q_i . (k_j + E[clip(i - j, -k, k)])", run_conformer,
    ),
    Comparison(
        "Huang", "Wav2Vec2BertSelfAttention", "transformers",
        "S q_i . (k_j + E[max(j - i, 1 - L)])", run_causal,
        cases=({"length": 1}, {"length": 33}, {"length": 65}),
        remark="causal; nothing clipped ahead, 40 rows",
    ),
]  # fmt: skip
