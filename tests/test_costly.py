"""What a run takes of the tests.

Of a costly one each commit has some cases, and many commits together have them all. Of two runs,
one of them with checked shapes, each case is in one.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import conftest


class Item(SimpleNamespace):
    """One of pytest's, as far as it is looked at."""

    __hash__ = object.__hash__


def case(name: str, number: int, *marks: pytest.Mark) -> Item:
    return Item(
        path=Path("test_some.py"), parent=None, name=f"{name}[{number}]", originalname=name,
        number=number,
        get_closest_marker=lambda wanted: next((x for x in marks if x.name == wanted), None),
    )  # fmt: skip


CASES = [
    *(case("costly", number, pytest.mark.costly(3).mark) for number in range(10)),
    *(case("few", number, pytest.mark.costly(3).mark) for number in range(2)),
    *(case("cheap", number, pytest.mark.slow.mark) for number in range(10)),
    *(case("grouped", number, pytest.mark.costly(1, of="word").mark) for number in range(2)),
    *(case("alike", number, pytest.mark.costly(1, of="word").mark) for number in range(3)),
]


def kept(monkeypatch, commit: str) -> list[tuple[str, int]]:
    monkeypatch.setattr(conftest, "_commit", lambda: commit)
    left_out = [(x.originalname, x.number) for x in conftest._costly(CASES)]
    assert len(set(left_out)) == len(left_out)
    everything = [(x.originalname, x.number) for x in CASES]
    return [x for x in everything if x not in left_out]


def test_a_commit_has_so_many_cases_of_a_costly_test_and_all_of_the_others(monkeypatch):
    for commit in ("a", "b", ""):
        found = kept(monkeypatch, commit)
        assert [name for name, _ in found].count("costly") == 3
        assert len([x for x in found if x[0] in ("grouped", "alike")]) == 1
        assert [x for x in found if x[0] in ("few", "cheap")] == [
            *(("few", number) for number in range(2)),
            *(("cheap", number) for number in range(10)),
        ]
        assert kept(monkeypatch, commit) == found


def test_some_commits_together_have_all_cases(monkeypatch):
    found = {x for number in range(40) for x in kept(monkeypatch, str(number))}
    assert found == {(x.originalname, x.number) for x in CASES}


def taken(
    monkeypatch, items: list[Item], args: tuple[str, ...] = ("tests",), **options: object
) -> set[tuple[str, int]]:
    """What a run with these options takes of the items, which pytest hears all others of."""
    monkeypatch.setattr(conftest, "_commit", lambda: "a")
    before, items, said = items, list(items), []

    def option(name: str, default: object = None) -> object:
        return options.get(name.strip("-").replace("-", "_"), default)

    def deselected(items: list[Item]) -> None:
        said.extend(items)

    config = SimpleNamespace(
        args=args, getoption=option, hook=SimpleNamespace(pytest_deselected=deselected)
    )  # fmt: skip
    steps = conftest.pytest_collection_modifyitems(config, items)
    next(steps)
    with pytest.raises(StopIteration):
        steps.send(None)
    assert sorted(map(id, [*items, *said])) == sorted(map(id, before))
    return {(x.originalname, x.number) for x in items}


def test_each_case_is_in_one_of_two_runs(monkeypatch):
    own = [case("own errors", number, pytest.mark.no_typecheck.mark) for number in range(4)]
    items = [*(case("plain", number) for number in range(5)), *own, case("alone", 0), *CASES]
    names = {"plain", "own errors", "alone"}
    typed = taken(monkeypatch, items, cases=1, jaxtyping_packages="relpos")
    first = {("plain", 0), ("alone", 0), *((name, 0) for name in {x.originalname for x in CASES})}
    assert typed == first
    left = taken(monkeypatch, items, leave_cases=1)
    assert not left & typed
    alone = taken(monkeypatch, items)
    assert left == alone - typed
    assert {x for x in alone if x[0] in names} == {x for x in left | typed if x[0] in names}
    assert taken(monkeypatch, items, thorough=True) == {(x.originalname, x.number) for x in items}


def test_shapes_of_jobs_are_checked_in_the_files_that_a_commit_draws(monkeypatch):
    jobs = Path(conftest.__file__).parent / "tasks"
    items = [case(str(n), n) for n in range(60)]
    for n, item in enumerate(items):
        item.path = jobs / f"test_{n // 2}.py"
    everything = {(str(n), n) for n in range(60)}
    typed = taken(monkeypatch, items.copy(), cases=1, jaxtyping_packages="relpos")
    assert 6 <= len(typed) <= 36
    assert {n ^ 1 for _, n in typed} == {n for _, n in typed}  # of a file all or none
    assert taken(monkeypatch, items.copy(), leave_cases=1) == everything - typed
    options = {"jaxtyping_packages": "relpos", "thorough": True}
    assert taken(monkeypatch, items.copy(), cases=1, **options) == everything
    # One that is named is not drawn for.
    named = ("tests/tasks/test_0.py::test_a",)
    found = taken(monkeypatch, items.copy(), named, cases=1, jaxtyping_packages="relpos")
    assert found == everything
    assert taken(monkeypatch, items.copy(), named, leave_cases=1) == set()


def test_one_word_has_one_number(monkeypatch):
    monkeypatch.setattr(conftest, "_commit", lambda: "a")
    marks = [pytest.mark.costly(number, of="word").mark for number in (1, 2)]
    with pytest.raises(pytest.UsageError, match="N must be one number for 'word', got"):
        list(conftest._costly([case("some", number, marks[number]) for number in range(2)]))


def test_the_commit_is_a_hash_or_nothing(monkeypatch):
    assert len(conftest._commit()) in (0, 40, 64)
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert conftest._commit() == ""
