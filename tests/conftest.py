"""Settings of the whole suite."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

# Before torch reads them. It keeps the graphs that it compiles, and does not see that what an
# operator tells a trace has changed: it would take those of an earlier version of this library.
os.environ |= {"TORCHINDUCTOR_FX_GRAPH_CACHE": "0", "TORCHINDUCTOR_AUTOGRAD_CACHE": "0"}
if not torch.cuda.is_available():
    # Before relpos or triton is imported: without a GPU the kernels run in Triton's interpreter.
    os.environ.setdefault("TRITON_INTERPRET", "1")


_JOBS = Path(__file__).parent / "tasks"


def pytest_addoption(parser: pytest.Parser) -> None:
    """How much of what each test is tried on a run takes."""
    parser.addoption(
        "--cases", type=int, metavar="N",
        help="run each test with at most N of its parameters, for each backend, spread evenly",
    )  # fmt: skip
    parser.addoption(
        "--leave-cases", type=int, metavar="N",
        help="leave out what a run with --cases N and --jaxtyping-packages takes, for that run",
    )  # fmt: skip
    parser.addoption(
        "--thorough", action="store_true",
        help="leave out no case of the costly tests, of which other commits have others",
    )  # fmt: skip


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, object, object]:
    """Mark what reads all chorales; of what -k and -m choose leave out what a run does not take."""
    for item in items:
        if "corpus" in getattr(item, "fixturenames", ()):
            # It waits for 365 chorales to be read, all in the same way.
            item.add_marker("slow")
            item.add_marker("no_typecheck")
    result = yield
    left_out = set()
    thorough = config.getoption("--thorough")
    # A file that is named is not drawn for.
    every_file = thorough or any(".py" in argument for argument in config.args)
    if config.getoption("--jaxtyping-packages", default=None):
        left_out = set(items) - set(_typed(items, every_file=every_file))
    if count := config.getoption("--leave-cases"):
        left_out |= set(_typed(_spread(items, count), every_file=every_file))
    if count := config.getoption("--cases"):
        left_out |= set(items) - set(_spread(items, count))
    elif not thorough:
        left_out |= set(_costly(items))
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]
    # The longest first, so that at the end no process works on one alone.
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    return result


def _typed(items: Iterable[pytest.Item], *, every_file: bool) -> Iterator[pytest.Item]:
    """Those of a run with checked shapes.

    Not what tests our own errors or `torch.compile`, repeats what other tests have typed, or runs
    in processes of its own, which nobody types. Of the files that test jobs, which train models
    first, each commit has a third, and many commits together have them all.
    """
    commit = _commit()
    for item in items:
        if item.get_closest_marker("no_typecheck"):
            continue
        of_jobs = _JOBS in item.path.parents
        file = item.path.relative_to(_JOBS) if of_jobs else item.path
        if every_file or not of_jobs or random.Random(f"{commit} {file}").random() < 1 / 3:
            yield item


def _costly(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """All but the cases that a test marked `costly(N)` has with the commit that is checked out.

    Tests that are marked `costly(N, of="a word")` have N of them together.
    """
    together: dict[tuple[Any, ...], list[pytest.Item]] = {}
    for item in items:
        if mark := item.get_closest_marker("costly"):
            word = mark.kwargs.get("of")
            alike = (word,) if word else (item.path.name, _name(item), item.parent)
            together.setdefault(alike, []).append(item)
    commit = _commit()
    for names, alike in together.items():
        counts = {mark.args for item in alike if (mark := item.get_closest_marker("costly"))}
        if len(counts) > 1:
            raise pytest.UsageError(f"costly: N must be one number for {names[0]!r}, got {counts}")
        ((count,),) = counts
        draws = random.Random(" ".join((commit, *names[:2])))
        yield from draws.sample(alike, max(len(alike) - count, 0))


def _commit() -> str:
    """Its hash; nothing where this is no checkout, or there is no git."""
    if not (git := shutil.which("git")):
        return ""
    asked = [git, "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()


def _name(item: pytest.Item) -> str:
    """The test's name without its parameters."""
    return getattr(item, "originalname", item.name)


def _spread(items: list[pytest.Item], count: int) -> Iterator[pytest.Item]:
    """At most `count` items of each test function and backend: the first, the last and between."""
    together: dict[tuple[Any, ...], list[pytest.Item]] = {}
    for item in items:
        backend = getattr(item, "callspec", None) and item.callspec.params.get("backend")
        together.setdefault((item.path, item.parent, _name(item), backend), []).append(item)
    for alike in together.values():
        chosen = min(count, len(alike))
        yield from (alike[n * (len(alike) - 1) // max(chosen - 1, 1)] for n in range(chosen))


@pytest.fixture(autouse=True)
def _same_draws_each_time() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _own_known_calls() -> None:
    """What is known of calls is found anew: what a test replaces is not in their keys."""
    known_calls = sys.modules.get("relpos.ops.known_calls")
    if known_calls is not None:
        known_calls.KNOWN.clear()


@pytest.fixture
def refusal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """What a program says on stderr as it ends with exit code 2, before its work.

    It is given as a module with a `main`, then its arguments, and the names of the functions that
    must not be called. It runs in this process: to start one takes seconds.
    """

    def said(program: Any, arguments: Sequence[str], *work: str) -> str:
        for name in work:
            monkeypatch.setattr(program, name, lambda *_, **__: pytest.fail("its work has begun"))
        monkeypatch.setattr(sys, "argv", [program.__name__, *arguments])
        with pytest.raises(SystemExit) as ended:
            program.main()
        assert ended.value.code == 2
        return " ".join(capsys.readouterr().err.split())

    return said


@pytest.fixture(autouse=True, scope="session")
def _triton_by_way_of_the_gpu():
    """Let the triton backend take the suite's tensors, which are the CPU's, if there is a GPU."""
    if not torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1":
        yield
        return
    # Not before: under jaxtyping's hook nothing may have imported relpos.
    with pytest.MonkeyPatch.context() as patch:
        import_module("tests.ops.by_way_of_the_gpu").patch_triton(patch)
        yield
