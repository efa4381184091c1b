"""What people do with models of transformers, done with adapted ones: the same comes of it."""

from __future__ import annotations

import copy
import sys
from functools import _lru_cache_wrapper
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel

from relpos.adapters import adapt, restore

from .models import BY_NAME, CASES
from .models.case import Case
from .results import assert_equal, gradients

pytestmark = pytest.mark.no_typecheck


def cases(chosen: list[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", chosen, ids=lambda case: case.name)


USED = [case for case in CASES if case.first]
FIRST = [case for case in USED if case.pretrained]


def eager(case: Case, dtype: torch.dtype = torch.float64) -> nn.Module:
    """The original with an implementation that returns its weights."""
    model: Any = case.model(dtype)
    if type(model)._can_set_attn_implementation():
        model.set_attn_implementation("eager")
    return model


def assert_close(ours: tuple[Tensor, ...], theirs: tuple[Tensor, ...]) -> None:
    assert len(ours) == len(theirs) > 0
    for x, y in zip(ours, theirs, strict=True):
        # Some take their softmax in float32, whatever the model is in.
        torch.testing.assert_close(x, y, rtol=1e-6, atol=1e-6)


@cases([case for case in FIRST if case.attentions])
@pytest.mark.costly(20)
def test_attention_weights_and_hidden_states_are_those_of_the_original(case: Case):
    inputs = case.with_dtype(case.inputs(2, case.lengths[0], "none"), torch.float64)
    wanted = {"output_attentions": True, "output_hidden_states": True}
    original, model = eager(case), case.model(torch.float64)
    adapt(model)
    with case.unrounded(model):
        theirs, ours = original(**inputs, **wanted), model(**inputs, **wanted)
    assert_close(ours[case.attentions], theirs[case.attentions])
    states = str(case.attentions).replace("attentions", "hidden_states")
    assert_close(ours[states], theirs[states])


@cases(FIRST)
@pytest.mark.costly(20)
def test_a_saved_model_is_the_originals_and_loads_as_one(case: Case, tmp_path: Path):
    model: Any = case.model()
    inputs = case.inputs(2, case.lengths[0], "none")
    expected, _ = case.call(model, inputs)
    original = type(model)
    model.save_pretrained(tmp_path / "original")
    implementation = model.config._attn_implementation
    adapt(model)
    model.save_pretrained(tmp_path / "adapted")
    files = sorted(path.name for path in (tmp_path / "original").iterdir())
    assert sorted(path.name for path in (tmp_path / "adapted").iterdir()) == files
    for file in files:
        ours, theirs = (tmp_path / name / file for name in ("adapted", "original"))
        assert ours.read_bytes() == theirs.read_bytes(), file
    loaded = original.from_pretrained(
        tmp_path / "adapted", attn_implementation=implementation
    ).eval()
    # What is loaded lies elsewhere in memory, which a matrix product may round by.
    close = {"rtol": 0, "atol": 0} if case.reloads else {}
    torch.testing.assert_close(case.call(loaded, inputs)[0], expected, **close)
    adapt(loaded)
    torch.testing.assert_close(case.call(loaded, inputs)[0], case.call(model, inputs)[0], **close)


def checkpoints(model: Any) -> bool:
    """Whether any of its modules can; audio encoders have the word of the whole model for it."""
    able = any(hasattr(module, "gradient_checkpointing") for module in model.modules())
    return model.supports_gradient_checkpointing and able


# Reentrant checkpoints run some of the originals' layers again and again without an end.
@pytest.mark.parametrize(
    ("case", "reentrant"),
    [
        *((case, False) for case in FIRST if checkpoints(case.build())),
        (BY_NAME["parakeet"], True),
        (BY_NAME["wav2vec2_bert relative_key"], True),
    ],
    ids=lambda value: value.name if isinstance(value, Case) else ["", "reentrant"][value],
)
@pytest.mark.costly(20)
def test_gradient_checkpointing_changes_no_gradient(case: Case, reentrant: bool):
    model: Any = case.model(torch.float64).train()
    inputs = case.with_dtype(case.inputs(2, case.lengths[0], case.paddings[-1]), torch.float64)
    calls: list[nn.Module] = []
    model.get_submodule(case.attention).register_forward_pre_hook(lambda x, _: calls.append(x))
    theirs = gradients(case, model, inputs)
    once = len(calls)
    adapt(model)
    model.activation_checkpointing_enable({"use_reentrant": reentrant})
    assert_equal(gradients(case, model, inputs), theirs, 1e-12)
    assert len(calls) == 3 * once


def slope_of_gradients(case: Case, model: nn.Module, inputs: dict[str, Any]) -> dict[str, Tensor]:
    """How the size of all gradients changes with each parameter, as a penalty of them asks for."""
    output, _ = case.call(model, inputs)
    learned = {name: x for name, x in model.named_parameters() if x.requires_grad}
    first = torch.autograd.grad(
        output.square().mean(), [*learned.values()], create_graph=True, allow_unused=True
    )
    penalty = torch.stack([x.square().sum() for x in first if x is not None]).sum()
    second = torch.autograd.grad(penalty, [*learned.values()], allow_unused=True)
    return {name: x for name, x in zip(learned, second, strict=True) if x is not None}


# Swin v2 pads maps with zeros, of whose cosines the second derivative is NaN, in the original too.
@cases([case for case in FIRST if case.name != "swinv2"])
@pytest.mark.costly(12)
def test_a_penalty_of_gradients_is_that_of_the_original(case: Case):
    inputs = case.with_dtype(case.inputs(2, case.lengths[0], case.paddings[-1]), torch.float64)
    model = case.model(torch.float64)
    # Of torch's own attention, which some have beside what is adapted, this one can do so.
    with case.unrounded(model), sdpa_kernel(SDPBackend.MATH):
        theirs = slope_of_gradients(case, model, inputs)
        adapt(model)
        ours = slope_of_gradients(case, model, inputs)
    assert_equal(ours, theirs, 1e-9)


@pytest.mark.slow
# Some of transformers' encoders ask a cached function whether FSDP is on, and some break.
@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`:UserWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
# In chunks it is the same code and more; ESPnet's, once called, cannot be copied; torch does not
# compile what NeMo's checks of types wrap, nor make fairseq2's layouts.
@cases([
    case for case in USED
    if case.name not in ("seamless_m4t_v2", "espnet", "nemo", "fairseq2 shaw")
])  # fmt: skip
@pytest.mark.costly(1)
def test_compiling_breaks_no_graph_that_was_whole(case: Case):
    model = case.model()
    inputs = case.inputs(2, case.lengths[0], case.paddings[-1]) | case.traced
    inputs.pop("labels", None)
    # What is computed in the first call and kept, as `functools.cached_property` does.
    model(**inputs)
    original = copy.deepcopy(model)
    adapt(model)
    torch._dynamo.reset()
    graphs = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=graphs)
    doubled = case.with_dtype(inputs, torch.float64)
    exact = gradients(case, copy.deepcopy(model).double(), doubled)
    expected = gradients(case, model, inputs)
    got = gradients(case, compiled, inputs)
    assert graphs.frame_count
    if graphs.frame_count > 1:
        torch._dynamo.reset()
        assert graphs.frame_count <= torch._dynamo.explain(original)(**inputs).graph_count
    got = {name.removeprefix("_orig_mod."): x for name, x in got.items()}
    assert_equal(got, expected, 1e-4, exact)


@cases([case for case in USED if case.dropout])
@pytest.mark.costly(6)
def test_dropout_of_attention_draws_from_the_same_distribution(case: Case):
    model = case.model()
    # Of images of one size, or of few tokens.
    inputs = case.inputs(1, 12 if len(case.lengths) > 1 else case.lengths[0], "none")

    def draws(model: nn.Module) -> Tensor:
        attention = model.get_submodule(case.attention)
        called: list[tuple[Any, Any]] = []
        hook = attention.register_forward_pre_hook(
            lambda _, args, kwargs: called.append((args, kwargs)), with_kwargs=True
        )
        with torch.no_grad():
            model(**inputs, **({"use_cache": False} if case.generates else {}))
            hook.remove()
            assert case.dropout is not None
            case.dropout(attention, 0.4)
            attention.train()
            (args, kwargs), *_ = called
            outputs = [attention(*args, **kwargs) for _ in range(600)]
        return torch.stack([x[0] if isinstance(x, tuple) else x for x in outputs])

    theirs = draws(copy.deepcopy(model))
    adapt(model)
    ours = draws(model)
    # Five deviations of a difference of means of 600 draws.
    allowed = 5 * theirs.std(0) * (2 / 600) ** 0.5
    assert (((ours.mean(0) - theirs.mean(0)).abs() > allowed).float().mean()) < 1e-3
    spread = ours.std(0) / theirs.std(0)
    assert 0.97 < float(spread.mean()) < 1.03
    assert 0.7 < float(spread.min()) <= float(spread.max()) < 1.4


# The dropout of Monte Carlo: originals that ask a module of dropout, whatever else is training.
@pytest.mark.parametrize(
    "name",
    [
        "bloom", "borzoi", "deberta", "deberta_v3", "donut swin", "enformer",
        "fastspeech2_conformer", "monai blocks", "monai swin", "mpnet", "speechbrain",
        "timm swin v2", "x_transformers t5", "xlnet",
    ],
)  # fmt: skip
def test_weights_are_dropped_where_their_dropout_alone_is_training(name: str):
    case = BY_NAME[name]
    model, inputs = case.model(), case.inputs(1, case.lengths[0], "none")
    for adapted in (False, True):
        if adapted:
            adapt(model)
        attention = model.get_submodule(case.attention)
        assert case.dropout is not None
        case.dropout(attention, 0.5)  # of weights; others drop nothing
        for module in attention.children():
            module.train()
        assert not model.training
        with torch.no_grad():
            one, other = (getattr(model(**inputs), case.output) for _ in range(2))
        assert not torch.equal(one, other)


def forget(model: nn.Module) -> None:
    """What the model's library keeps for later calls: OpenMMLab masks, here without numbers."""
    for source in {sys.modules[type(module).__module__] for module in model.modules()}:
        for function in vars(source).values():
            if isinstance(function, _lru_cache_wrapper):
                function.cache_clear()


@cases(CASES)
@pytest.mark.costly(8)
def test_tensors_without_numbers_have_the_originals_shape(case: Case):
    model, inputs = case.model(), case.inputs(2, case.lengths[0], case.paddings[-1])

    def shape() -> torch.Size:
        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
            return getattr(model(**inputs), case.output).shape

    try:
        expected = shape()
    except Exception:  # some look at their numbers
        return
    finally:
        forget(model)
    adapt(model)
    assert shape() == expected
    forget(model)


@cases([case for case in USED if case.linears])
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.parametrize("order", ["LoRA, then adapt", "adapt, then LoRA"])
@pytest.mark.costly(24)
def test_lora_trains_the_same_before_and_after(case: Case, order: str):
    lora = peft.LoraConfig(target_modules=list(case.linears), r=2, init_lora_weights=False)
    inputs = case.with_dtype(case.inputs(2, case.lengths[0], case.paddings[-1]), torch.float64)

    def wrapped(*, adapted: bool) -> nn.Module:
        model: Any = case.model(torch.float64)
        if adapted and order.startswith("adapt"):
            adapt(model)
        torch.manual_seed(1)
        model = peft.get_peft_model(model, lora).double().eval()
        if adapted and order.startswith("LoRA"):
            adapt(model)
        return model

    theirs = gradients(case, wrapped(adapted=False), inputs)
    assert any("lora" in name for name in theirs)
    assert_equal(gradients(case, wrapped(adapted=True), inputs), theirs, 1e-12)


WAYS = {
    "greedy": {"do_sample": False},
    "beams": {"do_sample": False, "num_beams": 3},
    "sampling": {"do_sample": True, "top_k": 10},
    "static cache": {"do_sample": False, "cache_implementation": "static"},
    "without a cache": {"do_sample": False, "use_cache": False},
}


@cases([case for case in CASES if case.generates])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("padding", ["none", "left"])
@pytest.mark.costly(40)
def test_generation_gives_the_same_tokens(case: Case, way: str, padding: str):
    if way in case.without:
        pytest.skip("the original cannot")
    model: Any = case.model()
    inputs = case.inputs(2, case.lengths[0], padding if padding in case.paddings else "none")
    given = {
        name: x
        for name, x in inputs.items()
        if name != "labels" and not name.startswith("decoder_")
    }
    settings = {"max_new_tokens": 12, "min_new_tokens": 12, **WAYS[way]}

    def tokens() -> Tensor:
        torch.manual_seed(3)
        return model.generate(**given, **settings)

    theirs = tokens()
    assert len(theirs.unique()) > 3
    adapt(model)
    assert torch.equal(tokens(), theirs)
    restore(model)
    assert torch.equal(tokens(), theirs)
