"""Models of transformers at the sizes of published ones, with random weights and few layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn

__all__ = ["LONG_INPUTS", "MODELS", "AdaptedModel", "LongInput", "draw", "find_model"]


@dataclass(frozen=True)
class AdaptedModel:
    """One model, of which the second layer is timed.

    Args:
        family: its name in `relpos.adapters.families()`.
        name: of the family and the size, as pages print it.
        build: the model, with so many layers.
        inputs: of a batch of one with so many positions in a layer.
        unit: what a position is.
        lengths: at which time is measured; the first is a short input.
        memory: lengths at which peak memory is measured.
        layer: the name of the second layer.
        attention: the name of its attention, below the layer.
        wanted: the least speed-up of the attention module, by length.
    """

    family: str
    name: str
    build: Callable[[int], nn.Module]
    inputs: Callable[[int], dict[str, Any]]
    unit: str
    lengths: tuple[int, ...]
    memory: tuple[int, ...]
    layer: str
    attention: str
    wanted: dict[int, float]


@dataclass(frozen=True)
class LongInput:
    """One pass of a model over an input of a length that the original cannot take.

    Args:
        name: of the input, as pages print it.
        model: by its name.
        length: in the model's unit.
        layers: of the model.
        all_layers: that the published model has.
    """

    name: str
    model: str
    length: int
    layers: int
    all_layers: int


def draw(model: nn.Module) -> nn.Module:
    """Give every parameter numbers that matter: some models begin with zeros."""
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            fan = max(parameter[0].numel(), 1)
            nn.init.normal_(parameter, std=fan**-0.5 if "embed" not in name else 0.1)
        elif "norm" not in name.lower():
            nn.init.normal_(parameter, std=0.02)
    return model.eval()


def _ids(length: int) -> dict[str, Any]:
    return {"input_ids": torch.arange(length)[None] % 900 + 10}


def _features(width: int, times: int = 1) -> Callable[[int], dict[str, Any]]:
    def inputs(length: int) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(1)
        return {"input_features": torch.randn(1, times * length, width, generator=generator)}

    return inputs


def _audio(stride: int, extra: int) -> Callable[[int], dict[str, Any]]:
    def inputs(length: int) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(1)
        return {"input_values": torch.randn(1, stride * length + extra, generator=generator)}

    return inputs


def _image(length: int) -> dict[str, Any]:
    side = 16 * round(length**0.5)
    generator = torch.Generator().manual_seed(1)
    return {"pixel_values": torch.randn(1, 3, side, side, generator=generator)}


def _parakeet(layers: int) -> nn.Module:
    config = transformers.ParakeetEncoderConfig(
        hidden_size=1024, num_hidden_layers=layers, num_attention_heads=8, intermediate_size=4096
    )
    return transformers.ParakeetEncoder(config)


def _wav2vec2_bert(layers: int) -> nn.Module:
    config = transformers.Wav2Vec2BertConfig(num_hidden_layers=layers, apply_spec_augment=False)
    return transformers.Wav2Vec2BertModel(config)


def _deberta(layers: int) -> nn.Module:
    sizes: dict[str, Any] = {
        "vocab_size": 1000, "hidden_size": 768, "num_hidden_layers": layers,
        "num_attention_heads": 12, "intermediate_size": 3072, "relative_attention": True,
        "position_buckets": 256, "pos_att_type": "p2c|c2p", "norm_rel_ebd": "layer_norm",
        "share_att_key": True, "max_position_embeddings": 512, "position_biased_input": False,
    }  # fmt: skip
    return transformers.DebertaV2Model(transformers.DebertaV2Config(**sizes))


def _t5(layers: int) -> nn.Module:
    config = transformers.T5Config(
        vocab_size=1000, d_model=768, d_kv=64, d_ff=2048, num_layers=layers, num_heads=12,
        feed_forward_proj="gated-gelu",
    )  # fmt: skip
    return transformers.T5EncoderModel(config)


def _sam(layers: int) -> nn.Module:
    config = transformers.SamVisionConfig(
        num_hidden_layers=layers, global_attn_indexes=[layers - 1]
    )
    return transformers.SamVisionModel(config)


def _wavlm(layers: int) -> nn.Module:
    return transformers.WavLMModel(transformers.WavLMConfig(num_hidden_layers=layers))


def _seamless(layers: int) -> nn.Module:
    config = transformers.SeamlessM4Tv2Config(speech_encoder_layers=layers)
    module = transformers.models.seamless_m4t_v2.modeling_seamless_m4t_v2
    return module.SeamlessM4Tv2SpeechEncoder(config)


def _wav2vec2_conformer(layers: int) -> nn.Module:
    config = transformers.Wav2Vec2ConformerConfig(
        hidden_size=1024, num_hidden_layers=layers, num_attention_heads=16,
        intermediate_size=4096, position_embeddings_type="relative",
    )  # fmt: skip
    return transformers.Wav2Vec2ConformerModel(config)


def _mpnet(layers: int) -> nn.Module:
    config = transformers.MPNetConfig(
        vocab_size=1000, num_hidden_layers=layers, max_position_embeddings=2100
    )
    return transformers.MPNetModel(config)


def _bloom(layers: int) -> nn.Module:
    config = transformers.BloomConfig(
        vocab_size=1000, hidden_size=1024, n_layer=layers, n_head=16, use_cache=False
    )
    return transformers.BloomModel(config)


MODELS = (
    AdaptedModel(
        "parakeet", "Parakeet (width 1024)", _parakeet, _features(80, 8), "frames of 80 ms",
        (125, 375, 3750), (3750, 9000, 15000), "layers.1", "self_attn", {3750: 2.7},
    ),
    AdaptedModel(
        "wav2vec2_bert", "w2v-BERT 2.0", _wav2vec2_bert, _features(160), "frames of 20 ms",
        (500, 1500, 4500), (1500, 4500, 15000), "encoder.layers.1", "self_attn", {1500: 4.5},
    ),
    AdaptedModel(
        "deberta_v2", "DeBERTa-v3 base", _deberta, _ids, "tokens",
        (128, 512, 2048), (2048, 4096, 8192), "encoder.layer.1", "attention.self", {2048: 6.0},
    ),
    AdaptedModel(
        "t5", "Flan-T5 base, encoder", _t5, _ids, "tokens",
        (128, 512, 2048), (2048, 4096, 8192), "encoder.block.1.layer.0", "SelfAttention",
        {2048: 2.7},
    ),
    AdaptedModel(
        "sam", "SAM B, global layer", _sam, _image, "patches of an image",
        (4096,), (4096,), "vision_encoder.layers.1", "attn", {4096: 2.5},
    ),
    AdaptedModel(
        "seamless_m4t_v2",
        "SeamlessM4T v2 large, speech", _seamless, _features(160), "frames of 20 ms",
        (500, 1500, 4500), (1500, 4500), "encoder.layers.1", "self_attn", {},
    ),
    AdaptedModel(
        "wav2vec2_conformer",
        "Wav2Vec2-Conformer large", _wav2vec2_conformer, _audio(320, 80), "frames of 20 ms",
        (500, 1500), (1500, 4500), "encoder.layers.1", "self_attn", {},
    ),
    AdaptedModel(
        "mpnet", "MPNet base", _mpnet, _ids, "tokens",
        (128, 512, 2048), (2048,), "encoder.layer.1", "attention.attn", {},
    ),
    AdaptedModel(
        "bloom", "BLOOM 560m", _bloom, _ids, "tokens",
        (128, 512, 2048), (2048, 8192), "h.1", "self_attention", {},
    ),
    AdaptedModel(
        "wavlm", "WavLM base", _wavlm, _audio(320, 80), "frames of 20 ms",
        (500, 1500, 4500), (1500, 6000), "encoder.layers.1", "attention", {1500: 2.3},
    ),
)  # fmt: skip


LONG_INPUTS = (
    LongInput("one hour of speech", "Parakeet (width 1024)", 45_000, 24, 24),
    LongInput("a document of 32k tokens", "DeBERTa-v3 base", 32_768, 12, 12),
    # All of its layers would take hours.
    LongInput("one hour of audio", "w2v-BERT 2.0", 180_000, 1, 24),
)


def find_model(name: str) -> AdaptedModel:
    """The model of this name."""
    return next(model for model in MODELS if model.name == name)
