"""VITS: its text encoder, which holds all of its attention."""

from transformers import VitsConfig, VitsPreTrainedModel
from transformers.models.vits.modeling_vits import VitsTextEncoder

from .case import Case, tokens

SIZES = {
    "vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "ffn_dim": 48, "flow_size": 8, "window_size": 4, "layerdrop": 0.0, "hidden_dropout": 0.0,
    "attention_dropout": 0.0, "activation_dropout": 0.0,
}  # fmt: skip


class TextEncoder(VitsPreTrainedModel):
    """The text encoder as a model of its own: what follows it aligns tokens with frames."""

    def __init__(self, config):
        super().__init__(config)
        self.text_encoder = VitsTextEncoder(config)
        self.post_init()

    def forward(self, input_ids, attention_mask=None, **kwargs):
        padding = (input_ids >= 0 if attention_mask is None else attention_mask)[..., None]
        dtype = self.text_encoder.project.weight.dtype
        return self.text_encoder(
            input_ids, padding_mask=padding.to(dtype), attention_mask=attention_mask, **kwargs
        )


CASES = [
    Case(
        "vits",
        lambda: TextEncoder(VitsConfig(**SIZES)),
        tokens,
        positions=("emb_rel_k", "emb_rel_v"),
        adapted=2,
        attention="text_encoder.encoder.layers.1.attention",
        linears=("q_proj", "v_proj"),
        dropout=lambda attention, p: setattr(attention, "dropout", p),
    ),
]
