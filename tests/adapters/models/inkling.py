"""The first Inkling: relative logits from the queries, and layers that slide."""

from typing import Any

from transformers import InklingForCausalLM, InklingTextConfig

from .alibi import inputs
from .case import Case

SIZES: dict[str, Any] = {
    "vocab_size": 50, "unpadded_vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12,
    "swa_num_attention_heads": 4, "swa_num_key_value_heads": 1, "swa_head_dim": 8,
    "sliding_window_size": 7, "d_rel": 5, "rel_extent": 9, "log_scaling_n_floor": 11,
    "layer_types": ["hybrid_sliding", "hybrid"], "moe_intermediate_size": 16,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "pad_token_id": 0, "bos_token_id": None,
    "eos_token_id": None, "attention_dropout": 0.0,
}  # fmt: skip


def case(name, build, positions, linear="", adapted=2, **options):
    return Case(
        name,
        build,
        inputs,
        positions=positions,
        adapted=adapted,
        attention="model.layers.1.self_attn",
        output="logits",
        generates=True,
        linears=(f"q_proj{linear}", f"v_proj{linear}"),
        dropout=lambda attention, p: setattr(attention, "attention_dropout", p),
        **{"without": ("static cache",)} | options,
    )


CASES = [
    case(
        "inkling",
        lambda: InklingForCausalLM(
            InklingTextConfig(
                **SIZES,
                intermediate_size=48,
                n_shared_experts=1,
                logits_mup_width_multiplier=1.0,
                mlp_layer_types=["dense", "sparse"],
            )
        ),
        ("rel_logits_proj", "r_proj"),
    ),
]
