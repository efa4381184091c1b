"""ONNX: onnxruntime computes the same numbers, at other lengths than the exported one."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnxruntime
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from tests.ecosystem.schemes import LENGTHS, SUBJECTS, Subject, inputs, made
from tests.ops.backends import DTYPES, every_blockwise

pytestmark = [
    pytest.mark.no_typecheck,
    # The exporter's own, from the code that it traces and from its tables of operators.
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.:FutureWarning"),
]


def exported(module: nn.Module, given: tuple, subject: Subject, path: Path) -> onnx.ModelProto:
    """What `torch.onnx.export` makes of a module, with symbols for its lengths."""
    dims = subject.dynamic
    shapes = None if dims is None else tuple(
        dict.fromkeys(axes, torch.export.Dim.DYNAMIC) for axes in dims
    )  # fmt: skip
    torch.onnx.export(module, given, path, dynamo=True, dynamic_shapes=shapes, verbose=False)
    return onnx.load(path)


@pytest.mark.parametrize("name", SUBJECTS)
@pytest.mark.costly(1, of="onnxruntime")
def test_onnxruntime_computes_the_same_numbers_at_any_length(name: str, tmp_path: Path):
    module, path = made(name), tmp_path / "model.onnx"
    model = exported(module, inputs(name, LENGTHS[0]), SUBJECTS[name], path)
    # ONNX's own operators only: neither the op that torch sees nor a strided view.
    assert {node.domain for node in model.graph.node} == {""}
    session = onnxruntime.InferenceSession(path)
    for length in LENGTHS:
        given = inputs(name, length)
        fed = {x.name: y.numpy() for x, y in zip(session.get_inputs(), given, strict=True)}
        (output,) = session.run(None, fed)
        assert_close(torch.from_numpy(output), module(*given))


@pytest.mark.filterwarnings("ignore:.*legacy TorchScript-based ONNX export.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_the_old_exporter_refuses(tmp_path: Path):
    with pytest.raises(torch.onnx.errors.UnsupportedOperatorError, match="aten::mT"):
        torch.onnx.export(made("Shaw"), inputs("Shaw", 5), tmp_path / "x.onnx", dynamo=False)


@every_blockwise
def test_a_program_that_was_exported_before_is_refused_by_the_ops_name(backend: str):
    dtype = DTYPES[backend]
    program = torch.export.export(made("Shaw", dtype), inputs("Shaw", 5, dtype))
    with pytest.raises(torch.onnx.OnnxExporterError, match=rf"relpos.{backend}_forward"):
        torch.onnx.export(program, dynamo=True, verbose=False)
