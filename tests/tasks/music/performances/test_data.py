"""Batches of performances: functions of seed and step, augmented, every event seen."""

import numpy as np
import pytest
import torch

from relpos_tasks.music.performances.data import (
    SEMITONES,
    STRETCHES,
    PerformanceCrops,
    PerformanceData,
)
from relpos_tasks.music.performances.performance import performance_of
from relpos_tasks.music.performances.split import PerformanceSplit
from relpos_tasks.music.performances.tokens import NOTE_ON, encode, events_of, transposed
from relpos_tasks.music.tokens import BEGIN
from relpos_tasks.training.language_model import IGNORE
from tests.tasks.music.performances.played import played

RNG = np.random.default_rng(6)
TRAIN = [played(RNG, notes, name=str(notes)) for notes in (40, 9, 3, 65)]


def crops(**changed):
    options = {"window": 16, "batch": 4, "steps": 9, "seed": 1} | changed
    return PerformanceCrops(TRAIN, **options)


def equal(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_batch_is_a_function_of_seed_and_step():
    one, two = crops(), crops()
    assert equal(one.at(5), two.at(5))
    assert all(equal(one.at(step), batch) for step, batch in enumerate(two))
    assert not equal(one.at(5), one.at(6))
    assert not equal(one.at(5), crops(seed=2).at(5))


def test_crops_are_parts_of_the_performances_in_some_key_and_tempo():
    """Each crop begins with the performance or at an event, and goes on as it does."""
    keys = []
    for performance in TRAIN:
        events = events_of(performance)
        for stretch in STRETCHES:
            whole = np.append(BEGIN, events.with_shifts(stretch=stretch))
            keys += [transposed(whole, up).tolist() for up in range(-SEMITONES, SEMITONES + 1)]
    for inputs, targets in crops(steps=40):
        assert inputs.shape == targets.shape == (4, 16)
        for one, following in zip(inputs.tolist(), targets.tolist(), strict=True):
            length = sum(token != IGNORE for token in following)
            assert length
            assert following[length:] == [IGNORE] * (16 - length)
            found = [*one[:length], following[length - 1]]
            # Times are rounded from where a crop begins: a shift may differ by a step.
            assert any(
                max(map(abs, np.subtract(key[start : start + length + 1], found))) <= 1
                for key in keys
                for start in range(len(key) - length)
            )


def test_all_keys_tempi_and_places_are_drawn():
    one = performance_of("", [0], [1000], [60], [64])
    drawn = PerformanceCrops([one], window=16, batch=8, steps=60, seed=0)
    pitches, lengths = set(), set()
    for inputs, targets in drawn:
        for tokens, following in zip(inputs.tolist(), targets.tolist(), strict=True):
            assert tokens[0] == BEGIN
            pitches.add(tokens[2] - NOTE_ON)
            lengths.add(sum(token != IGNORE for token in following))
    assert pitches == set(range(57, 64))
    # The velocity, the note and its end, and shifts of 9.5 to 10.5 seconds.
    assert lengths == {3 + shifts for shifts in (10, 11)}


def test_no_pitch_leaves_the_keyboard_of_midi():
    edges = performance_of("", [0, 0], [9, 9], [1, 126], [64, 64])
    drawn = PerformanceCrops([edges], window=8, batch=8, steps=20, seed=0)
    found = {token - NOTE_ON for inputs, _ in drawn for token in inputs[:, 2].tolist()}
    assert found == {0, 1, 2}


def test_every_token_of_a_performance_can_be_drawn():
    # All tokens differ, no pitch can be transposed and no shift be shortened.
    pitches = np.linspace(0, 127, 33).astype(int)
    cluster = performance_of("", [0] * 33, [1] * 33, pitches, [64] * 33)
    tokens = encode(cluster)[1:].tolist()
    assert len(set(tokens)) == len(tokens)
    drawn = PerformanceCrops([cluster], window=16, batch=8, steps=80, seed=0)
    targets = np.concatenate([batch.flatten() for _, batch in drawn])
    assert set(targets[targets != IGNORE].tolist()) == set(tokens)
    begins = sum(int(row[0]) == BEGIN for inputs, _ in drawn for row in inputs)
    assert 0 < begins < 8 * 80 / 4


@pytest.mark.parametrize("most", [None, 20])
def test_validation_has_every_performance(most):
    split = PerformanceSplit(tuple(TRAIN), tuple(TRAIN[:2]), tuple(TRAIN[2:]))
    data = PerformanceData(split, window=8, batch=2, steps=3, seed=0, valid_tokens=most)
    scored = sum(int((targets != IGNORE).sum()) for _, targets in data.val_dataloader())
    assert scored == (most or sum(len(encode(one)) - 1 for one in TRAIN[:2]))


def test_a_batch_that_the_devices_cannot_share_is_refused():
    class TwoDevices:
        @property
        def distributed_sampler_kwargs(self):
            return {"num_replicas": 2, "rank": 0}

    split = PerformanceSplit(tuple(TRAIN), tuple(TRAIN[:2]), tuple(TRAIN[2:]))
    data = PerformanceData(split, window=8, batch=3, steps=3, seed=0)
    data.trainer = TwoDevices()  # type: ignore[assignment]
    with pytest.raises(ValueError, match=r"PerformanceData: batch must be a multiple of the dev"):
        data.train_dataloader()
