"""SeamlessM4T as a whole: of all parts of one configuration, the speech encoder is adapted."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    GenerationMixin,
    SeamlessM4TConfig,
    SeamlessM4TModel,
    SeamlessM4Tv2Config,
    SeamlessM4Tv2Model,
)

from relpos.adapters import adapt

from .models.case import draw, padded
from .models.seamless_m4t import CASES, SIZES
from .results import original_and_adapted

pytestmark = pytest.mark.no_typecheck

SPEECH = {
    "t2u_vocab_size": 40, "t2u_encoder_layers": 1, "t2u_encoder_ffn_dim": 48,
    "t2u_encoder_attention_heads": 4, "t2u_decoder_layers": 1, "t2u_decoder_ffn_dim": 48,
    "t2u_decoder_attention_heads": 4, "unit_hifi_gan_vocab_size": 60, "unit_embed_dim": 8,
    "lang_embed_dim": 8, "spkr_embed_dim": 8, "upsample_initial_channel": 16,
    "upsample_rates": (2, 2), "upsample_kernel_sizes": (4, 4), "resblock_kernel_sizes": (3,),
    "resblock_dilation_sizes": ((1, 3),), "t2u_max_position_embeddings": 64,
}  # fmt: skip
V1 = (SeamlessM4TModel, SeamlessM4TConfig, {})
V2 = (SeamlessM4Tv2Model, SeamlessM4Tv2Config, {"char_vocab_size": 30})
versions = pytest.mark.parametrize("version", [V1, V2], ids=["v1", "v2"])
implementations = pytest.mark.parametrize("implementation", ["sdpa", "eager"])


def whole_model(version, implementation: str = "sdpa", **options) -> nn.Module:
    model_class, config_class, more = version
    torch.manual_seed(0)
    config = config_class(**SIZES, **SPEECH, **more, **options)
    model = model_class._from_config(config, attn_implementation=implementation)
    draw(model)
    model.generation_config.text_decoder_lang_to_code_id = {"eng": 5}
    model.generation_config.t2u_lang_code_to_id = {"eng": 6}
    model.generation_config.vocoder_lang_code_to_id = {"eng": 0}
    return model.double().eval()


def speech(padding: bool = True) -> dict[str, Tensor]:
    features = {"input_features": torch.randn(3, 30, 16, dtype=torch.float64)}
    return features | ({"attention_mask": padded(3, 30, "right")} if padding else {})


@versions
@implementations
@pytest.mark.parametrize("modality", ["speech", "text"])
def test_the_whole_model_gives_the_same_loss_and_logits(version, implementation, modality):
    models = original_and_adapted(whole_model(version, implementation))
    ids = torch.randint(4, 50, (3, 9))
    texts = {"input_ids": torch.randint(4, 50, (3, 12)), "attention_mask": padded(3, 12, "right")}
    # The original's eager attention hides no padding in v2's speech encoder.
    inputs = speech(implementation == "sdpa") if modality == "speech" else texts
    mask = padded(3, 9, "right")
    theirs, ours = (
        model(**inputs, decoder_input_ids=ids, decoder_attention_mask=mask, labels=ids)
        for model in models
    )
    torch.testing.assert_close(ours.loss, theirs.loss, rtol=1e-12, atol=0)
    torch.testing.assert_close(ours.logits, theirs.logits, rtol=0, atol=1e-11)


def test_the_whole_model_speaks_the_same_waveform():
    models = original_and_adapted(whole_model(V1))
    inputs = speech()
    theirs, ours = (model.generate(**inputs, tgt_lang="eng", max_new_tokens=6) for model in models)
    assert theirs[0].numel() > 50
    torch.testing.assert_close(ours[0], theirs[0], rtol=0, atol=1e-9)


@pytest.mark.parametrize("case", CASES[:2], ids=lambda case: case.name)
@implementations
@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("prompt", [1, 5])
def test_a_decoder_that_is_not_adapted_generates_with_caches_as_before(
    case, implementation, cache, prompt
):
    model = case.model(torch.float64)
    model.set_attn_implementation(implementation)
    features, ids = torch.randn(3, 33, 16, dtype=torch.float64), torch.randint(4, 50, (3, prompt))
    theirs, ours = (
        # The class's own `generate` has a prompt of one token.
        GenerationMixin.generate(
            model, input_features=features, decoder_input_ids=ids, max_new_tokens=6,
            cache_implementation=cache, output_logits=True, return_dict_in_generate=True,
        )
        for model in original_and_adapted(model)
    )  # fmt: skip
    assert torch.equal(ours.sequences, theirs.sequences)
    torch.testing.assert_close(ours.logits, theirs.logits, rtol=0, atol=1e-11)


@pytest.mark.parametrize("left", [0, 1, -1])
def test_chunks_and_padding_are_hidden_under_eager_as_under_sdpa(left):
    # The original's eager attention adds its boolean mask, and hides neither.
    sizes = {"speech_encoder_chunk_size": 8, "speech_encoder_left_chunk_num": left}
    inputs = speech()
    theirs, eager = (
        whole_model(V2, implementation, **sizes).speech_encoder
        for implementation in ("sdpa", "eager")
    )
    expected = theirs(**inputs).last_hidden_state
    assert float((eager(**inputs).last_hidden_state - expected).detach().abs().max()) > 0.1
    assert "eager original fails" in str(adapt(eager))
    tokens = padded(3, 30, "right").sum(-1) // 4
    ours = eager(**inputs).last_hidden_state
    for sequence, count in enumerate(tokens):
        torch.testing.assert_close(
            ours[sequence, :count], expected[sequence, :count], rtol=0, atol=1e-11
        )


def test_a_window_is_local_within_chunks():
    model = whole_model(V2, speech_encoder_chunk_size=8).speech_encoder.encoder
    adapt(model, window=(2, 0))
    x = torch.randn(1, 30, 32, dtype=torch.float64)
    before = model(x)
    x[:, 7] = torch.randn(32)
    changed = (model(x) - before).detach().abs().amax((0, 2)) > 1e-9
    # Two layers of two frames each, and two convolutions of five, all of them causal.
    assert changed.nonzero().flatten().tolist() == list(range(7, 7 + 2 * (2 + 4) + 1))
