"""`adapt`, `restore` and their report: what they refuse, what they leave, and windows."""

from __future__ import annotations

import copy
import inspect
import json
import re
import subprocess
import sys
import threading
from functools import partial
from typing import Any

import accelerate
import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LevitConfig, LevitModel

from relpos.adapters import Adapted, Report, adapt, families, register, restore

from .models import BY_NAME, CASES
from .models.case import Case

pytestmark = pytest.mark.no_typecheck


def model(name: str = "wav2vec2_bert relative_key") -> Any:
    return BY_NAME[name].model()


def untouched(model: nn.Module) -> bool:
    return not any(isinstance(module, Adapted) for module in model.modules())


def test_the_report_prints_layers_in_one_line_and_is_true_if_anything_was_adapted():
    report = adapt(model())
    assert report.adapted == [(f"encoder.layers.{n}.self_attn", "Shaw keys") for n in range(2)]
    assert str(report).splitlines() == [
        "adapted: 2",
        "  encoder.layers.{0..1}.self_attn  2  Shaw keys",
        "left as they were: 0",
    ]
    assert report
    assert not Report()


def test_an_adapted_module_says_so_and_keeps_its_names():
    adapted = model()
    before = type(adapted.encoder.layers[0].self_attn)
    adapt(adapted)
    attention = adapted.encoder.layers[0].self_attn
    assert "relpos='Shaw keys'" in repr(attention)
    assert isinstance(attention, before)
    assert str(type(attention)) == str(before)


@pytest.mark.parametrize("wrong", [None, "folder", {"model": 1}])
def test_what_is_no_module_is_refused(wrong: Any):
    for function in (adapt, restore):
        with pytest.raises(
            TypeError, match=rf"{function.__name__}: model must be an nn.Module, got"
        ):
            function(wrong)


def test_a_model_without_relative_attention_is_refused_by_its_name():
    gpt2 = GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=10))
    words = r"relpos\.adapters\.families\(\), got a GPT2LMHeadModel with none"
    with pytest.raises(ValueError, match=words):
        adapt(gpt2)


def test_an_adapted_model_is_refused_and_one_restored_is_not():
    adapted = model()
    adapt(adapted)
    with pytest.raises(ValueError, match=r"whose encoder.layers.0.self_attn is; restore\(model\)"):
        adapt(adapted)
    restore(adapted)
    restore(adapted)
    assert untouched(adapted)
    assert adapt(adapted)


class Unknown(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.relative_attention_bias = nn.Embedding(8, 2)


def test_what_looks_like_relative_attention_is_named_and_left():
    mixed = nn.ModuleDict({"known": model(), "unknown": Unknown()})
    report = adapt(mixed)
    assert len(report.adapted) == 2
    reason = "looks like relative attention, but relpos does not know Unknown"
    assert report.left == [("unknown", reason)]


def test_strict_leaves_nothing_or_changes_nothing():
    mixed = nn.ModuleDict({"known": model(), "unknown": Unknown()})
    with pytest.raises(ValueError, match="adapt: strict must leave nothing, got"):
        adapt(mixed, strict=True)
    assert untouched(mixed)
    assert adapt(mixed["known"], strict=True)


def test_a_module_with_a_forward_of_its_own_is_left():
    adapted = model()
    accelerate.hooks.add_hook_to_module(
        adapted.encoder.layers[0].self_attn, accelerate.hooks.ModelHook()
    )
    report = adapt(adapted)
    ((name, reason),) = report.left
    assert name == "encoder.layers.0.self_attn"
    assert "its forward was replaced on the instance" in reason
    assert [name for name, _ in report.adapted] == ["encoder.layers.1.self_attn"]


def test_hooks_of_accelerate_after_adapt_change_nothing():
    adapted, case = model(), BY_NAME["wav2vec2_bert relative_key"]
    inputs = case.inputs(2, 33, "right")
    adapt(adapted)
    expected = adapted(**inputs).last_hidden_state
    # Parameters come to each module when it is called, and leave again.
    accelerate.cpu_offload(adapted, execution_device=torch.device("cpu"))
    assert torch.equal(adapted(**inputs).last_hidden_state, expected)


def test_hooks_must_go_before_a_model_is_restored():
    adapted, case = model(), BY_NAME["wav2vec2_bert relative_key"]
    inputs = case.inputs(2, 33, "right")
    expected = adapted(**inputs).last_hidden_state
    adapt(adapted)
    attention = adapted.encoder.layers[0].self_attn
    accelerate.hooks.add_hook_to_module(attention, accelerate.hooks.ModelHook())
    with pytest.raises(ValueError, match=r"got another in encoder.layers.0.self_attn"):
        restore(adapted)
    assert not untouched(adapted)
    accelerate.hooks.remove_hook_from_module(attention)
    restore(adapted)
    assert untouched(adapted)
    assert torch.equal(adapted(**inputs).last_hidden_state, expected)
    assert len(adapt(adapted).adapted) == 2


@pytest.mark.parametrize("case", [case for case in CASES if case.first], ids=lambda case: case.name)
def test_a_model_of_which_one_layer_is_left_gives_the_same(case: Case):
    theirs = case.model(torch.float64)
    inputs = case.with_dtype(case.inputs(2, case.lengths[0], case.paddings[-1]), torch.float64)
    expected, _ = case.call(theirs, inputs)
    attention = theirs.get_submodule(case.attention)
    attention.forward = partial(attention.forward)
    report = adapt(theirs)
    # By itself, or with what it is adapted with.
    assert any(case.attention.startswith(name) for name, _ in report.left)
    got, _ = case.call(theirs, inputs)
    torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-11)


def test_another_signature_is_seen_and_named(monkeypatch: pytest.MonkeyPatch):
    adapted = model()
    cls = type(adapted.encoder.layers[0].self_attn)

    def forward(self, hidden_states, attention_mask=None, *, scale=None):
        return hidden_states

    monkeypatch.setattr(cls, "forward", forward)
    report = adapt(adapted)
    assert not report.adapted
    words = "forward has the parameters self, hidden_states, attention_mask, scale here"
    assert all(words in reason for _, reason in report.left)


def test_a_method_that_somebody_put_into_the_class_is_not_overridden(
    monkeypatch: pytest.MonkeyPatch,
):
    adapted = model()
    cls = type(adapted.encoder.layers[0].self_attn)
    original = cls.forward

    def forward(self, hidden_states, *args, **kwargs):
        return original(self, 2 * hidden_states, *args, **kwargs)

    vars(forward)["__signature__"] = inspect.signature(original)
    monkeypatch.setattr(cls, "forward", forward)
    report = adapt(adapted)
    assert not report.adapted
    assert all(f"forward was replaced by one of {__name__}" in reason for _, reason in report.left)


def test_an_implementation_that_relpos_does_not_stand_in_for_is_named():
    adapted = model()
    adapted.config._attn_implementation_internal = "flash_attention_2"
    report = adapt(adapted)
    assert [reason for _, reason in report.left] == [
        "attn_implementation must be one of eager, sdpa, flex_attention, got 'flash_attention_2'"
    ] * 2


@pytest.mark.parametrize(
    "case",
    # SEW-D's own dropout divides by zero.
    [case for case in CASES if case.first and case.dropout is not None and case.name != "sew_d"],
    ids=lambda case: case.name,
)
def test_a_module_that_drops_all_weights_is_left_with_the_reason(case: Case):
    model: Any = case.model()
    assert case.dropout is not None
    kind = type(model.get_submodule(case.attention))
    for module in model.modules():
        if type(module) is kind:
            case.dropout(module, 1.0)
    left = adapt(model).left
    why = next(reason for name, reason in left if case.attention.startswith(name))
    name = "(attention_|attn_)?dropout(_p|_att|_module)?|attn_drop|drop_weights"
    assert re.search(rf"\b({name}) must be in 0 <= .* < 1, got 1.0$", why)
    output, _ = case.call(model.train(), case.inputs(2, case.lengths[-1], "none"))
    assert output.isfinite().all()


def test_classes_that_stay_as_they_are_say_why():
    levit = LevitModel(LevitConfig(hidden_sizes=[16, 16, 16], depths=[1, 1, 1]))
    report = adapt(levit)
    assert not report.adapted
    assert report.left
    assert untouched(levit)


def test_an_adaptation_is_imported_by_its_name_beside_the_function():
    code = (
        "import relpos.adapters, relpos.adapters.adaptations.t5 as t5; "
        "assert t5.Attention.scheme in relpos.adapters.families()['t5'].schemes.values()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_families_name_their_classes_and_schemes():
    found = families()
    assert found["t5"].schemes == {"T5Attention": "T5 bias"}
    for family in found.values():
        assert family.schemes.keys() == family.classes.keys()


def test_a_configuration_that_returns_weights_is_left_and_can_be_saved(tmp_path):
    adapted = model()
    adapted.set_attn_implementation("eager")
    adapted.config.output_attentions = True
    report = adapt(adapted)
    assert all("config.output_attentions must be False" in reason for _, reason in report.left)
    adapted.save_pretrained(tmp_path)


def test_a_copy_of_a_compiled_module_runs_its_own_weights():
    adapted, x = model(), torch.randn(1, 9, 32)
    adapt(adapted)
    attention = adapted.encoder.layers[0].self_attn
    attention.compile(backend="eager")
    before = attention(x)[0]
    other = copy.deepcopy(attention)
    nn.init.zeros_(other.linear_v.weight)
    assert not torch.allclose(other(x)[0], before)
    assert torch.equal(attention(x)[0], before)


def test_a_registered_class_is_adapted():
    class Own(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    class Doubled(Adapted):
        scheme = "doubled"

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

    register(Own, Doubled)
    own = Own()
    assert adapt(own).adapted == [("", "doubled")]
    assert own(torch.ones(1)) == 2
    restore(own)
    assert type(own) is Own


@pytest.mark.parametrize("name", ["cache", "past_key_values", "past"])
@pytest.mark.parametrize("expected", ["cache", "past_key_values"])
def test_an_adaptation_may_call_the_cache_by_either_name(name: str, expected: str):
    class Cached(nn.Module):
        exec(f"def forward(self, x, {name}=None): return x")

    class Doubled(Adapted):
        scheme = "doubled"
        signatures = {"forward": ("self", "x", expected)}  # noqa: RUF012

    register(Cached, Doubled)
    report = adapt(Cached())
    assert bool(report.adapted) == (name != "past")
    assert [reason for _, reason in report.left] == (name == "past") * [
        "Cached.forward has the parameters self, x, past here, where self, x, "
        f"{expected} were expected"
    ]


@pytest.mark.parametrize(("original", "adaptation"), [(Unknown, Unknown), ("Own", Adapted)])
def test_what_is_no_class_cannot_be_registered(original: Any, adaptation: Any):
    with pytest.raises(TypeError, match=r"register: (original|adaptation) must be a subclass of"):
        register(original, adaptation)


# Families whose tokens lie along a line and see both ways, in an encoder at least: how their cases'
# names begin, and of these the cases that do not.
TAKE_WINDOWS = (
    "borzoi", "conformer", "coqui", "deberta", "enformer", "espnet", "fairseq2",
    "fastspeech2", "freevc", "funasr", "mpnet", "mt5", "nemo", "parakeet", "piper", "pop2piano",
    "s3prl", "seamless", "sew_d", "speechbrain", "speecht5", "switch", "t5", "torchaudio", "umt5",
    "vits", "wav2vec2", "wavlm",
)  # fmt: skip
TAKE_NONE = ("fairseq2 shaw, causal",)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_wide_window_changes_nothing_and_a_narrow_one_does_or_there_is_none(case: Case):
    inputs = case.inputs(2, case.lengths[0], case.paddings[-1])
    full = case.model()
    if not case.name.startswith(TAKE_WINDOWS) or case.name.startswith(TAKE_NONE):
        with pytest.raises(ValueError, match="adapt: window must be None for a model without"):
            adapt(full, window=(100, 100))
        assert untouched(full)
        return
    wide, narrow = case.model(), case.model()
    adapt(full)
    adapt(wide, window=(100, 100))
    adapt(narrow, window=(1, 1))
    expected, _ = case.call(full, inputs)
    torch.testing.assert_close(case.call(wide, inputs)[0], expected, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(case.call(narrow, inputs)[0], expected, rtol=1e-2, atol=1e-2)
    assert torch.equal(case.call(copy.deepcopy(narrow), inputs)[0], case.call(narrow, inputs)[0])
    restore(narrow)
    report = adapt(narrow, window=(2, None))
    for name, scheme in report.adapted:
        words = "no window" if "decoder" in name else "window (2, None)"
        assert scheme.endswith(f", {words}")


def test_a_window_lets_a_token_see_its_neighbours_alone():
    adapted = model()
    adapt(adapted, window=(2, 1))
    attention = adapted.encoder.layers[0].self_attn
    x = torch.randn(1, 9, 32, requires_grad=True)
    attention(x)[0][0, 4].sum().backward()
    seen = x.grad.abs().sum(-1)[0] > 0
    assert seen.nonzero().flatten().tolist() == [2, 3, 4, 5]


def test_a_decoder_takes_no_window():
    decoder = model("t5").decoder
    with pytest.raises(
        ValueError, match=r"adapt: window must be None .* got \(4, 4\) for a T5Stack"
    ):
        adapt(decoder, window=(4, 4))
    assert untouched(decoder)


@pytest.mark.parametrize("window", [(-1, 2), (1,), "wide", (1.5, 2)])
def test_a_window_that_is_none_is_refused(window: Any):
    adapted = model()
    with pytest.raises((ValueError, TypeError), match=r"adapt: window.* must be"):
        adapt(adapted, window=window)
    assert untouched(adapted)


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::UserWarning:torch.ao")
def test_quantised_projections_are_called_as_they_are():
    theirs = torch.ao.quantization.quantize_dynamic(model(), {nn.Linear}, dtype=torch.qint8)
    assert not isinstance(theirs.encoder.layers[0].self_attn.linear_q, nn.Linear)
    inputs = BY_NAME["wav2vec2_bert relative_key"].inputs(2, 33, "right")
    expected = theirs(**inputs).last_hidden_state
    adapt(theirs)
    torch.testing.assert_close(theirs(**inputs).last_hidden_state, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.pretrained], ids=lambda case: case.name
)
def test_another_model_of_the_same_configuration_stays_as_it_is(case: Case):
    adapted, inputs = case.model(), case.inputs(2, case.lengths[0], case.paddings[-1])
    configs = [m.config for m in adapted.modules() if hasattr(m, "config")]
    other = copy.deepcopy(adapted, {id(config): config for config in configs})
    expected = case.call(other, inputs)[0]
    assert adapt(adapted)
    torch.testing.assert_close(case.call(other, inputs)[0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["t5", "wav2vec2_bert relative_key", "bloom", "falcon", "mpnet"])
def test_of_two_adapted_models_of_one_configuration_one_is_restored(name: str):
    case = BY_NAME[name]
    first, inputs = case.model(), case.inputs(2, case.lengths[0], case.paddings[-1])
    configs = [m.config for m in first.modules() if hasattr(m, "config")]
    second = copy.deepcopy(first, {id(config): config for config in configs})
    adapt(first)
    adapt(second)
    expected = case.call(first, inputs)[0]
    restore(second)
    for model in (first, second):
        torch.testing.assert_close(case.call(model, inputs)[0], expected, rtol=1e-4, atol=1e-4)


def test_a_configuration_is_the_models_own_outside_of_its_forward(tmp_path):
    whole: Any = BY_NAME["falcon"].model()
    falcon = whole.transformer
    ids = torch.arange(20)[None]
    expected = falcon(ids).last_hidden_state
    adapt(falcon)
    torch.testing.assert_close(falcon(ids).last_hidden_state, expected, rtol=1e-4, atol=1e-4)
    assert falcon.config is whole.config
    falcon.config.use_cache = False
    assert falcon(ids).get("cache") is None
    other = type(falcon)(falcon.config).eval()
    other.load_state_dict(falcon.state_dict())
    torch.testing.assert_close(other(ids).last_hidden_state, expected, rtol=1e-4, atol=1e-4)
    falcon.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["FalconModel"]


def test_a_configuration_is_another_one_in_the_thread_of_a_forward_alone():
    falcon = BY_NAME["falcon"].model().transformer
    adapt(falcon)
    seen = []

    def look() -> None:
        copied = copy.deepcopy(falcon)
        seen.append((falcon.config._attn_implementation, copied.config._attn_implementation))

    def elsewhere(*_: Any) -> None:
        seen.append(falcon.config._attn_implementation)
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()

    falcon.h[0].register_forward_pre_hook(elsewhere)
    own = falcon.config._attn_implementation
    falcon(torch.arange(5)[None])
    assert seen[0].startswith("relpos-causal-")
    assert seen[1] == (own, own)


def test_a_failing_preparation_leaves_the_model_as_it_was():
    class Known(nn.Linear):
        pass

    class Failing(Adapted):
        scheme = "none"

        @classmethod
        def prepare(cls) -> None:
            raise RuntimeError("not ready")

    register(Known, Failing)
    both = nn.ModuleList([model(), Known(2, 2)])
    with pytest.raises(RuntimeError, match="not ready"):
        adapt(both)
    assert untouched(both)


def test_a_subclass_of_a_known_class_is_left_and_named():
    adapted: Any = BY_NAME["falcon"].model()
    attention = adapted.transformer.h[1].self_attention
    attention.__class__ = type("MyAttention", (type(attention),), {})
    report = dict(adapt(adapted).left)
    assert report["transformer.h.1.self_attention"].startswith("a subclass of FalconAttention, ")
    assert report["transformer.h.0.self_attention"].startswith("it needs ")
    assert untouched(adapted)


def test_a_class_that_others_changed_since_is_not_restored():
    adapted: Any = BY_NAME["parakeet"].model()
    adapt(adapted)
    attention = adapted.encoder.layers[0].self_attn
    nn.utils.parametrize.register_parametrization(attention, "bias_u", nn.Identity())
    with pytest.raises(ValueError, match="got ParametrizedParakeetEncoderAttention in encoder"):
        restore(adapted)
    assert isinstance(adapted.encoder.layers[1].self_attn, Adapted)
    nn.utils.parametrize.remove_parametrizations(attention, "bias_u")
    restore(adapted)
    assert untouched(adapted)


@pytest.mark.parametrize("way", ["another name", "a part restored"])
def test_a_window_goes_with_no_other_implementation(way: str):
    for name in ("t5", "umt5"):
        case = BY_NAME[name]
        narrow: Any = case.model()
        adapt(narrow, window=(2, 2))
        if way == "another name":
            narrow.set_attn_implementation("sdpa")
        else:
            restore(narrow.encoder.block[1])
        with pytest.raises(ValueError, match=r"adapted with window=\(2, 2\), it must be"):
            case.call(narrow, case.inputs(2, case.lengths[0], "none"))


@pytest.mark.parametrize(
    "case",
    [
        case
        for case in CASES
        if case.first
        and case.pretrained
        and case.build()._can_set_attn_implementation()
        # Eager originals of these two take their masks for something else.
        and not case.name.startswith(("nemotron", "seamless_m4t_v2 in chunks"))
    ],
    ids=lambda case: case.name,
)
def test_another_implementation_chosen_since_gives_the_same(case: Case):
    adapted: Any = case.model()
    inputs = case.inputs(2, case.lengths[0], "none")
    adapt(adapted)
    expected = case.call(adapted, inputs)[0]
    adapted.set_attn_implementation("eager")
    if case.name.startswith("inkling"):
        with pytest.raises(ValueError, match="attn_implementation must be chosen before, got"):
            case.call(adapted, inputs)
    else:
        torch.testing.assert_close(case.call(adapted, inputs)[0], expected, rtol=1e-4, atol=1e-4)
    restore(adapted)
    torch.testing.assert_close(case.call(adapted, inputs)[0], expected, rtol=1e-4, atol=1e-4)


def test_no_state_is_kept_between_calls():
    adapted = model()
    adapt(adapted)
    before = {name: set(module.__dict__) for name, module in adapted.named_modules()}
    adapted(**BY_NAME["wav2vec2_bert relative_key"].inputs(2, 33, "left"))
    assert {name: set(module.__dict__) for name, module in adapted.named_modules()} == before
