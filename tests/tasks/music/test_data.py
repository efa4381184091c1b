"""Batches: functions of seed and step, shared by devices, every token seen."""

import numpy as np
import pytest
import torch

from relpos_tasks.music.augment import semitones_within, transpose, voice_ranges
from relpos_tasks.music.data import ChoraleData, Crops
from relpos_tasks.training.language_model import IGNORE
from tests.tasks.small import SMALL


def crops(source, **changed):
    options = {"window": 16, "batch": 4, "steps": 9, "seed": 1} | changed
    return Crops(source.split.train, source.vocabulary, **options)


def equal(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_batch_is_a_function_of_seed_and_step(source):
    one, two = crops(source), crops(source)
    assert equal(one.at(5), two.at(5))
    assert all(equal(one.at(step), batch) for step, batch in enumerate(two))
    assert not equal(one.at(5), one.at(6))
    assert not equal(one.at(5), crops(source, seed=2).at(5))


def test_a_larger_batch_begins_with_the_smaller_one(source):
    small, large = crops(source).at(0), crops(source, batch=6).at(0)
    assert equal(small, [part[:4] for part in large])


def test_a_resumed_order_goes_on_behind_the_last_batch(source):
    whole, stopped, resumed = list(crops(source)), crops(source), crops(source)
    batches = iter(stopped)
    for _ in range(3):
        next(batches)
    resumed.load_state_dict(stopped.state_dict())
    rest = list(resumed)
    assert len(rest) == 6
    assert all(equal(a, b) for a, b in zip(whole[3:], rest, strict=True))


def test_devices_share_a_batch_without_overlap(source):
    whole = crops(source).at(2)
    shares = [crops(source, share=(rank, 2)).at(2) for rank in (0, 1)]
    for part in (0, 1):
        woven = torch.stack([share[part] for share in shares], dim=1).flatten(0, 1)
        assert torch.equal(woven, whole[part])


def test_targets_are_the_next_tokens_and_begin_at_a_step(source):
    """Each crop stands, in one transposition, in one piece, at a multiple of four tokens."""
    ranges = voice_ranges(source.split.train)
    keys = [
        source.vocabulary.encode(transpose(piece, semitones))
        for piece in source.split.train
        for semitones in semitones_within(piece, ranges)
    ]
    for inputs, targets in crops(source, steps=40):
        for one, following in zip(inputs.numpy(), targets.numpy(), strict=True):
            length = int((following != IGNORE).sum())
            assert length
            assert (following[length:] == IGNORE).all()
            np.testing.assert_array_equal(one[1:length], following[: length - 1])
            found = np.concatenate([one[:length], following[length - 1 : length]])
            assert any(
                np.array_equal(key[start : start + length + 1], found)
                for key in keys
                for start in range(0, len(key) - length, 4)
            )


def test_every_token_of_a_piece_can_be_drawn(source):
    piece = source.split.train[0]
    batches = Crops([piece], source.vocabulary, window=16, batch=8, steps=60, seed=0)
    starts = {tuple(row[:9].tolist()) for inputs, _ in batches for row in inputs}
    tokens = source.vocabulary.encode(piece)
    for start in (0, 4, len(tokens) - 17):
        assert tuple(tokens[start : start + 9].tolist()) in starts


def test_validation_batches_hold_every_token_once(source):
    data = ChoraleData(source.split, source.vocabulary, window=16, batch=2, steps=3, seed=0)
    batches = list(data.val_dataloader())
    scored = torch.cat([targets[targets != IGNORE] for _, targets in batches])
    tokens = np.concatenate([source.vocabulary.encode(piece)[1:] for piece in source.split.valid])
    np.testing.assert_array_equal(np.sort(scored.numpy()), np.sort(tokens))


def test_a_batch_that_the_devices_cannot_share_is_refused(source):
    class TwoDevices:
        @property
        def distributed_sampler_kwargs(self):
            return {"num_replicas": 2, "rank": 0}

    data = ChoraleData(source.split, source.vocabulary, window=16, batch=3, steps=3, seed=0)
    data.trainer = TwoDevices()  # type: ignore[assignment]
    with pytest.raises(ValueError, match=r"batch must be a multiple of the devices \(2\), got 3"):
        data.train_dataloader()


def test_windows_of_the_settings_are_checked():
    with pytest.raises(ValueError, match="window must be a positive multiple of 8, got 12"):
        type(SMALL)(window=12)
