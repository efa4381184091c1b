"""Encoders of speech."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import nn

from .model import AdaptedModel, audio, features, ids

__all__ = ["MODELS"]

_models = transformers.models


def _parakeet(layers: int) -> nn.Module:
    config = transformers.ParakeetEncoderConfig(
        hidden_size=1024, num_hidden_layers=layers, num_attention_heads=8, intermediate_size=4096
    )
    return transformers.ParakeetEncoder(config)


def _nemotron(layers: int) -> nn.Module:
    config = transformers.NemotronAsrStreamingEncoderConfig(num_hidden_layers=layers)
    return transformers.NemotronAsrStreamingEncoder(config)


def _wav2vec2_bert(layers: int) -> nn.Module:
    config = transformers.Wav2Vec2BertConfig(num_hidden_layers=layers, apply_spec_augment=False)
    return transformers.Wav2Vec2BertModel(config)


def _seamless(layers: int) -> nn.Module:
    config = transformers.SeamlessM4Tv2Config(speech_encoder_layers=layers)
    return _models.seamless_m4t_v2.modeling_seamless_m4t_v2.SeamlessM4Tv2SpeechEncoder(config)


def _wav2vec2_conformer(layers: int) -> nn.Module:
    config = transformers.Wav2Vec2ConformerConfig(
        hidden_size=1024, num_hidden_layers=layers, num_attention_heads=16,
        intermediate_size=4096, position_embeddings_type="relative",
    )  # fmt: skip
    return transformers.Wav2Vec2ConformerModel(config)


def _wavlm(layers: int) -> nn.Module:
    return transformers.WavLMModel(transformers.WavLMConfig(num_hidden_layers=layers))


def _sew_d(layers: int) -> nn.Module:
    return transformers.SEWDModel(transformers.SEWDConfig(num_hidden_layers=layers))


def _speecht5(layers: int) -> nn.Module:
    config = transformers.SpeechT5Config(encoder_layers=layers, encoder_layerdrop=0.0)
    return _models.speecht5.modeling_speecht5.SpeechT5EncoderWithSpeechPrenet(config)


def _granite(layers: int) -> nn.Module:
    config = transformers.GraniteSpeechEncoderConfig(num_layers=layers)
    return _models.granite_speech.modeling_granite_speech.GraniteSpeechCTCEncoder(config)


def _gemma3n(layers: int) -> nn.Module:
    config = transformers.Gemma3nAudioConfig(conf_num_hidden_layers=layers)
    return transformers.Gemma3nAudioEncoder(config)


def _gemma4(layers: int) -> nn.Module:
    return transformers.Gemma4AudioModel(transformers.Gemma4AudioConfig(num_hidden_layers=layers))


def _fastspeech2(layers: int) -> nn.Module:
    config = transformers.FastSpeech2ConformerConfig(encoder_layers=layers)
    module = _models.fastspeech2_conformer.modeling_fastspeech2_conformer
    return module.FastSpeech2ConformerEncoder(
        config, config.encoder_config, use_encoder_input_layer=True
    )


def _mel(length: int) -> dict[str, Any]:
    given = features(128, 4, name="audio_mel")(length)
    return given | {"audio_mel_mask": torch.zeros(1, 4 * length, dtype=torch.bool)}


def _phones(length: int) -> dict[str, Any]:
    return {"input_tensor": ids(length)["input_ids"] % 70 + 1, "return_dict": True}


MODELS = (
    AdaptedModel(
        "parakeet", "Parakeet (width 1024)", _parakeet, features(80, 8), "frames of 80 ms",
        (125, 375, 3750), (3750, 9000, 15000), "layers.1", "self_attn", {3750: 2.7},
    ),
    AdaptedModel(
        "nemotron_asr_streaming", "Nemotron streaming", _nemotron, features(80, 8),
        "frames of 80 ms", (125, 375, 3750), (1500, 4500), "layers.1", "self_attn", {},
        ("sdpa",),  # its eager attention inverts the mask
    ),
    AdaptedModel(
        "wav2vec2_bert", "w2v-BERT 2.0", _wav2vec2_bert, features(160), "frames of 20 ms",
        (500, 1500, 4500), (1500, 4500, 15000), "encoder.layers.1", "self_attn", {1500: 4.5},
    ),
    AdaptedModel(
        "seamless_m4t_v2", "SeamlessM4T v2 large, speech", _seamless, features(160),
        "frames of 20 ms", (500, 1500, 4500), (1500, 4500), "encoder.layers.1", "self_attn", {},
    ),
    AdaptedModel(
        "wav2vec2_conformer", "Wav2Vec2-Conformer large", _wav2vec2_conformer, audio(320, 80),
        "frames of 20 ms", (500, 1500), (1500, 4500), "encoder.layers.1", "self_attn", {},
    ),
    AdaptedModel(
        "wavlm", "WavLM base", _wavlm, audio(320, 80), "frames of 20 ms",
        (500, 1500, 4500), (1500, 6000), "encoder.layers.1", "attention", {1500: 2.3},
    ),
    AdaptedModel(
        "sew_d", "SEW-D", _sew_d, audio(640, 400), "frames of 40 ms",
        (250, 750, 2250), (750, 2250), "encoder.encoder.layer.1", "attention.self", {},
    ),
    AdaptedModel(
        "speecht5", "SpeechT5, encoder of speech", _speecht5, audio(320, 80), "frames of 20 ms",
        (500, 1500), (1500, 3000), "wrapped_encoder.layers.1", "attention", {},
    ),
    AdaptedModel(
        "granite_speech", "Granite Speech", _granite,
        features(160, name="hidden_states"), "frames of 20 ms",
        (500, 1500, 4500), (4500, 15000), "layers.1", "attn", {},
    ),
    AdaptedModel(
        "gemma3n", "Gemma 3n, encoder of audio", _gemma3n, _mel, "frames of 40 ms",
        (250, 750, 2250), (2250, 9000), "conformer.1", "attention.attn", {},
    ),
    AdaptedModel(
        "gemma4", "Gemma 4, encoder of audio", _gemma4, features(128, 4), "frames of 40 ms",
        (250, 750, 2250), (2250, 9000), "layers.1", "self_attn", {},
    ),
    AdaptedModel(
        "fastspeech2_conformer", "FastSpeech2-Conformer, encoder", _fastspeech2, _phones, "phones",
        (128, 512, 2048), (2048, 4096), "conformer_layers.1", "self_attn", {},
    ),
)  # fmt: skip
