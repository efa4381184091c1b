"""MPNet."""

from transformers import MPNetConfig, MPNetModel

from .case import Case, tokens

SIZES = {
    "vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 48, "max_position_embeddings": 1100, "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}  # fmt: skip


CASES = [
    Case(
        "mpnet",
        lambda: MPNetModel(MPNetConfig(**SIZES), add_pooling_layer=False),
        tokens,
        positions=("relative_attention_bias",),
        adapted=2,
        attention="encoder.layer.1.attention.attn",
        linears=("q", "v"),
        dropout=lambda attention, p: setattr(attention.dropout, "p", p),
    )
]
