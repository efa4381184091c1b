"""Decoders: caches of every kind, what is not adapted beside them, and masks that users make."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    DynamicCache,
    FalconConfig,
    FalconForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    StaticCache,
)  # fmt: skip

from relpos import ShapeError
from relpos.adapters import adapt, restore
from relpos.adapters.attention_function import register
from relpos.adapters.masks import additive_mask

from .cache_keyword import cache_keyword
from .largest_tensor import LargestTensor
from .models import BY_NAME, CASES
from .models.alibi import FALCON
from .models.case import Case, draw, padded
from .results import original_and_adapted

pytestmark = pytest.mark.no_typecheck

DECODERS = [
    case
    for case in CASES
    if case.name in ("bloom", "mpt", "falcon", "inkling", "inkling2", "inkling2_loop")
]
decoders = pytest.mark.parametrize("case", DECODERS, ids=lambda case: case.name)


def in_chunks(model: Any, ids: Tensor, mask: Tensor | None, cache: Any, ends: list[int]) -> Tensor:
    logits = []
    for start, end in zip([0, *ends], ends, strict=False):
        seen = None if mask is None else mask[:, :end]
        outputs = model(ids[:, start:end], attention_mask=seen, **cache_keyword(model, cache))
        logits.append(outputs.logits)
    return torch.cat(logits, 1)


@decoders
@pytest.mark.parametrize("padding", ["none", "left"])
def test_chunks_through_a_cache_equal_one_pass(case: Case, padding: str):
    original, model = original_and_adapted(case.model())
    ids = torch.randint(3, 50, (2, 30))
    mask = padded(2, 30, padding)
    real = torch.ones(2, 30).bool() if mask is None else mask.bool()
    with torch.no_grad():
        expected = original(ids, attention_mask=mask).logits
        cache = DynamicCache(config=model.config)
        got = in_chunks(model, ids, mask, cache, [9, 10, 22, 30])
    torch.testing.assert_close(got[real], expected[real], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["bloom", "mpt"])
@pytest.mark.parametrize("padding", ["none", "left"])
def test_chunks_through_a_static_cache_equal_one_pass_without_a_mask_of_pairs(name, padding):
    original, model = original_and_adapted(BY_NAME[name].model())
    ids, mask = torch.randint(3, 50, (1, 2000)), padded(1, 2000, padding)
    cache = StaticCache(config=model.config, max_cache_len=2048)
    with torch.no_grad():
        expected = original(ids, attention_mask=mask).logits
        with LargestTensor() as largest:
            got = in_chunks(model, ids, mask, cache, [1990, 1991, 2000])
    real = slice(None) if mask is None else mask.bool()
    torch.testing.assert_close(got[real], expected[real], rtol=1e-3, atol=1e-3)
    assert largest.entries < 2000 * 2000 // 8, largest.by


@decoders
def test_assisted_generation_gives_the_same_tokens(case: Case):
    original, model = original_and_adapted(case.model())
    ids = torch.randint(3, 50, (1, 21)).repeat(1, 2)
    settings = {"max_new_tokens": 12, "do_sample": False, "prompt_lookup_num_tokens": 3}
    assert torch.equal(model.generate(ids, **settings), original.generate(ids, **settings))


@pytest.mark.parametrize("name", ["bloom", "mpt", "falcon"])
def test_blocks_that_are_adapted_without_their_model_give_the_same(name: str):
    case = BY_NAME[name]
    original, model = case.model(), cast(Any, case.model())
    adapt(model.transformer.h if name != "mpt" else model.transformer.blocks)
    inputs = case.inputs(2, 21, "left")
    torch.testing.assert_close(case.call(model, inputs)[0], case.call(original, inputs)[0])


@pytest.mark.parametrize(
    ("name", "attention"),
    [("bloom", "transformer.h.0.self_attention"), ("mpt", "transformer.blocks.0.attn")],
)
def test_an_original_attention_in_an_adapted_model_fails_rather_than_looks_ahead(name, attention):
    case = BY_NAME[name]
    _, model = original_and_adapted(case.model())
    restore(model.get_submodule(attention))
    with pytest.raises((RuntimeError, ValueError)):
        model(**case.inputs(1, 9, "none"))


@pytest.mark.parametrize(
    ("name", "attention", "left"),
    [
        ("bloom", "transformer.h.0.self_attention", "transformer.h.1.self_attention"),
        ("mpt", "transformer.blocks.0.attn", "transformer.blocks.1.attn"),
        ("falcon", "transformer.h.0.self_attention", "transformer.h.1.self_attention"),
        ("inkling", "model.layers.0.self_attn.rel_logits_proj", "model.layers.0.self_attn"),
    ],
)
def test_a_forward_on_the_instance_leaves_what_depends_on_it(name, attention, left):
    case = BY_NAME[name]
    original, model = case.model(), case.model()
    module = model.get_submodule(attention)
    module.forward = partial(module.forward)
    report = adapt(model)
    assert left in dict(report.left)
    inputs = case.inputs(2, 21, "left")
    torch.testing.assert_close(case.call(model, inputs)[0], case.call(original, inputs)[0])


@pytest.mark.parametrize("name", ["inkling", "inkling2"])
def test_a_mask_of_pairs_hides_if_it_is_boolean_and_is_refused_if_it_is_of_integers(name: str):
    model: Any = BY_NAME[name].model()
    ids = torch.randint(3, 50, (2, 20))
    mask = ((torch.rand(2, 1, 20, 20) > 0.3) | torch.eye(20, dtype=torch.bool)).tril()
    # The second has no SDPA.
    model.set_attn_implementation("eager")
    theirs = model(ids, attention_mask=additive_mask(mask, torch.float32)).logits
    adapt(model)
    torch.testing.assert_close(model(ids, attention_mask=mask).logits, theirs, rtol=0, atol=1e-5)
    with pytest.raises(ShapeError, match=r"attention_mask of more .*, got torch.int64"):
        model(ids, attention_mask=mask.long())


@pytest.mark.parametrize("rows", [1, 21])
def test_a_mask_of_pairs_is_all_that_mpt_goes_by(rows: int):
    original, model = original_and_adapted(BY_NAME["mpt"].model())
    ids = torch.randint(3, 50, (2, 21))
    hidden = torch.rand(2, 1, rows, 21) < 0.3
    hidden[..., 0] = False
    expected = original(ids, attention_mask=hidden).logits
    torch.testing.assert_close(model(ids, attention_mask=hidden).logits, expected)


def test_falcon_adds_its_biases_twice_where_the_original_does():
    """Without SDPA the model folds them into its mask, and its attention adds them again."""
    original, model = original_and_adapted(BY_NAME["falcon"].model())
    ids = torch.randint(3, 50, (2, 21))
    once, twice = original(ids).logits, original(ids, output_attentions=True).logits
    assert float((once - twice).detach().abs().max()) > 0.1
    torch.testing.assert_close(model(ids).logits, once)
    torch.testing.assert_close(model(ids, output_attentions=True).logits, twice)


def test_falcon_with_rotary_positions_is_none_of_relative_attention():
    model = FalconForCausalLM(FalconConfig(**{**FALCON, "alibi": False}))
    with pytest.raises(ValueError, match="relative attention of a class"):
        adapt(model)


def mistral() -> Any:
    torch.manual_seed(0)
    model = MistralForCausalLM(
        MistralConfig(
            vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, sliding_window=6, head_dim=8,
            bos_token_id=None, eos_token_id=None, pad_token_id=0,
        )
    )  # fmt: skip
    draw(model)
    return model.eval()


@pytest.mark.parametrize("name", ["relpos-sdpa", "relpos-causal-sdpa", "relpos-causal-eager"])
@pytest.mark.parametrize("padding", ["none", "left", "right"])
def test_layers_that_slide_stay_right_beside_adapted_ones(name: str, padding: str):
    model = mistral()
    ids, mask = torch.randint(3, 50, (2, 25)), padded(2, 25, padding)
    settings = {"attention_mask": mask, "max_new_tokens": 9, "do_sample": False}
    real = slice(None) if mask is None else mask.bool()

    def results() -> tuple[Tensor, ...]:
        logits = model(ids, attention_mask=mask).logits[real]
        if padding == "right":
            return (logits,)
        ways: list[dict[str, Any]] = [
            {}, {"num_beams": 2}, {"cache_implementation": "static"}, {"use_cache": False},
        ]  # fmt: skip
        return logits, *(model.generate(ids, **settings, **way) for way in ways)

    expected = results()
    register()
    model.config._attn_implementation_internal = name
    for got, want in zip(results(), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    # Positions are what the window goes by: a full window gives something else.
    model.config.sliding_window = None
    full = model(ids, attention_mask=mask).logits[real]
    assert float((full - expected[0]).detach().abs().max()) > 0.1


class Logits(nn.Module):
    """A model as a function of tensors alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.model(input_ids=ids, attention_mask=mask, use_cache=False).logits


@decoders
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_traced_models_take_any_length(case: Case):
    original, model = (Logits(x) for x in original_and_adapted(case.model()))
    ids = torch.randint(3, 50, (2, 12))
    with torch.no_grad():
        traced = torch.jit.trace(model, (ids, padded(2, 12, "left")), check_trace=False)
        longer, mask = torch.randint(3, 50, (2, 20)), padded(2, 20, "left")
        assert mask is not None
        ours, theirs = traced(longer, mask), original(longer, mask)
    torch.testing.assert_close(ours[mask.bool()], theirs[mask.bool()], rtol=1e-4, atol=1e-4)
