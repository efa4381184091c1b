"""Which backend "auto" takes: the fastest of those that support the inputs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from relpos import Terms, attention
from relpos.ops import native, triton
from relpos.ops.dispatch import choose, choose_for_parts
from relpos.ops.inputs import prepare
from tests.ops.backends import native_alone


def chosen(q: Tensor, k: Tensor) -> str:
    """Its name."""
    inputs = prepare(
        "attention", q, k, k, Terms(), None, None, causal=False, dropout=0.0, scale=None,
        query_start=None, return_lse=False,
    )  # fmt: skip
    return choose("auto", inputs).__name__.rpartition(".")[2]  # type: ignore[attr-defined]


@native_alone
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("wants_gradients", [False, True])
def test_native_is_taken_wherever_it_supports_the_inputs(
    backend: str, dtype: torch.dtype, wants_gradients: bool
):
    for queries, keys in ((1, 9), (16, 16), (300, 400)):
        q = torch.randn(1, 2, queries, 8, dtype=dtype, requires_grad=wants_gradients)
        k = torch.randn(1, 2, keys, 8, dtype=dtype)
        assert chosen(q, k) == backend


@pytest.mark.parametrize(
    ("queries", "keys", "expected"),
    [
        (2, 1024, "reference"),
        (2, 1025, "tiled"),
        (16, 16, "reference"),
        (300, 300, "tiled"),
        (1, 1, "tiled"),
        (1, 300, "tiled"),
    ],
)
def test_without_native_few_scores_of_several_queries_go_to_the_reference(
    queries: int, keys: int, expected: str
):
    q, k = (torch.randn(1, 2, length, 8, dtype=torch.float64) for length in (queries, keys))
    assert chosen(q, k) == expected
    # The scores of all heads and sequences count.
    assert chosen(q.repeat(2, 2, 1, 1), k.repeat(2, 2, 1, 1)) == (
        "tiled" if queries * keys > 1024 else expected
    )


@pytest.mark.parametrize("length", [1, 16, 300])
def test_without_native_the_choice_is_the_same_whether_or_not_gradients_are_wanted(length: int):
    """Checkpointing calls twice, the first time without: it is to get the same dropout."""
    q = torch.randn(1, 2, length, 8, dtype=torch.float64)
    without = chosen(q, q)
    with torch.no_grad():
        assert chosen(q.requires_grad_(), q) == without
    assert chosen(q, q) == without


@pytest.mark.no_typecheck
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_traced_call_holds_for_other_lengths_too():
    """The choice of the first length would be that of all, or a reason to compile again."""

    class Plain(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return attention(x, x, x)

    def tokens(length: int) -> Tensor:
        return torch.randn(1, 2, length, 8, dtype=torch.float64)

    length = torch.export.Dim("length", min=2, max=999)
    program = torch.export.export(Plain(), (tokens(5),), dynamic_shapes={"x": {2: length}})
    for count in (3, 300):
        x = tokens(count)
        torch.testing.assert_close(program.module()(x), attention(x, x, x, backend="reference"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("device", "capability", "width", "takes_float32"),
    [
        ("cuda", (9, 0), 8, True), ("cuda", (10, 0), 128, True), ("cuda", (9, 0), 136, False),
        ("cuda", (8, 0), 8, False), ("cuda", (12, 0), 8, False), ("cpu", (9, 0), 8, False),
    ],
)  # fmt: skip
def test_triton_is_taken_on_a_gpu_where_it_was_measured(
    device: str, capability: tuple[int, int], width: int, takes_float32: bool,
    dtype: torch.dtype, monkeypatch,
):  # fmt: skip
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(triton, "unavailable", lambda: None)
    monkeypatch.setattr(triton, "unsupported", lambda inputs: None)
    monkeypatch.setattr(native, "unavailable", lambda: "there is a GPU")
    # Nothing is computed, so that its tensors need no memory.
    with FakeTensorMode(allow_non_fake_inputs=True):
        q = torch.empty(1, 2, 256, width, dtype=dtype, device=device)
        inputs = prepare("attention", q, q, q, Terms())
        takes = takes_float32 if dtype == torch.float32 else device == "cuda"
        wanted = "triton" if takes else "tiled"
        assert choose("auto", inputs).__name__.rpartition(".")[2] == wanted
        assert choose_for_parts("auto", inputs).__name__.rpartition(".")[2] == wanted


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_where_no_kernel_can_run_none_is_asked_about_the_gpu(dtype: torch.dtype, monkeypatch):
    """As for tensors of a GPU that is not there, of which shapes alone are wanted."""
    monkeypatch.setattr(triton, "unavailable", lambda: "there is no GPU")
    with FakeTensorMode(allow_non_fake_inputs=True):
        q = torch.empty(1, 2, 256, 8, dtype=dtype, device="cuda")
        assert attention(q, q, q, Terms()).shape == q.shape
