"""T5 and its kin as they are called: masks of the decoder, caches, parts of a model alone."""

from __future__ import annotations

from functools import partial
from typing import Any

import accelerate
import pytest
import torch
from torch import Tensor, nn
from transformers import (
    DynamicCache,
    EncoderDecoderCache,
    LongT5Config,
    LongT5EncoderModel,
    StaticCache,
)
from transformers.models.longt5 import modeling_longt5

from relpos import ShapeError
from relpos.adapters import adapt

from .cache_keyword import cache_keyword
from .models import BY_NAME, CASES
from .models.case import Case, padded, tokens
from .models.t5 import SIZES, draw_unscaled
from .models.t5_kin import DECODER

pytestmark = [
    pytest.mark.no_typecheck,
    pytest.mark.usefixtures("float64_stays_float64"),
]

# Both attend, called by the ids of two texts.
NAMES = (
    "t5", "mt5", "umt5", "switch_transformers", "longt5, local", "longt5, transient-global",
    "pop2piano",
)  # fmt: skip
PAIRS = [case for case in CASES if case.name in NAMES]
pairs = pytest.mark.parametrize("case", PAIRS, ids=lambda case: case.name)
T5 = BY_NAME["t5"]


def call(case: Case, model: nn.Module, inputs: dict[str, Any]) -> Tensor:
    """The logits at the decoder's real tokens."""
    logits, _ = case.call(model, inputs)
    mask = inputs.get("decoder_attention_mask")
    return logits if mask is None else logits[mask.bool()]


@pairs
@pytest.mark.parametrize("padding", ["left", "right"])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_the_decoders_padding_is_left_out(case: Case, padding: str, implementation: str):
    model: Any = case.model(torch.float64)
    if implementation == "sdpa" and not model._supports_sdpa:
        pytest.skip("it has no such implementation")
    model.set_attn_implementation(implementation)
    inputs = tokens(2, 20, "left") | {
        "decoder_input_ids": tokens(2, 17, "none")["input_ids"],
        "decoder_attention_mask": padded(2, 17, padding),
    }
    theirs = call(case, model, inputs)
    adapt(model)
    torch.testing.assert_close(call(case, model, inputs), theirs, rtol=0, atol=1e-12)


@pairs
def test_given_embeddings_and_encoder_outputs_are_taken(case: Case):
    model: Any = case.model(torch.float64)
    inputs: dict[str, Any] = {
        "inputs_embeds": torch.randn(2, 20, 32, dtype=torch.float64),
        "decoder_inputs_embeds": torch.randn(2, 9, 32, dtype=torch.float64),
        "attention_mask": padded(2, 20, "right"),
    }

    def both() -> tuple[Tensor, Tensor]:
        whole, _ = case.call(model, inputs)
        encoded = model.get_encoder()(
            inputs_embeds=inputs["inputs_embeds"], attention_mask=inputs["attention_mask"]
        )
        given = {name: x for name, x in inputs.items() if name != "inputs_embeds"}
        return whole, case.call(model, given | {"encoder_outputs": encoded})[0]

    theirs = both()
    adapt(model)
    ours = both()
    for x, y in zip(ours, theirs, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-12)
    torch.testing.assert_close(*ours, rtol=0, atol=1e-12)


@pairs
@pytest.mark.parametrize("cached", [3, 11], ids=["short", "long"])
def test_a_decoder_goes_on_from_a_cache_in_steps_of_any_size(case: Case, cached: int):
    model: Any = case.model(torch.float64)
    inputs = case.inputs(2, 20, "none")
    ids = inputs["decoder_input_ids"]

    def in_steps() -> Tensor:
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        parts = []
        for part in (ids[:, :cached], ids[:, cached:]):
            outputs = model(
                input_ids=inputs["input_ids"], decoder_input_ids=part, **cache_keyword(model, cache)
            )  # fmt: skip
            parts.append(outputs.logits)
        return torch.cat(parts, 1)

    theirs = in_steps()
    adapt(model)
    torch.testing.assert_close(in_steps(), theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("left", [0, 1])
@pytest.mark.parametrize("stack", ["encoder", "decoder"])
@pytest.mark.parametrize("padding", ["none", "right"])
def test_beside_a_layer_that_is_left_the_others_are_right(left: int, stack: str, padding: str):
    model: Any = T5.model(torch.float64)
    inputs = T5.inputs(2, 20, padding) | {"decoder_attention_mask": padded(2, 12, padding)}
    theirs = call(T5, model, inputs)
    attention = model.get_submodule(f"{stack}.block.{left}.layer.0.SelfAttention")
    attention.forward = partial(attention.forward)
    assert len(adapt(model).left) == 1
    torch.testing.assert_close(call(T5, model, inputs), theirs, rtol=0, atol=1e-12)


def test_a_bias_of_all_pairs_and_a_window_do_not_go_together():
    model: Any = T5.model()
    first = model.encoder.block[0].layer[0].SelfAttention
    first.forward = partial(first.forward)
    assert len(adapt(model, window=(4, 4)).left) == 1
    with pytest.raises(ValueError, match=r"T5Attention: adapted with window=\(4, 4\), it must be"):
        call(T5, model, T5.inputs(2, 20, "none"))


@pytest.mark.parametrize("left", [None, 0, 1])
def test_a_static_cache_longer_than_the_text_is_filled_beside_a_layer_that_is_left(
    left: int | None,
):
    model: Any = T5.model(torch.float64)
    inputs = T5.inputs(2, 20, "none")
    ids = inputs["decoder_input_ids"]

    def in_steps(*sizes: int) -> Tensor:
        cache = EncoderDecoderCache(
            StaticCache(config=model.decoder.config, max_cache_len=30), DynamicCache()
        )
        return torch.cat([
            model(
                input_ids=inputs["input_ids"], decoder_input_ids=part, **cache_keyword(model, cache)
            ).logits
            for part in ids.split(sizes, 1)
        ], 1)  # fmt: skip

    steps = (5, *[1] * (ids.shape[1] - 5))
    theirs = in_steps(*steps)
    if left is not None:
        attention = model.decoder.block[left].layer[0].SelfAttention
        attention.forward = partial(attention.forward)
    adapt(model)
    torch.testing.assert_close(in_steps(*steps), theirs, rtol=0, atol=1e-12)
    steps = (5, ids.shape[1] - 5)
    if left == 1:
        with pytest.raises(ValueError, match="must be given one token at a time once a static cac"):
            in_steps(*steps)
    else:
        torch.testing.assert_close(in_steps(*steps), theirs, rtol=0, atol=1e-12)


def mask_of_pairs(batch: int, length: int) -> Tensor:
    mask = torch.rand(batch, 1, length, length) > 0.3
    return mask | torch.eye(length, dtype=torch.bool)


@pytest.mark.parametrize("name", ["t5", "mt5", "umt5"])
def test_a_boolean_mask_of_pairs_hides_in_eager_too_as_in_sdpa(name: str):
    model: Any = BY_NAME[name].model(torch.float64)
    inputs = tokens(2, 20, "none") | {"attention_mask": mask_of_pairs(2, 20)}
    model.set_attn_implementation("sdpa")
    theirs = model.get_encoder()(**inputs).last_hidden_state
    model.set_attn_implementation("eager")
    # The original's eager adds it, as 1 and 0.
    assert (model.get_encoder()(**inputs).last_hidden_state - theirs).abs().max() > 0.1
    adapt(model)
    ours = model.get_encoder()(**inputs).last_hidden_state
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["t5", "mt5", "umt5"])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_a_mask_of_integers_for_pairs_is_refused_by_its_name(name: str, implementation: str):
    model: Any = BY_NAME[name].model()
    model.set_attn_implementation(implementation)
    adapt(model)
    inputs = tokens(2, 20, "none") | {"attention_mask": mask_of_pairs(2, 20).long()}
    with pytest.raises(
        ShapeError, match=r"attention_mask of more .*, got torch.int64; attention_m"
    ):
        model.get_encoder()(**inputs)


def test_beside_a_bias_of_all_pairs_a_mask_of_integers_is_refused_too():
    model: Any = T5.model()
    first = model.encoder.block[0].layer[0].SelfAttention
    first.forward = partial(first.forward)
    adapt(model)
    inputs = tokens(2, 20, "none") | {"attention_mask": mask_of_pairs(2, 20).long()}
    with pytest.raises(ShapeError, match=r"attention_mask of more .*, got torch.int64"):
        model.get_encoder()(**inputs)


def longt5_encoder(**options: Any) -> nn.Module:
    torch.manual_seed(0)
    model = LongT5EncoderModel(LongT5Config(**{**SIZES, "local_radius": 6, **options}))
    draw_unscaled(model)
    return model.eval()


def holes(batch: int, length: int) -> Tensor:
    """Tokens here and there, at least one in each text."""
    mask = torch.rand(batch, length) > 0.4
    mask[:, length // 2] = True
    return mask.long()


# Texts without a whole block, with one alone, with none behind the last, and with hidden ends.
@pytest.mark.parametrize("length", [3, 8, 9, 24, 50])
@pytest.mark.parametrize("size", [1, 8, 32])
@pytest.mark.parametrize("padding", ["right", "left", "holes"])
def test_sums_of_blocks_are_seen_as_by_the_original(length: int, size: int, padding: str):
    model = longt5_encoder(encoder_attention_type="transient-global", global_block_size=size)
    model.double()
    tokens_of: Any = holes(3, length) if padding == "holes" else padded(3, length, padding)
    inputs = tokens(3, length, "none") | {"attention_mask": tokens_of}

    def results() -> tuple[Tensor, list[Tensor]]:
        real = model(**inputs).last_hidden_state[tokens_of.bool()]
        # Where there is no block, some parameters have no part.
        slopes = torch.autograd.grad(
            real.square().sum(), [*model.parameters()], materialize_grads=True
        )
        return real.detach(), list(slopes)

    theirs, their_slopes = results()
    report = adapt(model)
    schemes = {scheme for _, scheme in report.adapted}
    assert schemes == {"T5 bias, local and to transient global tokens"}
    ours, our_slopes = results()
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    for x, y in zip(our_slopes, their_slopes, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", ["local", "transient-global"])
def test_encoders_of_blocks_may_have_their_weights_elsewhere(kind: str):
    model = longt5_encoder(encoder_attention_type=kind, global_block_size=8)
    inputs = tokens(2, 20, "none")
    theirs = model(**inputs).last_hidden_state
    adapt(model)
    # Each module's weights are there while it runs, and on no device before and after.
    accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
    torch.testing.assert_close(model(**inputs).last_hidden_state, theirs, rtol=0, atol=1e-5)


def test_a_boolean_mask_is_taken_with_and_without_weights():
    model = longt5_encoder(encoder_attention_type="transient-global", global_block_size=8)
    inputs = tokens(2, 20, "right")
    theirs = model(**inputs, output_attentions=True)
    adapt(model)
    inputs["attention_mask"] = inputs["attention_mask"].bool()
    ours = model(**inputs, output_attentions=True)
    for x, y in zip(ours.attentions, theirs.attentions, strict=True):
        assert torch.equal(x, y)
    real = inputs["attention_mask"]
    found, wanted = model(**inputs).last_hidden_state[real], theirs.last_hidden_state[real]
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)


def test_blocks_whose_edges_rounding_moves_are_left_with_the_reason():
    ids, _ = modeling_longt5._make_global_fixed_block_ids(torch.ones(1, 600), 25)
    assert (ids[0] != (torch.arange(600) // 25).clamp(max=23)).any()
    model = longt5_encoder(encoder_attention_type="transient-global", global_block_size=25)
    report = adapt(model)
    assert not report.adapted
    assert {why for _, why in report.left} == {
        "its blocks are not of 1, 2, 4, ... tokens, so that rounding may move their edges"
    }


@pytest.mark.parametrize("length", [3, 6, 7, 8, 50])
def test_the_radius_is_that_of_the_original(length: int):
    model, inputs = longt5_encoder(), tokens(1, length, "none")
    theirs = model(**inputs).last_hidden_state
    report = adapt(model)
    assert {scheme for _, scheme in report.adapted} == {"T5 bias, local"}
    torch.testing.assert_close(model(**inputs).last_hidden_state, theirs, rtol=0, atol=1e-5)


def test_a_page_is_left_and_its_text_adapted():
    udop = BY_NAME["udop"]
    report = adapt(udop.model())
    assert all(name.startswith("decoder") for name, _ in report.adapted)
    assert {why.split(",")[0] for _, why in report.left} == {"offsets are between boxes on a page"}


def test_a_piano_is_played_with_the_same_tokens():
    case = BY_NAME["pop2piano"]
    model: Any = case.model()
    settings = model.generation_config
    count = model.config.composer_vocab_size
    settings.composer_to_feature_token = {f"composer{n}": n + 9 for n in range(1, count + 1)}
    settings.update(max_new_tokens=12, min_new_tokens=12, do_sample=False)
    sound = torch.randn(2, 20, DECODER["d_model"])
    theirs = model.generate(sound)
    assert len(theirs.unique()) > 3
    adapt(model)
    assert torch.equal(model.generate(sound), theirs)


@pytest.mark.parametrize("left", [0, 1])
@pytest.mark.parametrize("kind", ["local", "transient-global"])
def test_encoders_of_blocks_are_adapted_together_or_not_at_all(left: int, kind: str):
    model: Any = longt5_encoder(encoder_attention_type=kind)
    inputs = tokens(2, 30, "none")
    theirs = model(**inputs).last_hidden_state
    attention = next(model.encoder.block[left].layer[0].children())
    attention.forward = partial(attention.forward)
    assert len(adapt(model).left) == 2
    torch.testing.assert_close(model(**inputs).last_hidden_state, theirs, rtol=0, atol=0)
