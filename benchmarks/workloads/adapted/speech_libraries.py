"""Encoders of speech of other libraries, at the sizes of published ones."""

from __future__ import annotations

from typing import Any
from warnings import catch_warnings, simplefilter

import torch
from torch import Tensor, nn

from tests.apart import import_apart

from .model import AdaptedModel, audio

__all__ = ["MODELS"]


def _frames(length: int) -> dict[str, Any]:
    """Frames of width 512, as they come from the convolutions before the encoder."""
    generator = torch.Generator().manual_seed(1)
    return {"x": torch.randn(1, length, 512, generator=generator)}


class _NemoEncoder(nn.Module):
    """The large one (FastConformer, Conformer); of convolutions along time only the layers'."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        encoder = import_apart("nemo.collections.asr.modules.conformer_encoder").ConformerEncoder
        self.encoder = encoder(
            feat_in=512, n_layers=layers, d_model=512, n_heads=8, subsampling=None,
            conv_kernel_size=9, sync_max_audio_length=False,
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(audio_signal=x.mT, length=None)[0]


class _SpeechBrainEncoder(nn.Module):
    """The large one."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        models = import_apart("speechbrain.lobes.models.transformer.Conformer")
        self.encoder = models.ConformerEncoder(layers, 512, 2048, 8)
        self.positions = import_apart("speechbrain.nnet.attention").RelPosEncXL(512)

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(x, pos_embs=self.positions(x).to(x.dtype))[0]


class _FunASREncoder(nn.Module):
    """The large E-Branchformer."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        encoder = import_apart("funasr.models.e_branchformer.encoder").EBranchformerEncoder
        self.encoder = encoder(
            512, 512, attention_heads=8, attention_layer_type="rel_selfattn", rel_pos_type="latest",
            pos_enc_layer_type="rel_pos", cgmlp_linear_units=3072, cgmlp_conv_kernel=31,
            use_ffn=True, macaron_ffn=True, linear_units=1024, num_blocks=layers,
            input_layer="linear",
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.ones(1, 1, x.shape[1], dtype=torch.bool, device=x.device)
        (x, _), _ = self.encoder.encoders(self.encoder.embed(x), mask)
        return self.encoder.after_norm(x)


class _PiperEncoder(nn.Module):
    """VITS's encoder of text."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.encoder = import_apart("piper.train.vits.attentions").Encoder(192, 768, 2, layers, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(x, x.new_ones(1, 1, x.shape[2]))


def _phonemes(length: int) -> dict[str, Any]:
    """Phonemes of width 192, as they come from the embedding."""
    generator = torch.Generator().manual_seed(1)
    return {"x": torch.randn(1, 192, length, generator=generator)}


class _TorchaudioWavLM(nn.Module):
    """The base one."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        module = import_apart("torchaudio.models.wav2vec2.model")
        self.model = module.wavlm_model(
            "group_norm", None, False, 768, 0.1, 128, 16, layers, 12, 320, 800, 0.1, 3072, 0.1,
            0.1, False, 0.0, None,
        )  # fmt: skip

    def forward(self, input_values: Tensor) -> Tensor:
        return self.model(input_values)[0]


class _Fairseq2Layer(nn.Module):
    """Projections around fairseq2's attention, as its layers have them."""

    def __init__(self) -> None:
        super().__init__()
        files = "fairseq2.models.transformer"
        bias = import_apart(f"{files}.attention_bias").IdentityBias()
        self.qkv, self.output_proj = nn.Linear(1024, 3072), nn.Linear(1024, 1024)
        self.sdpa = import_apart(f"{files}.sdpa.shaw").ShawRelativePositionSDPA(
            1024, 16, bias, 64, max_rhs_rel_pos=8
        )

    def forward(self, x: Tensor, layout: Any, cache: Any) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 16, 64)).unbind(2)
        output, _ = self.sdpa(q, layout, k, layout, v, cache)
        return x + self.output_proj(output.flatten(2))


class _Fairseq2Encoder(nn.Module):
    """The attention of w2v-BERT 2.0's layers."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Fairseq2Layer() for _ in range(layers))
        self.cache = import_apart("fairseq2.models.transformer.attention_bias").AttentionBiasCache

    def forward(self, x: Tensor) -> Tensor:
        layout, cache = import_apart("fairseq2.nn").BatchLayout.of(x), self.cache()
        for layer in self.layers:
            x = layer(x, layout, cache)
        return x


def _wide_frames(length: int) -> dict[str, Any]:
    """Frames of width 1024."""
    generator = torch.Generator().manual_seed(1)
    return {"x": torch.randn(1, length, 1024, generator=generator)}


class _S3prlWavLM(nn.Module):
    """The base one."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        module = import_apart("s3prl.upstream.wavlm.WavLM")
        config = module.WavLMConfig({
            "encoder_layers": layers, "relative_position_embedding": True, "num_buckets": 320,
            "max_distance": 800, "gru_rel_pos": True, "encoder_layerdrop": 0.0,
        })  # fmt: skip
        with catch_warnings():
            simplefilter("ignore")  # of the older weight_norm
            self.model = module.WavLM(config)

    def forward(self, input_values: Tensor) -> Tensor:
        return self.model.extract_features(input_values)[0]


MODELS = (
    AdaptedModel(
        "nemo", "NeMo: FastConformer L", _NemoEncoder, _frames, "frames of 80 ms",
        (250, 750, 3750), (3750,), "encoder.layers.1", "self_attn", {},
    ),
    AdaptedModel(
        "speechbrain", "SpeechBrain: Conformer L", _SpeechBrainEncoder, _frames,
        "frames of 40 ms", (250, 750, 3750), (3750,), "encoder.layers.1", "mha_layer", {},
    ),
    AdaptedModel(
        "funasr", "FunASR: E-Branchformer L", _FunASREncoder, _frames, "frames of 40 ms",
        (250, 750, 3750), (3750,), "encoder.encoders.1", "attn", {},
    ),
    AdaptedModel(
        "piper", "Piper, encoder of text", _PiperEncoder, _phonemes, "phonemes",
        (128, 512, 2048), (2048, 4096), "encoder", "attn_layers.1", {},
    ),
    AdaptedModel(
        "torchaudio_wavlm", "torchaudio: WavLM base", _TorchaudioWavLM, audio(320, 80),
        "frames of 20 ms", (500, 1500, 4500), (1500, 6000),
        "model.encoder.transformer.layers.1", "attention", {},
    ),
    AdaptedModel(
        "fairseq2_shaw", "fairseq2: Shaw's keys, as w2v-BERT 2.0 has them", _Fairseq2Encoder,
        _wide_frames, "frames of 20 ms", (250, 750, 1500), (1500, 3750), "layers.1", "sdpa", {},
    ),
    AdaptedModel(
        "s3prl", "s3prl: WavLM base", _S3prlWavLM, audio(320, 80), "frames of 20 ms",
        (500, 1500, 4500), (1500, 6000), "model.encoder.layers.1", "self_attn", {},
    ),
)  # fmt: skip
