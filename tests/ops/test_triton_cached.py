"""What calls share: small tensors of integers, and kernels that a launch before has found."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from relpos import backends

pytestmark = pytest.mark.skipif(bool(backends()["triton"]), reason=str(backends()["triton"]))


def test_what_is_made_of_the_same_arguments_is_made_once():
    from relpos.ops.triton.grid_indices import grid_indices

    cpu = torch.device("cpu")
    first = grid_indices((2, 3), (2, 3), 1, cpu)
    assert grid_indices((2, 3), (2, 3), 1, cpu) is first
    assert grid_indices((3, 3), (2, 3), 1, cpu) is not first
    assert first.key_coordinates.tolist() == [[-1, 0, 0, 0, 1, 1, 1], [-1, 2, 3, 4, 2, 3, 4]]


@pytest.fixture
def on_a_gpu(monkeypatch) -> list[str]:
    """Tensors of the CPU stand for those of a GPU; what is done to them."""
    done: list[str] = []
    to = torch.Tensor.to
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda x: done.append("pinned") or x.clone())
    monkeypatch.setattr(
        torch.Tensor, "to", lambda x, *given, **options: done.append("copied") or x.clone()
        if options.get("non_blocking") else to(x, *given, **options),
    )  # fmt: skip
    return done


@pytest.mark.no_typecheck
def test_each_call_has_a_copy_of_its_own_on_a_gpu(on_a_gpu, monkeypatch):
    from relpos.ops.triton.cached_tensors import cached_tensors

    made, cuda = [], torch.device("cuda")
    make = cached_tensors(lambda number, device: made.append(device.type) or torch.tensor([number]))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    first, second = make(3, cuda), make(3, cuda)
    assert first is not second
    assert first.tolist() == second.tolist() == [3]
    assert made == ["cpu"]
    assert on_a_gpu == ["pinned", "copied", "copied"]


@pytest.mark.no_typecheck
def test_nothing_is_kept_of_what_a_graph_captures(on_a_gpu, monkeypatch):
    from relpos.ops.triton.cached_tensors import cached_tensors

    made, cuda = [], torch.device("cuda")
    make = cached_tensors(lambda device: made.append(device.type) or torch.zeros(1))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    make(cuda), make(cuda)
    assert made == ["cuda", "cuda"]
    assert on_a_gpu == []


@pytest.mark.no_typecheck
def test_a_graph_can_capture_the_dropout_of_a_part():
    from relpos.ops.inputs import DropoutOrigin
    from relpos.ops.triton.prepared_call import _origin_numbers

    called = set()

    class Called(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            called.add(function.overloadpacket)
            return function(*args, **kwargs or {})

    origin = DropoutOrigin(8, 4, 4096, 1024, 2048)
    with Called():
        numbers = _origin_numbers.__wrapped__(origin, torch.device("cpu"))
    assert numbers.tolist() == [*origin]
    # Not lift_fresh: torch.tensor([...], device="cuda") copies from memory that no graph takes.
    assert called == {torch.ops.aten.full, torch.ops.aten.cat}


class Kernel:
    """Stands for one of Triton's, and for what it has compiled; notes what it is launched with."""

    __name__ = "some_kernel"
    arg_names = ("x", "count", "SPEC", "SPLIT")

    def __init__(self) -> None:
        self.searched: list = []
        self.found: list = []

    def __getitem__(self, grid):
        if len(grid) == 3:
            return lambda *arguments: self.found.append((grid, arguments))
        return lambda *arguments, **options: self.searched.append((arguments, options)) or self


@pytest.mark.no_typecheck
def test_a_kernel_is_searched_for_once_and_then_given_all_arguments_in_order():
    from relpos.ops.triton.launch import run_programs
    from relpos.ops.triton.tuning import TileShape

    kernel, shape = Kernel(), TileShape(64, 64, 4, 2, 168)
    for number in range(3):
        run_programs(kernel, 7, "x", number, shape=shape, known=1, SPLIT=False, SPEC="spec")
    options = {
        "num_warps": 4, "num_stages": 2, "enable_fp_fusion": True, "maxnreg": 168,
        "SPLIT": False, "SPEC": "spec",
    }  # fmt: skip
    assert kernel.searched == [(("x", 0), options)]
    assert kernel.found == [((7, 1, 1), ("x", number, "spec", False)) for number in (1, 2)]
    run_programs(kernel, 7, "x", 3, shape=shape, SPLIT=False, SPEC="spec")
    assert len(kernel.searched) == 2
    run_programs(kernel, 7, "x", 3, shape=shape, known=2, SPLIT=False, SPEC="spec")
    run_programs(kernel, 7, "x", 3, shape=shape, known=1, SPLIT=True, SPEC="spec")
    run_programs(kernel, 7, "x", 3, shape=shape._replace(stages=1), known=1, SPLIT=True, SPEC="s")
    assert len(kernel.searched) == 5
