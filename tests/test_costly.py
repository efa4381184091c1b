"""Of a costly test each commit has some cases, and a few commits have had them all."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import conftest


def case(name: str, number: int, *marks: pytest.Mark) -> SimpleNamespace:
    """An item of pytest's, as far as it is looked at."""
    return SimpleNamespace(
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


def test_one_word_has_one_number(monkeypatch):
    monkeypatch.setattr(conftest, "_commit", lambda: "a")
    marks = [pytest.mark.costly(number, of="word").mark for number in (1, 2)]
    with pytest.raises(pytest.UsageError, match="N must be one number for 'word', got"):
        list(conftest._costly([case("some", number, marks[number]) for number in range(2)]))


def test_the_commit_is_a_hash_or_nothing(monkeypatch):
    assert len(conftest._commit()) in (0, 40, 64)
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert conftest._commit() == ""
