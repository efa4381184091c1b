"""The models that hold T5's attention under other names, or one much like it."""

import torch
import transformers as hf

from .case import Case, padded, tokens
from .t5 import SIZES, draw_unscaled, inputs

BOTH = {
    "positions": ("relative_attention_bias",), "adapted": 6, "output": "logits",
    "attention": "encoder.block.1.layer.0.SelfAttention", "attentions": "encoder_attentions",
    "linears": ("q", "v"), "dropout": lambda attention, p: setattr(attention, "dropout", p),
    "draw": draw_unscaled,
}  # fmt: skip
# The end of a text never comes early, so that generated ones are equally long.
DECODER = {**SIZES, "num_decoder_layers": 2, "eos_token_id": None}
PATCHES, SIDE = 9, 4


def both(name, model, config, *, first=False, generates=True, **changed):
    """An encoder and a decoder of two layers, called as T5 is."""
    options = {key: changed.pop(key) for key in list(changed) if key in Case.__dataclass_fields__}
    return Case(
        name,
        lambda: model(config(**{**DECODER, **changed})),
        inputs,
        first=first,
        generates=generates,
        **{**BOTH, **options},
    )


def decoder_inputs(batch, length, padding):
    """What a decoder beside an encoder of pages is called with; the page is short."""
    ids = tokens(batch, length, "none")["input_ids"]
    mask = padded(batch, length, padding)
    if mask is None:
        return {"decoder_input_ids": ids, "labels": ids}
    labels = ids.masked_fill(mask == 0, -100)
    return {"decoder_input_ids": ids, "labels": labels, "decoder_attention_mask": mask}


def decoder_tokens(output, inputs):
    mask = inputs.get("decoder_attention_mask")
    return output if mask is None else output[mask.bool()]


def image_inputs(batch, length, padding):
    places = torch.arange(PATCHES).expand(batch, -1)
    patches = torch.randn(batch, PATCHES, SIDE)
    patches = torch.cat([(places // 3)[..., None], (places % 3)[..., None], patches], -1)
    return decoder_inputs(batch, length, padding) | {"flattened_patches": patches}


def page_inputs(batch, length, padding):
    corners = torch.randint(0, 100, (batch, PATCHES, 2)) / 200
    page = {"bbox": torch.cat([corners, corners + 0.3], -1)}
    return decoder_inputs(batch, length, padding) | tokens(batch, PATCHES, "right") | page


def pix2struct():
    sizes = {key: DECODER[key] for key in DECODER if key not in ("d_model", "num_decoder_layers")}
    text = hf.Pix2StructTextConfig(**sizes, hidden_size=32)
    vision = hf.Pix2StructVisionConfig(
        hidden_size=32, patch_embed_hidden_size=SIDE, d_ff=48, d_kv=8, num_hidden_layers=1,
        num_attention_heads=4, seq_len=8, initializer_range=0.02,
    )  # fmt: skip
    return hf.Pix2StructForConditionalGeneration(
        hf.Pix2StructConfig(text_config=text.to_dict(), vision_config=vision.to_dict())
    )


def udop():
    # The encoder's tables have 32 rows whatever the configuration says.
    config = hf.UdopConfig(
        **{**DECODER, "relative_attention_num_buckets": 32}, image_size=8, patch_size=4
    )
    return hf.UdopForConditionalGeneration(config)


CASES = [
    both("mt5", hf.MT5ForConditionalGeneration, hf.MT5Config),
    both("umt5", hf.UMT5ForConditionalGeneration, hf.UMT5Config, first=True),
    both(
        "switch_transformers", hf.SwitchTransformersForConditionalGeneration,
        hf.SwitchTransformersConfig, num_experts=4, router_jitter_noise=0.0,
    ),
    both(
        "longt5, local", hf.LongT5ForConditionalGeneration, hf.LongT5Config, first=True,
        attention="encoder.block.1.layer.0.LocalSelfAttention", local_radius=6,
        encoder_attention_type="local", without=("fp16",),
    ),
    both(
        "longt5, transient-global", hf.LongT5ForConditionalGeneration, hf.LongT5Config, first=True,
        attention="encoder.block.1.layer.0.TransientGlobalSelfAttention", local_radius=6,
        global_block_size=4, encoder_attention_type="transient-global", without=("fp16",),
    ),
    both("pop2piano", hf.Pop2PianoForConditionalGeneration, hf.Pop2PianoConfig, generates=False),
    Case(
        "t5 without a decoder",
        lambda: hf.T5EncoderModel(hf.T5Config(**SIZES)),
        tokens,
        **{**BOTH, "adapted": 2, "output": "last_hidden_state", "attentions": "attentions"},
        first=False,
    ),
    Case(
        "pix2struct",
        pix2struct,
        image_inputs,
        **{
            **BOTH, "adapted": 4, "attention": "decoder.layer.1.self_attention.attention",
            "attentions": "decoder_attentions", "linears": ("query", "value"),
        },
        real=decoder_tokens,
        generates=True,
    ),
    Case(
        "udop",
        udop,
        page_inputs,
        **{
            **BOTH, "adapted": 4, "attention": "decoder.block.1.layer.0.SelfAttention",
            "attentions": "decoder_attentions",
        },
        left="boxes on a page",
        real=decoder_tokens,
        first=False,
        generates=True,
    ),
]  # fmt: skip
