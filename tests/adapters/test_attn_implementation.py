"""`attn_implementation="relpos"`: models compute what they did, with ranges of keys for masks."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import masking_utils as of_hf
from transformers.models.gemma4.modeling_gemma4 import Gemma4AudioModel

from benchmarks.measure.implementation_sweep import measure_sweep
from relpos import ShapeError
from relpos.adapters import attn_implementation, range_masks, register_attn_implementation
from relpos.adapters.key_ranges_mask import KeyRangesMask
from relpos.adapters.range_masks import range_mask

from .largest_tensor import LargestTensor

pytestmark = pytest.mark.no_typecheck

SIZES: dict[str, Any] = {
    "vocab_size": 60, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GROUPED = SIZES | {"num_key_value_heads": 2, "max_position_embeddings": 128}
GEMMA = GROUPED | {"sliding_window": 7, "head_dim": 8, "query_pre_attn_scalar": 8}
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1, "head_dim": 8}
# By name: configuration, model, sizes, and what it is compared with.
MODELS: dict[str, tuple[Any, Any, dict[str, Any], str]] = {
    "llama": (hf.LlamaConfig, hf.LlamaForCausalLM, GROUPED, "sdpa"),
    "mistral": (hf.MistralConfig, hf.MistralForCausalLM, GROUPED | {"sliding_window": 7}, "sdpa"),
    "gemma2": (
        hf.Gemma2Config, hf.Gemma2ForCausalLM, GEMMA | {"attn_logit_softcapping": 5.0}, "eager",
    ),
    "gemma3": (hf.Gemma3TextConfig, hf.Gemma3ForCausalLM, GEMMA, "sdpa"),
    "gpt_oss": (
        hf.GptOssConfig, hf.GptOssForCausalLM, GROUPED | EXPERTS | {"sliding_window": 7}, "eager",
    ),
    "llama4": (
        hf.Llama4TextConfig, hf.Llama4ForCausalLM,
        GROUPED | EXPERTS | {"attention_chunk_size": 6, "intermediate_size_mlp": 48}, "sdpa",
    ),
    "gpt2": (
        hf.GPT2Config, hf.GPT2LMHeadModel,
        {"vocab_size": 60, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}, "sdpa",
    ),
    "bert": (hf.BertConfig, hf.BertForMaskedLM, SIZES, "sdpa"),
    "modernbert": (
        hf.ModernBertConfig, hf.ModernBertForMaskedLM,
        SIZES | {"num_hidden_layers": 4, "local_attention": 8, "cls_token_id": 1,
                 "sep_token_id": 2}, "sdpa",
    ),
}  # fmt: skip
IDS = torch.randint(3, 60, (2, 20), generator=torch.Generator().manual_seed(0))
HIDDEN = {"none": slice(0), "left": slice(6), "right": slice(-6, None), "holes": slice(4, 9)}


@pytest.fixture(autouse=True)
def registered():
    register_attn_implementation()


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What attention was given for masks."""
    found, original = [], attn_implementation._ranges_and_mask

    def spy(mask: Tensor | None, keys: int) -> tuple[Tensor | None, Tensor | None]:
        ranges, beside = original(mask, keys)
        found.append("none" if mask is None else "pairs" if ranges is None else "ranges")
        return ranges, beside

    monkeypatch.setattr(attn_implementation, "_ranges_and_mask", spy)
    return found


def made(name: str) -> Any:
    make_config, make, sizes, base = MODELS[name]
    torch.manual_seed(0)
    model = make._from_config(make_config(**sizes), attn_implementation=base).eval()
    for parameter in model.parameters():
        parameter.data.normal_(std=0.3)
    if model.can_generate():
        model.generation_config.eos_token_id = None
    # Experts' own products, unlike those of a kernel for all of them, may be of float64.
    model.config._experts_implementation = "eager"
    return model.double()


def padded(side: str) -> Tensor:
    tokens = torch.ones_like(IDS)
    tokens[1, HIDDEN[side]] = 0
    return tokens


def results(model: Any, tokens: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Logits at real tokens, and the gradients of their sum of squares."""
    model.zero_grad()
    logits = model(IDS, attention_mask=tokens).logits[tokens.bool()]
    logits.square().sum().backward()
    return logits.detach(), [x.grad.clone() for x in model.parameters() if x.grad is not None]


def assert_near(found: Tensor, wanted: Tensor, rounding: float) -> None:
    assert (found - wanted).abs().max() <= rounding * wanted.abs().max()


# Padded on the left, Gemma 2's own eager attention gives NaN in float64.
@pytest.mark.parametrize(
    ("name", "side"),
    [(name, side) for name in MODELS for side in HIDDEN if (name, side) != ("gemma2", "left")],
)
@pytest.mark.usefixtures("float64_stays_float64")
def test_logits_and_gradients_are_those_of_their_own_implementation(name, side, seen):
    model, tokens = made(name), padded(side)
    wanted, slopes = results(model, tokens)
    model.set_attn_implementation("relpos")
    found, ours = results(model, tokens)
    assert_near(found, wanted, 1e-9)
    largest = max(x.abs().max() for x in slopes)
    for one, other in zip(ours, slopes, strict=True):
        # Biases of keys have a gradient of 0, but for rounding.
        if other.abs().max() <= 1e-9 * largest:
            assert one.abs().max() <= 1e-8 * largest
        else:
            assert_near(one, other, 1e-8)
    assert seen
    assert set(seen) <= {"none", "ranges"}


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradients_are_the_same_with_checkpoints(reentrant, seen):
    model, tokens = made("mistral").train(), padded("holes")
    model.set_attn_implementation("relpos")
    wanted, slopes = results(model, tokens)
    count = len(seen)
    model.activation_checkpointing_enable({"use_reentrant": reentrant})
    found, ours = results(model, tokens)
    assert len(seen) == 3 * count  # once more backward
    assert_near(found, wanted, 1e-12)
    for one, other in zip(ours, slopes, strict=True):
        assert_near(one, other, 1e-12)


@pytest.mark.parametrize(
    "options",
    [{}, {"num_beams": 3}, {"cache_implementation": "static"}, {"prompt_lookup_num_tokens": 3}],
    ids=["greedy", "beams", "static", "lookup"],
)
@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt_oss", "llama4"])
@pytest.mark.costly(4)
def test_the_same_tokens_are_generated(name, options):
    model = made(name)
    rows = slice(1, 2) if "prompt_lookup_num_tokens" in options else slice(None)
    given = {"attention_mask": padded("left")[rows, :12], "max_new_tokens": 15} | options
    wanted = model.generate(IDS[rows, :12], **given)
    model.set_attn_implementation("relpos")
    assert torch.equal(model.generate(IDS[rows, :12], **given), wanted)


def test_packed_texts_stay_apart(seen):
    model = made("mistral")
    positions = torch.cat([torch.arange(12), torch.arange(8)])[None]
    given = {"position_ids": positions, "use_cache": False}
    wanted = model(IDS[:1], **given).logits
    model.set_attn_implementation("relpos")
    assert_near(model(IDS[:1], **given).logits, wanted, 1e-12)
    assert set(seen) == {"ranges"}


def test_a_bias_of_all_pairs_is_added_and_decoders_stay_causal():
    config = hf.T5Config(vocab_size=60, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4)
    model = hf.T5ForConditionalGeneration._from_config(config, attn_implementation="sdpa")
    model = model.double().eval()
    given = {
        "input_ids": IDS, "attention_mask": padded("right"), "decoder_input_ids": IDS[:, :9],
    }  # fmt: skip
    wanted = model(**given).logits
    model.set_attn_implementation("relpos")
    assert_near(model(**given).logits, wanted, 1e-12)


ENCODER_DECODER = {
    "vocab_size": 60, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48, "max_position_embeddings": 64,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "make"),
    [
        (hf.BartConfig(**ENCODER_DECODER), hf.BartForConditionalGeneration),
        (
            hf.NllbMoeConfig(**ENCODER_DECODER, num_experts=2, expert_capacity=64),
            hf.NllbMoeForConditionalGeneration,
        ),
        (
            hf.PegasusXConfig(**ENCODER_DECODER, block_size=4, num_global_tokens=2),
            hf.PegasusXForConditionalGeneration,
        ),
    ],
    ids=["bart", "nllb_moe", "pegasus_x"],
)
@pytest.mark.usefixtures("float64_stays_float64")
def test_decoders_are_causal_that_rely_on_their_masks_to_be_so(config, make):
    """The modules of the last two say that they are not."""
    torch.manual_seed(0)
    model = make._from_config(config, attn_implementation="eager").eval().double()
    given = {"input_ids": IDS, "attention_mask": padded("right"), "decoder_input_ids": IDS[:, :9]}
    wanted = model(**given).logits
    model.set_attn_implementation("relpos")
    assert_near(model(**given).logits, wanted, 1e-9)


def test_weights_are_returned_where_they_are_asked_for():
    model = made("llama")
    model.set_attn_implementation("eager")
    wanted = model(IDS, output_attentions=True).attentions
    model.set_attn_implementation("relpos")
    found = model(IDS, output_attentions=True).attentions
    for one, other in zip(found, wanted, strict=True):
        assert_near(one, other, 1e-6)


@pytest.mark.parametrize("whole", [True, False], ids=["model", "layers"])
@pytest.mark.parametrize("side", ["none", "left", "holes"])
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.costly(2)
def test_it_compiles_without_a_break(side, whole, seen):
    model, tokens = made("mistral"), padded(side)
    given = {"use_cache": False} | ({} if side == "none" else {"attention_mask": tokens})
    model.set_attn_implementation("relpos")
    wanted = model(IDS, **given).logits
    for each in [model] if whole else model.model.layers:
        each.compile(backend="aot_eager", fullgraph=True)
    found = model(IDS, **given).logits
    assert_near(found[tokens.bool()], wanted[tokens.bool()], 1e-12)
    # Without a mask and a cache transformers looks for packed texts; traced, it cannot see any.
    masks = {"ranges", "pairs"} if whole and side == "none" else {"ranges"}
    assert set(seen) == masks


def test_it_is_exported_with_padding():
    model, given = made("mistral"), {"attention_mask": padded("left"), "use_cache": False}
    model.set_attn_implementation("relpos")
    wanted = model(IDS, **given).logits
    exported = torch.export.export(model, (IDS,), given).module()
    assert_near(exported(IDS, **given).logits, wanted, 1e-12)


def test_compiled_decoding_generates_the_same_tokens():
    model = made("llama")
    compiling = hf.CompileConfig(backend="aot_eager", fullgraph=True)
    compiling._compile_all_devices = True
    given = {
        "attention_mask": padded("left")[:, :12], "max_new_tokens": 5,
        "cache_implementation": "static",
    }  # fmt: skip
    wanted = model.generate(IDS[:, :12], **given)
    model.set_attn_implementation("relpos")
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    found = model.generate(IDS[:, :12], **given, compile_config=compiling)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > before
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("side", ["left", "holes"])
@pytest.mark.parametrize("name", ["mistral", "gemma2"])
def test_nothing_is_made_of_all_pairs(name, side):
    config, make, sizes, _ = MODELS[name]
    sizes = sizes | {"max_position_embeddings": 4096}
    model = make._from_config(config(**sizes), attn_implementation="relpos").eval()
    length = 2048
    ids = torch.randint(3, 60, (1, length))
    tokens = torch.ones_like(ids)
    tokens[:, HIDDEN[side]] = 0
    with torch.no_grad(), LargestTensor() as largest:
        model.model(ids, attention_mask=tokens)
    assert largest.entries < length * length / 4


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("causal", name) for name in ("deepseek_v32", "deepseek_v4", "doge", "hy_v4")),
        *(("encoder and decoder", name) for name in ("bigbird_pegasus", "t5gemma2")),
    ],
)
def test_models_that_work_on_their_masks_or_choose_keys_agree(kind, name):
    """Those that `python -m benchmarks.attn_implementation --sweep` found otherwise once."""
    (row,) = measure_sweep(kind, [name])
    assert (row["outcome"], row["texts"]) == ("agrees", "equal")


GROUPS = torch.tensor([[-1, -1, 0, 0, 0, -1, 1, 1, -1, -1, -1, -1]] * 2)
RULES = {
    "causal": of_hf.causal_mask_function,
    "both ways": of_hf.bidirectional_mask_function,
    "window": of_hf.sliding_window_causal_mask_function(3),
    "window, both ways": of_hf.sliding_window_bidirectional_mask_function(2),
    "chunks": of_hf.chunked_causal_mask_function(5, torch.tensor([0, 2])),
    "image": of_hf.or_masks(of_hf.causal_mask_function, of_hf.blockwise_overlay(GROUPS)),
    "packed": of_hf.and_masks(
        of_hf.causal_mask_function,
        of_hf.packed_sequence_mask_function(torch.tensor([[0] * 5 + [1] * 7] * 2)),
    ),
    "window, image": of_hf.or_masks(
        of_hf.sliding_window_causal_mask_function(2), of_hf.blockwise_overlay(GROUPS)
    ),
}


@pytest.mark.parametrize("padding", ["none", "left", "right", "holes"])
@pytest.mark.parametrize(
    "sizes",
    [(12, 12, 0, 0), (1, 12, 11, 0), (4, 9, 8, 3), (4, 12, 2, 0), (2, 12, torch.tensor([6]), 0)],
    ids=str,
)
@pytest.mark.parametrize("rule", RULES)
def test_ranges_say_what_transformers_masks_say(rule, sizes, padding, monkeypatch):
    monkeypatch.setattr("relpos.adapters.range_masks._PAIRS", 50)  # two rows at a time
    tokens = torch.ones(2, 12, dtype=torch.bool)
    tokens[1, {"none": slice(0), "left": slice(2), "right": slice(10, 12),
               "holes": slice(4, 6)}[padding]] = False  # fmt: skip
    given = (2, *sizes, RULES[rule], None if padding == "none" else tokens)
    config = hf.MistralConfig(sliding_window=3)
    more = {"local_size": 3, "config": config} if rule == "window" else {}
    whole = of_hf.sdpa_mask(*given, **more, allow_is_causal_skip=False)
    # transformers says so of these alone.
    plain = rule in ("causal", "window", "chunks")
    found = range_mask(*given, **more, allow_is_causal_skip=plain)
    if found is None:
        assert rule == "causal"
        assert padding == "none"
        return
    assert found.shape == whole.shape
    if isinstance(found, KeyRangesMask):
        found = found.pairs()
    else:
        assert rule == "window, image"
    assert torch.equal(found.expand_as(whole), whole)


def test_numbers_are_for_modules_that_have_no_sdpa():
    """Beside one that has it: the other adds its mask to the scores."""
    module = pytest.importorskip("transformers.models.hy_v4_vl.modeling_hy_v4_vl")
    assert module.HYV4VLVisionModel._supports_sdpa
    tokens = torch.ones(2, 4).bool()
    both = (module.HYV4VLVisionConfig, torch.bool), (module.HYV4VLTextConfig, torch.float32)
    for config, dtype in both:
        assert range_mask(2, 4, 4, config=config(), attention_mask=tokens).dtype == dtype


def test_parts_that_attend_by_themselves_go_on_as_they_were(seen):
    torch.manual_seed(0)
    config = hf.Gemma4AudioConfig(num_hidden_layers=1)
    model = Gemma4AudioModel._from_config(config, attn_implementation="eager").eval()
    frames, tokens = torch.randn(2, 60, 128), torch.ones(2, 60).bool()
    tokens[1, 40:] = False
    with torch.no_grad():
        wanted = model(frames, tokens).last_hidden_state
        model.set_attn_implementation("relpos")
        assert torch.equal(model(frames, tokens).last_hidden_state, wanted)
    assert not seen


def test_a_longer_mask_is_cut_and_one_that_was_written_into_counts():
    torch.manual_seed(0)
    q = torch.randn(1, 2, 5, 8).double()
    ranges = torch.stack([torch.zeros(5), torch.arange(1, 6)], -1).long()[None, None]
    causal = torch.ones(5, 5).tril().bool()[None, None]
    for keys, write in ((9, False), (5, True)):
        mask, wanted = KeyRangesMask(ranges, keys), causal.clone()
        if write:
            for each in (mask, wanted):
                each[:, 0, 2:, 1:].logical_not_()
        expected = scaled_dot_product_attention(q, q, q, attn_mask=wanted)
        found, _ = attn_implementation.attention_function(torch.nn.Module(), q, q, q, mask)
        assert_near(found.transpose(1, 2), expected, 1e-12)


@pytest.mark.filterwarnings("ignore")
def test_a_traced_model_goes_by_the_padding_that_it_is_given():
    model = made("mistral")
    model.set_attn_implementation("relpos")

    class Logits(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, ids: Tensor, tokens: Tensor) -> Tensor:
            return self.model(ids, attention_mask=tokens, use_cache=False).logits

    tokens = padded("left")
    with torch.no_grad():
        traced = torch.jit.trace(Logits(), (IDS, padded("none")), check_trace=False)
        wanted = Logits()(IDS, tokens)
        assert_near(traced(IDS, tokens)[tokens.bool()], wanted[tokens.bool()], 1e-9)


def test_masks_of_integers_blocks_and_paged_caches_are_refused():
    q = torch.zeros(1, 2, 5, 8)
    module = torch.nn.Module()
    with pytest.raises(ShapeError, match=r"^attn_imp.*must be boolean .*, got torch\.int64"):
        attn_implementation.attention_function(module, q, q, q, torch.ones(1, 1, 5, 5).long())
    mask = KeyRangesMask(torch.zeros(1, 1, 5, 2).long(), 4)
    with pytest.raises(ShapeError, match="attention_mask must be of 5 keys, got 4"):
        attn_implementation.attention_function(module, q, q, q, mask)
    for name in ("block_indices", "cache"):
        with pytest.raises(ValueError, match=f"{name} must be None, since chosen blocks and paged"):
            attn_implementation.attention_function(module, q, q, q, None, **{name: object()})


@pytest.mark.parametrize(
    ("config", "make"),
    [
        (hf.BloomConfig(vocab_size=60, hidden_size=32, n_layer=1, n_head=4), hf.BloomForCausalLM),
        (
            hf.XGLMConfig(vocab_size=60, d_model=32, ffn_dim=48, num_layers=1, attention_heads=4),
            hf.XGLMForCausalLM,
        ),
    ],
    ids=["bloom", "xglm"],
)
def test_models_with_eager_attention_of_their_own_are_refused(config, make):
    """`from_pretrained` takes any name for them, and would be silently wrong."""
    model = make._from_config(config, attn_implementation="relpos").eval()
    with pytest.raises(ValueError, match="must take its attention from transformers' interface"):
        model(IDS)


def test_a_model_is_looked_for_again_once_its_module_is_imported(monkeypatch):
    class Config(hf.BloomConfig):
        __module__ = hf.BloomConfig.__module__

    with monkeypatch.context() as before:
        before.delitem(sys.modules, hf.BloomModel.__module__)
        assert not range_masks._takes_numbers(Config)
    with pytest.raises(ValueError, match="must take its attention from transformers' interface"):
        range_masks._takes_numbers(Config)


SLIDING = hf.MistralConfig(
    vocab_size=60, hidden_size=32, intermediate_size=48, num_hidden_layers=1, sliding_window=4,
    num_attention_heads=4, num_key_value_heads=2, use_cache=False,
)  # fmt: skip


@pytest.mark.no_typecheck
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")  # SDPA's own
def test_samples_with_padding_have_gradients_of_their_own():
    torch.manual_seed(0)
    model: Any = hf.MistralForCausalLM(SLIDING).double().eval()
    weights = {name: x.detach() for name, x in model.named_parameters()}
    ids, padding = torch.randint(60, (3, 9)), torch.ones(3, 9, dtype=torch.int64)
    padding[0, 6:] = 0

    def loss(weights: dict[str, Tensor], ids: Tensor, padding: Tensor) -> Tensor:
        given = {"input_ids": ids[None], "attention_mask": padding[None]}
        logits = torch.func.functional_call(model, weights, (), given).logits[0]
        return (logits * padding[:, None]).square().sum()

    found = []
    for implementation in ("sdpa", "relpos"):
        model.set_attn_implementation(implementation)
        each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))
        found.append(each(weights, ids, padding))
    for name, x in found[0].items():
        assert_near(found[1][name], x, 1e-9)


def test_padding_without_numbers_has_a_shape():
    with torch.device("meta"):
        model = hf.MistralForCausalLM(SLIDING)
        ids = torch.ones(2, 9, dtype=torch.int64)
    model.set_attn_implementation("relpos")
    assert model(input_ids=ids, attention_mask=ids).logits.shape == (2, 9, 60)


@pytest.mark.parametrize("kind", ["none", "ranges", "bool", "float"])
def test_keys_that_were_not_chosen_are_hidden(kind):
    torch.manual_seed(0)
    q, indices = (
        torch.randn(2, 2, 5, 8).double(),
        torch.tensor([[4, 0], [1, 1], [0, 2], [3, 0], [2, 4]]),
    )
    causal = torch.ones(5, 5).tril().bool()[None, None]
    mask = {
        "none": None,
        "bool": causal,
        "float": torch.zeros(5, 5).masked_fill(~causal, -torch.inf).double(),
        "ranges": KeyRangesMask(
            torch.stack([torch.zeros(5), torch.arange(1, 6)], -1).long()[None, None], 5
        ),
    }[kind]
    chosen = torch.zeros(5, 5, dtype=torch.bool).scatter(1, indices, True)
    wanted = scaled_dot_product_attention(q, q, q, attn_mask=chosen & causal)
    found, _ = attn_implementation.attention_function(
        torch.nn.Module(), q, q, q, mask, indices=indices.expand(2, -1, -1)
    )
    assert_near(found.transpose(1, 2), wanted, 1e-12)


@pytest.mark.parametrize("given", ["s_aux", "sinks"])
def test_a_sink_is_a_key_whose_value_is_zero(given):
    torch.manual_seed(0)
    q, sinks = torch.randn(1, 2, 5, 8).double(), torch.randn(2).double()
    scores = (q @ q.mT / 8**0.5).masked_fill(torch.ones(5, 5).triu(1).bool(), -torch.inf)
    of_each = sinks.view(1, 2, 1, 1).expand(1, 2, 5, 1)
    wanted = torch.cat([scores, of_each], -1).softmax(-1)[..., :-1] @ q
    found, _ = attn_implementation.attention_function(
        torch.nn.Module(), q, q, q, None, **{given: sinks if given == "s_aux" else of_each}
    )
    assert_near(found.transpose(1, 2), wanted, 1e-12)
