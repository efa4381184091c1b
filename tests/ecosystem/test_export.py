"""`torch.export` makes one program of every scheme and layer, which serves all lengths."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from relpos import GridTerms, OffsetTable, Terms, attention
from tests.ecosystem.schemes import IN_FLOAT64, LENGTHS, SUBJECTS, inputs, made

pytestmark = [
    pytest.mark.no_typecheck,
    # torch's own, as it traces its own code.
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
]


def exported(
    name: str, dtype: torch.dtype = torch.float32, *, strict: bool = False
) -> torch.export.ExportedProgram:
    # For a map the size that its scheme was made for, at which its rows need no resizing.
    given = inputs(name, LENGTHS[0], dtype)
    dims = SUBJECTS[name].dynamic
    shapes = None if dims is None else tuple(
        dict.fromkeys(axes, torch.export.Dim.DYNAMIC) for axes in dims
    )  # fmt: skip
    return torch.export.export(made(name, dtype), given, dynamic_shapes=shapes, strict=strict)


def assert_serves_all_lengths(
    program: torch.export.ExportedProgram, name: str, dtype: torch.dtype = torch.float32
) -> None:
    module, run = made(name, dtype), program.module()
    for length in LENGTHS:
        given = inputs(name, length, dtype)
        assert_close(run(*given), module(*given))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, torch.float32) for name in SUBJECTS] + [(n, torch.float64) for n in IN_FLOAT64],
)
@pytest.mark.costly(6)
def test_an_exported_program_serves_all_lengths(name: str, dtype: torch.dtype):
    program = exported(name, dtype)
    assert_serves_all_lengths(program, name, dtype)
    assert not any("as_strided" in str(node.target) for node in program.graph.nodes)


# Global tokens have a least length, and of a stride torch cannot prove that it stays on the map.
BOUNDED = ("global tokens", "Grid, pooled queries", "BottleneckBlock")


@pytest.mark.parametrize(
    "name", [name for name, subject in SUBJECTS.items() if subject.dynamic and name not in BOUNDED]
)
@pytest.mark.costly(3)
def test_dimensions_with_names_need_no_bounds(name: str):
    """A condition on a size, which `Dim.DYNAMIC` would take quietly, is an error here."""
    dims = SUBJECTS[name].dynamic
    assert dims is not None
    shapes = tuple(
        {axis: torch.export.Dim(f"size_{number}_{axis}") for axis in axes}
        for number, axes in enumerate(dims)
    )
    given = inputs(name, LENGTHS[0])
    torch.export.export(made(name, torch.float32), given, dynamic_shapes=shapes)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.:FutureWarning")
@pytest.mark.parametrize("name", ["EncoderBlock", "a window", "Grid"])
@pytest.mark.costly(1)
def test_a_package_compiled_ahead_of_time_computes_the_same(name: str, tmp_path: Path):
    """By AOTInductor, which hands operators None for an empty list."""
    path = torch._inductor.aoti_compile_and_package(
        exported(name), package_path=str(tmp_path / "module.pt2")
    )
    run, module = torch._inductor.aoti_load_package(path), made(name)
    for length in LENGTHS[: 1 if name == "Grid" else None]:
        given = inputs(name, length)
        assert_close(run(*given), module(*given))


@pytest.mark.parametrize("name", ["Shaw", "TransformerXL", "Alibi, causal", "GatedBias", "chunks"])
@pytest.mark.costly(1)
def test_strict_export_serves_all_lengths_too(name: str):
    assert_serves_all_lengths(exported(name, strict=True), name)


def test_a_saved_program_computes_and_learns_as_the_module_does():
    file = io.BytesIO()
    torch.export.save(exported("Shaw"), file)
    file.seek(0)
    run, module = torch.export.load(file).module(), made("Shaw")
    given = inputs("Shaw", LENGTHS[0])
    gradients = []
    for some in (run, module):
        some(*given).square().sum().backward()
        gradients.append({name: x.grad for name, x in some.named_parameters()})
    assert_close(*gradients)


class PooledMap(nn.Module):
    """Queries of a map, whose keys are every second of them along both axes."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.randn(2, 1, 79, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pooled = x[:, :, ::2, ::2]
        axes = tuple(Terms(keys=OffsetTable(rows, -39)) for rows in self.rows)
        terms = GridTerms(tuple(pooled.shape[2:4]), axes, query_shape=tuple(x.shape[2:4]))
        keys = pooled.flatten(2, 3)
        return attention(x.flatten(2, 3), keys, keys, terms)


@pytest.mark.parametrize("axes", [(2, 3), (2,), (3,)], ids=["both", "height", "width"])
def test_a_program_of_pooled_queries_serves_sizes_that_divide_and_others(axes: tuple[int, ...]):
    model = PooledMap()
    sizes = dict.fromkeys(axes, torch.export.Dim.DYNAMIC)
    example = torch.randn(1, 2, 12, 8, 8)
    program = torch.export.export(model, (example,), dynamic_shapes=(sizes,)).module()
    for height, width in [(12, 8), (16, 20), (15, 10), (7, 13)]:
        shape = height if 2 in axes else 12, width if 3 in axes else 8
        x = torch.randn(1, 2, *shape, 8)
        assert_close(program(x), model(x))
