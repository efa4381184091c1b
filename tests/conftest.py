"""Settings of the whole suite."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from importlib import import_module
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    # Before relpos or triton is imported: without a GPU the kernels run in Triton's interpreter.
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--cases N`, for runs that look into every test without trying all that it is tried on."""
    parser.addoption(
        "--cases", type=int, metavar="N",
        help="run each test with at most N of its parameters, for each backend, spread evenly",
    )  # fmt: skip


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what reads all chorales; leave out what a run does not take."""
    for item in items:
        if "corpus" in getattr(item, "fixturenames", ()):
            # It waits for 365 chorales to be read, all in the same way.
            item.add_marker("slow")
            item.add_marker("no_typecheck")
    left_out = set()
    if config.getoption("--jaxtyping-packages", default=None):
        # What tests our own errors or `torch.compile`, repeats what other tests have typed, or runs
        # in processes of its own, which nobody types.
        left_out = {item for item in items if item.get_closest_marker("no_typecheck")}
    if count := config.getoption("--cases"):
        left_out |= set(items) - set(_spread(items, count))
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]
    # The longest first, so that at the end no process works on one alone.
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def _spread(items: list[pytest.Item], count: int) -> Iterator[pytest.Item]:
    """At most `count` items of each test function and backend: the first, the last and between."""
    together: dict[tuple[Any, ...], list[pytest.Item]] = {}
    for item in items:
        backend = getattr(item, "callspec", None) and item.callspec.params.get("backend")
        name = getattr(item, "originalname", item.name)
        together.setdefault((item.path, item.parent, name, backend), []).append(item)
    for alike in together.values():
        chosen = min(count, len(alike))
        yield from (alike[n * (len(alike) - 1) // max(chosen - 1, 1)] for n in range(chosen))


@pytest.fixture(autouse=True)
def _same_draws_each_time() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def _triton_by_way_of_the_gpu():
    """Let the triton backend take the suite's tensors, which are the CPU's, if there is a GPU."""
    if not torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1":
        yield
        return
    triton = import_module("relpos.ops.triton")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton, "unsupported", _moving(triton.unsupported, "cuda"))
        for name in ("attention", "part", "part_gradients"):
            there = _moving(getattr(triton, name), "cuda")
            patch.setattr(triton, name, lambda *given, run=there: _moved(run(*given), "cpu"))
        yield


def _moving(function: Callable[..., Any], device: str) -> Callable[..., Any]:
    """`function` with all tensors in its arguments moved to a device."""
    return lambda *given: function(*(_moved(x, device) for x in given))


def _moved(x: Any, device: str) -> Any:
    """`x` with all tensors in it on that device: in tuples, dictionaries, terms and dataclasses."""
    if isinstance(x, torch.Tensor):
        return x.to(device)
    if hasattr(x, "map"):  # terms
        return x.map(lambda tensor: tensor.to(device))
    if is_dataclass(x) and not isinstance(x, type):
        return replace(x, **{part.name: _moved(getattr(x, part.name), device) for part in fields(x)})
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return type(x)(*(_moved(part, device) for part in x))
    if isinstance(x, tuple | list):
        return type(x)(_moved(part, device) for part in x)
    if isinstance(x, dict):
        return {name: _moved(part, device) for name, part in x.items()}
    return x
