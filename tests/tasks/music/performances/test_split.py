"""The split depends on the notes alone, keeps copies together and leaves no part empty."""

from dataclasses import replace

import numpy as np
import pytest

from relpos_tasks.music.performances.performance import performance_of
from relpos_tasks.music.performances.split import digest_of, split_performances
from tests.tasks.music.performances.played import played

RNG = np.random.default_rng(4)
MANY = [played(RNG, 40, name=f"{index:03}") for index in range(200)]


def names(split):
    return [[one.name for one in part] for part in (split.train, split.valid, split.held_out)]


def test_about_four_fifths_are_to_train_on_and_a_tenth_is_held_out():
    train, valid, held_out = names(split_performances(MANY))
    assert sorted(train + valid + held_out) == [one.name for one in MANY]
    assert 140 < len(train) < 180
    assert 8 < len(valid) < 35
    assert 8 < len(held_out) < 35


@pytest.mark.parametrize("seed", range(20))
def test_no_part_of_a_small_folder_is_less_than_half_of_its_share(seed):
    rng = np.random.default_rng(seed)
    some = [played(rng, 12, name=f"{index:03}") for index in range(56)]
    train, valid, held_out = names(split_performances(some))
    assert min(len(valid), len(held_out)) >= 3
    assert len(train) >= 34


def test_order_and_names_do_not_matter():
    before = split_performances(MANY)
    renamed = [replace(one, name=f"x{one.name}") for one in reversed(MANY)]
    after = split_performances(renamed)
    for part, same in zip(names(before), names(after), strict=True):
        assert [f"x{name}" for name in part] == same


def test_another_file_moves_no_other():
    parts, more = names(split_performances(MANY[:-1])), names(split_performances(MANY))
    for part, same in zip(parts, more, strict=True):
        assert set(part) == set(same) - {MANY[-1].name}


def test_copies_fall_into_the_same_part():
    copies = [
        performance_of(
            f"copy-{one.name}", one.starts * 2, one.ends * 2, one.pitches + 1, one.velocities
        )
        for one in MANY
    ]
    for part in names(split_performances(MANY + copies)):
        alone = {name for name in part if not name.startswith("copy")}
        assert {f"copy-{name}" for name in alone} == set(part) - alone


@pytest.mark.parametrize("count", [3, 4, 5, 8])
@pytest.mark.parametrize("first", [0, 50, 100])
def test_no_part_is_empty(first, count):
    train, valid, held_out = names(split_performances(MANY[first : first + count]))
    assert train
    assert valid
    assert held_out


@pytest.mark.parametrize(
    ("performances", "message"),
    [
        ([], "got 0"),
        (MANY[:2], "got 2"),
        ([*MANY[:2], *MANY[:2]], "got 2 and 2 copies"),
    ],
)
def test_too_few_are_refused(performances, message):
    with pytest.raises(ValueError, match=rf"at least three different performances .*, {message}$"):
        split_performances(performances)


def test_the_line_has_performances_and_how_long_they_last():
    one = performance_of("", [0, 100], [50, 12_000], [60, 62], [64, 64])
    split = split_performances([one, *MANY[:2]])
    line = str(replace(split, train=(one,), valid=(one,) * 30, held_out=(one,)))
    assert line == (
        "train 1 performances, 2.0 min; valid 30 performances, 1.0 h; "
        "held out 1 performances, 2.0 min"
    )


def test_the_digest_is_of_the_notes():
    assert digest_of(MANY[0]) == digest_of(replace(MANY[0], name="other"))
    assert digest_of(MANY[0]) != digest_of(MANY[1])
