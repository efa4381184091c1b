"""w2v-BERT 2.0."""

import torch
from transformers import Wav2Vec2BertConfig, Wav2Vec2BertModel

from .case import Case, padded

SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "feature_projection_input_dim": 16, "left_max_position_embeddings": 9,
    "right_max_position_embeddings": 4, "hidden_dropout": 0.0, "attention_dropout": 0.0,
    "activation_dropout": 0.0, "feat_proj_dropout": 0.0, "conformer_conv_dropout": 0.0,
    "layerdrop": 0.0, "mask_time_prob": 0.0, "mask_feature_prob": 0.0, "apply_spec_augment": False,
}  # fmt: skip


def inputs(batch, length, padding):
    features = {"input_features": torch.randn(batch, length, 16)}
    mask = padded(batch, length, padding)
    return features if mask is None else features | {"attention_mask": mask}


def case(kind, positions):
    return Case(
        f"wav2vec2_bert {kind}",
        lambda: Wav2Vec2BertModel(Wav2Vec2BertConfig(**SIZES, position_embeddings_type=kind)),
        inputs,
        positions=positions,
        adapted=2,
        attention="encoder.layers.1.self_attn",
        linears=("linear_q", "linear_v"),
        dropout=lambda attention, p: setattr(attention.dropout, "p", p),
    )


CASES = [
    case("relative_key", ("distance_embedding",)),
    case("relative", ("linear_pos", "pos_bias_v")),
]
