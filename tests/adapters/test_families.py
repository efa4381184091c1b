"""What holds for every adapted family: the same outputs, loss and gradients, in `O(L)`."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import accelerate
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from relpos.adapters import Adapted, adapt, restore
from tests.quantized import KINDS, IntegerWeight, pack, unpacked
from tests.replicas import in_a_thread, replica

from .largest_tensor import LargestTensor
from .models import BY_NAME, CASES
from .models.case import Case
from .results import assert_equal, gradients

pytestmark = pytest.mark.no_typecheck

FIRST = [case for case in CASES if case.first]
every = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
first = pytest.mark.parametrize("case", FIRST, ids=lambda case: case.name)


@pytest.mark.parametrize("changed", [1e-4, float("nan")])
def test_a_difference_is_found(changed: float):
    theirs = {"output": torch.ones(3), "weight": torch.ones(2)}
    ours = {"output": torch.ones(3), "weight": torch.tensor([1.0, 1.0 + changed])}
    with pytest.raises(AssertionError, match="weight"):
        assert_equal(ours, theirs, 1e-5)


def test_a_difference_beyond_what_the_original_errs_by_is_found():
    exact, theirs = {"weight": torch.tensor([1.0])}, {"weight": torch.tensor([1.001])}
    ours, names = {"weight": torch.tensor([1.0])}, ("weight",)
    assert_equal(ours, theirs, 1e-5, exact, cancelling=names)
    with pytest.raises(AssertionError, match="weight"):
        assert_equal(ours, theirs, 1e-5, exact)
    with pytest.raises(AssertionError, match="weight"):
        assert_equal({"weight": torch.tensor([0.999])}, theirs, 1e-5, exact, cancelling=names)


def calls(case: Case) -> Iterator[tuple[int, int, str]]:
    for padding in case.paddings:
        yield 3, case.lengths[0], padding
    yield 1, case.lengths[-1], "none"


@every
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_output_loss_and_gradients_equal_the_original_in_float64(case: Case, training: bool):
    model = case.model(torch.float64).train(training)
    adapted = copy.deepcopy(model)
    report = adapt(adapted)
    assert len(report.adapted) == case.adapted
    assert bool(report.left) == bool(case.left)
    assert all(case.left in reason for _, reason in report.left)
    for batch, length, padding in calls(case):
        inputs = case.with_dtype(case.inputs(batch, length, padding), torch.float64)
        theirs = gradients(case, model, inputs)
        assert_equal(gradients(case, adapted, inputs), theirs, 1e-12)


@every
def test_output_loss_and_gradients_equal_the_original_in_float32(case: Case):
    model = case.model()
    inputs = case.inputs(3, case.lengths[0], case.paddings[-1])
    exact = gradients(case, copy.deepcopy(model).double(), case.with_dtype(inputs, torch.float64))
    theirs = gradients(case, model, inputs)
    adapt(model)
    ours = gradients(case, model, inputs)
    assert_equal(ours, theirs, 1e-5, exact, cancelling=case.cancelling)


@every
def test_without_its_positions_the_model_gives_something_else(case: Case):
    model, inputs = case.model(), case.inputs(1, case.lengths[0], "none")
    adapt(model)
    before, _ = case.call(model, inputs)
    if case.without_relative is not None:
        case.without_relative(model)
    names = [name for name, _ in model.named_parameters() if any(p in name for p in case.positions)]
    assert names or case.without_relative is not None
    for name in names:
        model.get_parameter(name).data.zero_()
    after, _ = case.call(model, inputs)
    assert float((after - before).detach().abs().max()) > 1e-2 * float(before.detach().abs().max())


@every
def test_state_dict_and_restored_model_are_those_of_the_original(case: Case):
    model, inputs = case.model(), case.inputs(2, case.lengths[0], case.paddings[-1])
    classes = [type(module) for module in model.modules()]
    state = {name: x.clone() for name, x in model.state_dict().items()}
    before = model(**inputs)
    adapt(model)
    assert any(isinstance(module, Adapted) for module in model.modules())
    assert list(model.state_dict()) == list(state)
    model(**inputs)
    restore(model)
    assert [type(module) for module in model.modules()] == classes
    assert all(torch.equal(x, state[name]) for name, x in model.state_dict().items())
    assert torch.equal(getattr(model(**inputs), case.output), getattr(before, case.output))


# Whose originals read the weights of a module without calling it.
READ_PAST_HOOKS = (
    "bloom in slices", "deberta", "sew_d", "timm swin v2", "timm beit", "timm relpos vit, learned",
    "timm maxvit", "timm coatnet, learned", "torchvision swin", "torchvision video swin",
    "monai blocks", "torchaudio", "x_transformers t5", "x_transformers computed",
)  # fmt: skip


@pytest.mark.parametrize(
    "case", [case for case in CASES if not case.name.startswith(READ_PAST_HOOKS)],
    ids=lambda case: case.name,
)  # fmt: skip
def test_weights_may_come_when_a_module_is_called_and_go_again(case: Case):
    model, inputs = case.model(), case.inputs(2, case.lengths[0], case.paddings[-1])
    adapt(model)
    with torch.no_grad():
        expected = getattr(model(**inputs), case.output)
        accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
        assert torch.equal(getattr(model(**inputs), case.output), expected)


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.name.startswith(READ_PAST_HOOKS)],
    ids=lambda case: case.name,
)  # fmt: skip
def test_the_original_does_not_find_its_weights_then(case: Case):
    model, inputs = case.model(), case.inputs(2, case.lengths[0], case.paddings[-1])
    with torch.no_grad():
        expected = getattr(model(**inputs), case.output)
        accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
        found = None
        with suppress(RuntimeError):  # what is on no device is not copied or multiplied
            found = getattr(model(**inputs), case.output)
    assert found is None or not torch.equal(found, expected)


# Whose originals ask their parameters, which replicas do not have, for a dtype or a device.
ASK_PARAMETERS = ("xlnet", "x_transformers t5", "x_transformers computed")


@pytest.mark.parametrize(
    "case", [case for case in CASES if not case.name.startswith(ASK_PARAMETERS)],
    ids=lambda case: case.name,
)  # fmt: skip
def test_a_replica_of_data_parallel_computes_the_same(case: Case):
    model, inputs = case.model(), case.inputs(2, case.lengths[0], case.paddings[-1])
    adapt(model)
    expected = case.call(model, inputs)[0]
    expected.square().sum().backward()
    # A gradient is added to what is there, and a replica's is the module's.
    want = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    own = replica(model)
    got = in_a_thread(lambda: case.of_tokens(getattr(own(**inputs), case.output), inputs))
    assert torch.equal(got, expected)
    got.square().sum().backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert_equal(found, want, 1e-6)


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.name.startswith(ASK_PARAMETERS)],
    ids=lambda case: case.name,
)  # fmt: skip
def test_the_original_fails_in_a_replica_then(case: Case):
    own, inputs = replica(case.model()), case.inputs(2, case.lengths[0], case.paddings[-1])
    with pytest.raises((StopIteration, RuntimeError)):
        own(**inputs)


# Whose originals multiply by a weight themselves, or read its dtype.
READ_WEIGHTS = (
    "bloom in slices", "enformer", "granite_speech5", "inkling2_loop", "wavlm",
    "spandrel Swin2SR", "timm swin v2", "timm beit", "torchvision swin", "torchvision video swin",
    "mmpretrain swin v2", "mmpretrain beit", "mmseg beit", "s3prl", "freevc",
)  # fmt: skip
WITHOUT_LINEARS = ("coqui", "piper", "timm coatnet, learned", "timm bottleneck")


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if not case.name.startswith((*READ_WEIGHTS, *WITHOUT_LINEARS))],
    ids=lambda case: case.name,
)  # fmt: skip
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", ["pack, adapt", "adapt, pack"])
@pytest.mark.costly(160)
def test_linear_modules_may_pack_their_weights(case: Case, order: str, kind: type[IntegerWeight]):
    model, inputs = case.model(), case.inputs(2, case.lengths[0], case.paddings[-1])
    adapted, packed = copy.deepcopy(model), partial(pack, kind=kind)
    assert packed(model) > 0
    for change in (packed, adapt) if order == "pack, adapt" else (adapt, packed):
        change(adapted)
    with torch.no_grad():
        assert_close(case.call(adapted, inputs)[0], case.call(model, inputs)[0], rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.name.startswith(READ_WEIGHTS)],
    ids=lambda case: case.name,
)  # fmt: skip
@pytest.mark.parametrize("kind", KINDS)
def test_the_original_fails_with_packed_weights_then(case: Case, kind: type[IntegerWeight]):
    model, inputs = case.model(), case.inputs(2, case.lengths[0], case.paddings[-1])
    pack(model, kind)
    with pytest.raises((AttributeError, TypeError, RuntimeError)):
        model(**inputs)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name",
    [
        "enformer",
        "wavlm with stable layer norm",
        "timm swin v2",
        "timm beit",
        "torchvision swin",
        "torchvision swin v2",
    ],
)
def test_an_adapted_model_takes_weights_that_its_original_cannot(
    name: str, kind: type[IntegerWeight]
):
    case = BY_NAME[name]
    model, inputs = case.model(), case.inputs(2, case.lengths[0], case.paddings[-1])
    adapted = copy.deepcopy(model)
    unpacked(model)
    adapt(adapted)
    pack(adapted, kind)
    with torch.no_grad():
        assert_close(case.call(adapted, inputs)[0], case.call(model, inputs)[0], rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.name.startswith(WITHOUT_LINEARS)],
    ids=lambda case: case.name,
)  # fmt: skip
def test_a_model_without_linear_modules_has_none_to_pack(case: Case):
    assert pack(case.model()) == 0


@every
@pytest.mark.costly(30)
def test_nothing_has_an_entry_for_each_pair_of_tokens(case: Case):
    model, inputs = case.model(long=True), case.inputs(1, case.long, case.paddings[-1])
    parameters = max(p.numel() for p in model.parameters())
    assert parameters < case.long * case.long // 8
    adapt(model)
    with LargestTensor() as largest:
        gradients(case, model, inputs)
    assert largest.entries < case.long * case.long // 8, largest.by


@pytest.mark.parametrize(
    "case", [case for case in FIRST if not case.local], ids=lambda case: case.name
)
@pytest.mark.costly(6)
def test_the_original_has_a_tensor_with_an_entry_for_each_pair(case: Case):
    with LargestTensor() as largest:
        gradients(case, case.model(long=True), case.inputs(1, case.long, case.paddings[-1]))
    assert largest.entries >= case.long * case.long // 8


@first
def test_copies_and_pickles_are_adapted_models(case: Case):
    model, inputs = case.model(), case.inputs(1, case.lengths[0], case.paddings[-1])
    adapt(model)
    expected = getattr(model(**inputs), case.output)
    others = [copy.deepcopy(model)]
    if "pickle" not in case.without:
        others.append(pickle.loads(pickle.dumps(model)))
    for other in others:
        assert sum(isinstance(m, Adapted) for m in other.modules()) == sum(
            isinstance(m, Adapted) for m in model.modules()
        )
        assert torch.equal(getattr(other(**inputs), case.output), expected)
        restore(other)
        assert not any(isinstance(m, Adapted) for m in other.modules())
    assert any(isinstance(m, Adapted) for m in model.modules())


@first
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("autocast", [False, True], ids=["whole", "autocast"])
@pytest.mark.costly(50)
def test_half_precision_errs_at_most_twice_as_much(case: Case, dtype: torch.dtype, autocast: bool):
    way = "autocast" if autocast else "half"
    if way in case.without or (dtype == torch.float16 and "fp16" in case.without):
        pytest.skip("the original raises or gives NaN")
    inputs = case.inputs(2, case.lengths[0], case.paddings[-1])
    exact, _ = case.call(case.model(torch.float64), case.with_dtype(inputs, torch.float64))

    def error(model: nn.Module) -> float:
        if autocast:
            with torch.autocast("cpu", dtype):
                output, _ = case.call(model, inputs)
        else:
            output, _ = case.call(model.to(dtype), case.with_dtype(inputs, dtype))
        return float((output.detach().double() - exact.detach()).square().mean().sqrt())

    theirs = error(case.model())
    model = case.model()
    adapt(model)
    # And one rounding of the output.
    rounding = torch.finfo(dtype).eps / 2 * float(exact.detach().square().mean().sqrt())
    assert error(model) <= 2 * theirs + rounding
