"""Adapted models as programs of `torch.export` and ONNX, beside what the original gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.exc import UserError
from torch.export import Dim

from relpos.adapters import adapt

from .models import CASES
from .models.case import Case

pytestmark = [
    pytest.mark.slow,
    pytest.mark.no_typecheck,
    # The exporters' own and transformers', from the code that is traced.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]

# Whose originals too are programs for the sizes of the example, or for some beside it.
FIXED_SIZES = {
    "DeepseekOcr2SamVisionConfig eager", "DeepseekOcr2SamVisionConfig sdpa",
    "UnlimitedOcrSamVisionConfig eager", "UnlimitedOcrSamVisionConfig sdpa", "donut swin",
    "gemma4 audio", "gemma4 audio with keys ahead", "granite_speech5", "maskformer swin", "sew_d",
    "sew_d without buckets", "swin", "swinv2", "vitdet",
}  # fmt: skip
# Whose originals ONNX or onnxruntime does not take either.
NOT_IN_ONNX = {
    "falcon", "falcon with groups", "falcon with heads of their own", "gemma4 audio",
    "gemma4 audio with keys ahead", "inkling", "inkling2", "inkling2_loop", "xlnet",
}  # fmt: skip


def cases(chosen: Callable[[str], bool]) -> pytest.MarkDecorator:
    found = [case for case in CASES if case.pretrained and chosen(case.name)]
    return pytest.mark.parametrize("case", found, ids=lambda case: case.name)


class Called(nn.Module):
    """A model, given its tensors in the order of an example, which gives one."""

    def __init__(self, model: nn.Module, case: Case, example: dict[str, Any]) -> None:
        super().__init__()
        self.model, self.output = model, case.output
        self.names = list(tensors(example))
        self.others = {name: x for name, x in example.items() if name not in self.names}

    def forward(self, *given: Tensor) -> Tensor:
        named = dict(zip(self.names, given, strict=True))
        return getattr(self.model(**named, **self.others), self.output)


def tensors(given: dict[str, Any]) -> dict[str, Tensor]:
    return {name: x for name, x in given.items() if isinstance(x, Tensor)}


def inputs(case: Case, batch: int, length: int) -> dict[str, Any]:
    given = case.inputs(batch, length, case.paddings[-1])
    given.pop("labels", None)
    return given | case.traced


def assert_is_the_original(case: Case, output: Tensor, given: dict[str, Any]) -> None:
    with torch.no_grad():
        expected, _ = case.call(case.model(), given)
    got = case.of_tokens(output, given)
    assert float((got - expected).abs().max()) <= 1e-4 * float(expected.abs().max())


def exported(case: Case, model: nn.Module) -> tuple[nn.Module, list[dict[str, Any]]]:
    """A program whose axes are as dynamic as two examples differ, and these."""
    example, other = inputs(case, 2, case.lengths[0]), inputs(case, 3, case.lengths[-1])
    dynamic = tuple(
        {axis: Dim.DYNAMIC for axis in range(x.ndim) if x.shape[axis] != y.shape[axis]}
        for x, y in zip(tensors(example).values(), tensors(other).values(), strict=True)
    )
    called, given = Called(model, case, example), tuple(tensors(example).values())
    with torch.no_grad():
        program = torch.export.export(called, given, dynamic_shapes={"given": dynamic})
    return program.module(), [example, other]


@cases(lambda name: name not in FIXED_SIZES)
@pytest.mark.costly(3)
def test_a_program_serves_other_batches_and_lengths(case: Case):
    model = case.model()
    adapt(model)
    program, examples = exported(case, model)
    for given in examples:
        assert_is_the_original(case, program(*tensors(given).values()), given)


@cases(lambda name: name in FIXED_SIZES)
@pytest.mark.costly(1)
def test_the_originals_of_the_others_serve_no_others_either(case: Case):
    def serve() -> None:
        program, (_, other) = exported(case, case.model())
        program(*tensors(other).values())

    with pytest.raises((UserError, AssertionError), match=r"Constraints violated|Guard failed"):
        serve()


@cases(lambda name: name not in NOT_IN_ONNX)
@pytest.mark.costly(1, of="onnxruntime")
def test_onnxruntime_computes_what_the_original_does(case: Case, tmp_path: Path):
    model, path = case.model(), tmp_path / "model.onnx"
    adapt(model)
    given = inputs(case, 2, case.lengths[0])
    called, fed = Called(model, case, given), tuple(tensors(given).values())
    with torch.no_grad():
        torch.onnx.export(called, fed, path, dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(path)
    names = [x.name for x in session.get_inputs()]
    (output,) = session.run(None, {name: x.numpy() for name, x in zip(names, fed, strict=True)})
    assert_is_the_original(case, torch.from_numpy(output), given)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("length", [15, 33])
@pytest.mark.parametrize("name", ["deberta", "deberta_v3"])
@pytest.mark.costly(2)
def test_a_program_serves_lengths_on_either_side_of_the_furthest_distance(
    name: str, length: int, strict: bool
):
    """Of 20 tokens; up to it the tables have as many rows as the sequence needs."""
    (case,) = (case for case in CASES if case.name == name)
    model, given = case.model(), inputs(case, 2, length)
    adapt(model)
    called, example = Called(model, case, given), tuple(tensors(given).values())
    dynamic = ({1: Dim("n", min=2, max=64)},) * len(example)
    with torch.no_grad():
        program = torch.export.export(
            called, example, dynamic_shapes={"given": dynamic}, strict=strict
        ).module()
    for other in (3, 15, 20, 41):
        given = inputs(case, 2, other)
        assert_is_the_original(case, program(*tensors(given).values()), given)
