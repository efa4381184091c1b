"""Passes of the triton backend that are recorded: the same bits, whatever a pass does."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from relpos import GridTerms, OffsetTable, Terms, attention, backends
from relpos.ops.known_calls import KNOWN
from scripts.gpu_calls import CUDA, calls
from scripts.gpu_checks import same_bits

pytestmark = [
    pytest.mark.skipif(bool(backends()["triton"]), reason=str(backends()["triton"])),
    pytest.mark.no_typecheck,
]
pytest.importorskip("triton")

recorded: Any = importlib.import_module("relpos.ops.triton.recorded")

DTYPE = torch.bfloat16 if CUDA else torch.float32
CALLS = calls("triton", 3, 8, DTYPE)


@pytest.fixture(autouse=True)
def early(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second call alike is recorded."""
    monkeypatch.setattr(recorded, "CALLS", 1)


def on_a_grid_of_one_axis(q: Tensor, rows: Tensor) -> Tensor:
    """Which is a line of tokens."""
    terms = GridTerms((q.shape[2],), (Terms(keys=OffsetTable(rows, -2)),))
    return attention(q, 2 * q, -q, terms, backend="triton")


def with_a_wider_mask(q: Tensor, rows: Tensor) -> Tensor:
    mask = rows.double().sum() * torch.eye(q.shape[2], dtype=torch.float64, device=q.device)
    return attention(q, 2 * q, -q, mask=mask, backend="triton")


def under_autocast(q: Tensor, rows: Tensor) -> Tensor:
    with torch.autocast(q.device.type, torch.float16):
        return attention(q, q, q, Terms(keys=OffsetTable(rows, -2)), backend="triton")


@pytest.mark.usefixtures("quick_interpreter")
@pytest.mark.parametrize("call", [on_a_grid_of_one_axis, with_a_wider_mask, under_autocast])
def test_calls_whose_tensors_are_made_anew(
    call: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    of_calls: Any = importlib.import_module("relpos.ops.triton.calls")
    prepared: list[None] = []
    prepare = of_calls._prepared
    monkeypatch.setattr(of_calls, "_prepared", lambda x: prepared.append(None) or prepare(x))
    device = "cuda" if CUDA else "cpu"
    drawn = [
        (torch.randn(1, 2, 6, 8, device=device), torch.randn(1, 5, 8, device=device))
        for _ in range(6)
    ]

    found = [call(*each) for each in drawn]

    assert len(prepared) == 3  # the first, one that is counted, and one that is recorded
    with recorded.without_records():
        for each, output in zip(drawn, found, strict=True):
            KNOWN.clear()
            assert same_bits([call(*each)], [output])


@pytest.mark.usefixtures("quick_interpreter")
@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.costly(3)
def test_a_recorded_call_has_the_same_bits(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    of_calls: Any = importlib.import_module("relpos.ops.triton.calls")
    prepared: list[None] = []
    prepare = of_calls._prepared
    monkeypatch.setattr(of_calls, "_prepared", lambda x: prepared.append(None) or prepare(x))
    alike = [
        replace(CALLS[kind], leaves=tuple(
            (x.detach() * (1 + number / 7)).requires_grad_() for x in CALLS[kind].leaves
        ))
        for number in range(3)
    ]  # fmt: skip
    with recorded.without_records():
        expected = [call.both() for call in alike]
    prepared.clear()

    found = [call.both() for call in alike]

    assert all(same_bits(one, other) for one, other in zip(found, expected, strict=True))
    assert len(prepared) == 4  # forward and backward twice, then never again


@pytest.mark.usefixtures("quick_interpreter")
def test_logits_by_axis_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 16 bits they are made by passes of their own."""
    of_logits: Any = importlib.import_module("relpos.ops.triton.axis_logits")
    made: list[str] = []
    for name in ("_logits", "_gradients"):
        make = getattr(of_logits, name)
        monkeypatch.setattr(
            of_logits, name, lambda *x, make=make, name=name: made.append(name) or make(*x)
        )
    call = calls("triton", 3, 8, torch.float16)["grid"]

    first, *others = (call.both() for _ in range(4))

    assert all(same_bits(first, other) for other in others)
    assert made == ["_logits", "_gradients"] * 2


def outcomes(f: Callable[..., Any], *tensors: Tensor, alike: int = 4) -> tuple[list[Any], int]:
    """What a pass gives in some calls, each with numbers of its own, and how often it was made."""
    passes, made = recorded.RecordedPasses(), []

    def run(*given: Tensor) -> Any:
        return passes.run("f", given, lambda: made.append(None) or f(*given))

    return [run(*(x + number for x in tensors)) for number in range(alike)], len(made)


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


def written_into(x: Tensor, y: Tensor) -> Pair:
    z = x.new_empty(3, x.shape[1])
    torch.sum(x, 0, out=z[0])
    z[1] = y[0]
    z[2].copy_(y[1])
    z += 1
    z.mul_(2)
    return Pair(z, z.mT.contiguous().contiguous())


def written_unsaid(x: Tensor, y: Tensor) -> Tensor:
    """By functions whose names do not say that they write."""
    z, u = x * 2, y - 1
    torch.nn.functional.relu(z, inplace=True)
    torch._foreach_add_([z, u], 1)
    return z + u


def of_several_results(x: Tensor, y: Tensor) -> dict[str, Tensor | None]:
    low, high = torch.aminmax(x, dim=0)
    first, *_, last = y.unbind()
    return {"low": low - first, "high": high + last, "none": None}


def made_on_a_device(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x + torch.arange(x.shape[1], device=x.device), torch.cat([x, y])


def of_an_argument(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x, y.contiguous()


def asking_how_it_lies(x: Tensor, y: Tensor) -> Tensor:
    """As `torch.cuda.device_of` does of tensors on a GPU."""
    known = (x.is_cuda, x.get_device(), len(y), y.numel(), y.stride(), y.is_floating_point())
    return x * len(known) + y.size(1) * y.element_size()


PASSES = [
    written_into, written_unsaid, of_several_results, made_on_a_device, of_an_argument,
    asking_how_it_lies,
]  # fmt: skip


@pytest.mark.parametrize("f", PASSES)
def test_a_record_follows_its_arguments(f: Callable[..., Any]) -> None:
    x, y = torch.randn(2, 4), torch.randn(2, 4)

    found, made = outcomes(f, x, y)

    assert made == 2
    for number, result in enumerate(found):
        torch.testing.assert_close(result, f(x + number, y + number), rtol=0, atol=0)
        assert type(result) is type(f(x, y))


ELSEWHERE = torch.ones(4)


@pytest.mark.parametrize(
    "f",
    [
        pytest.param(lambda x, _: x * x.sum().item(), id="item"),
        pytest.param(lambda x, _: x if x.sum() > 2 else -x, id="truth"),
        pytest.param(lambda x, _: x[: int(x[0, 0] > 1) + 1], id="int"),
        pytest.param(lambda x, _: x + ELSEWHERE, id="elsewhere"),
        pytest.param(lambda x, _: x + torch.arange(4), id="default device"),
        pytest.param(lambda x, _: x + len(x.tolist()), id="list"),
        pytest.param(lambda x, y: x * len(y[y > 1]), id="mask"),
        pytest.param(lambda x, y: x * len((y > 1).nonzero()), id="nonzero"),
        pytest.param(lambda x, y: x[:, : (y > 9).sum() + 2], id="tensor in a slice"),
        pytest.param(lambda x, _: x * (1 + x.requires_grad), id="requires_grad"),
    ],
)
def test_what_a_record_would_miss_is_not_recorded(f: Callable[..., Tensor]) -> None:
    x, y = torch.randn(2, 4), torch.randn(2, 4)

    found, made = outcomes(f, x, y)

    assert made == 4
    assert all(torch.equal(one, f(x + n, y + n)) for n, one in enumerate(found))


def test_what_is_the_same_in_all_calls_is_recorded() -> None:
    found, made = outcomes(
        lambda x, y: x + recorded.same_in_all_calls(ELSEWHERE) + y, torch.ones(4), torch.ones(4)
    )

    assert made == 2
    assert found[3].tolist() == [9.0] * 4


def test_one_tensor_in_two_places_is_not_recorded() -> None:
    passes, x, y = recorded.RecordedPasses(), torch.ones(4), torch.zeros(4)

    def run(a: Tensor, b: Tensor) -> Tensor:
        return passes.run("f", (a, b), lambda: a - b)

    assert [run(x, x).sum().item() for _ in range(3)] == [0, 0, 0]
    assert [run(x, y).sum().item() for _ in range(3)] == [4, 4, 4]
    assert run(y, y).sum().item() == 0


def test_a_tensor_is_forgotten_after_its_last_use() -> None:
    alive: list[int] = []

    def kernel(_: Tensor) -> None:
        alive.append(sum(type(x) is Tensor and x.numel() == 77 for x in gc.get_objects()))

    def f(x: Tensor) -> Tensor:
        large = x.new_zeros(77)
        small = large[:1].clone()
        recorder.launched(kernel, (small,))
        return small

    x = torch.ones(4)
    with (recorder := recorded.Recorder((x,))):
        result = f(x)
    function = recorder.function(result)

    assert function is not None
    gc.collect()
    assert function(x).tolist() == [0]
    assert alive == [0]


def test_records_are_made_for_the_time_that_records_have_saved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As while text is generated: calls that are alike for one step."""
    monkeypatch.setattr(recorded, "ADVANCE", 2)
    passes, x, made = recorded.RecordedPasses(), torch.ones(3), []

    def run(key: int) -> None:
        passes.run(key, (x,), lambda: made.append(key) or x + key)

    for key in (0, 0, 1, 1, 2, 2):
        run(key)
    made.clear()
    for key in (2, 0, 1, 2, 2):
        run(key)

    assert made == [2, 2]  # the last one has what the records of 0 and 1 have saved by then


def test_what_is_of_least_use_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "_MOST", 4)
    passes, x, made = recorded.RecordedPasses(), torch.ones(3), []

    def run(key: int) -> None:
        passes.run(key, (x,), lambda: made.append(key) or x + key)

    for key in (0, 0, 0, 1, 1, 2, 2, 2, 3, 3, 4, 4):
        run(key)
    made.clear()
    for key in (0, 2, 4, 1, 3):
        run(key)

    assert made == [1, 3]


def test_other_layouts_have_a_record_of_their_own() -> None:
    passes, made = recorded.RecordedPasses(), []

    def run(x: Tensor) -> Tensor:
        return passes.run("f", (x,), lambda: made.append(None) or x.new_full(x.shape, 2) * x)

    x = torch.ones(4, 3)
    for like in (x, x.mT, x.double(), x[1:], torch.ones(13)[1:].view(4, 3)):
        made.clear()
        for _ in range(4):
            torch.testing.assert_close(run(like), 2 * like, rtol=0, atol=0)
        assert len(made) == 2
