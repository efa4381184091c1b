"""Batches of tokens: functions of seed and step, full but not too full, shared by devices."""

import numpy as np
import pytest
import torch

from relpos_tasks.training.language_model import IGNORE
from relpos_tasks.translation import learn_subwords
from relpos_tasks.translation.batches import (
    EncodedPairs,
    OrderedBatches,
    ShuffledBatches,
    TranslationData,
    encode_pairs,
)
from relpos_tasks.translation.subwords import BEGIN, END, PADDING
from tests.tasks.translation.sentences import pairs

TEXT = pairs(50) + pairs(30, words=9)
SUBWORDS = learn_subwords((text for pair in TEXT for text in pair), size=300)
ENCODED = encode_pairs(TEXT, SUBWORDS)


def shuffled(encoded=ENCODED, **changed):
    return ShuffledBatches(encoded, **({"tokens": 200, "steps": 30, "seed": 1} | changed))


def equal(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def rows(batches):
    """The pairs of tokens in some batches, without padding."""
    return sorted(
        (
            tuple(source[source != PADDING].tolist()),
            tuple(inputs[inputs != PADDING].tolist()),
            tuple(targets[targets != IGNORE].tolist()),
        )
        for batch in batches
        for source, inputs, targets in zip(*batch, strict=True)
    )


EVERY_ROW = sorted(
    (tuple(source), tuple(target[:-1]), tuple(target[1:]))
    for source, target in zip(ENCODED.sources, ENCODED.targets, strict=True)
)


def test_a_batch_is_a_function_of_seed_and_step():
    one, two = shuffled(), shuffled()
    assert equal(one.at(25), two.at(25))
    assert all(equal(one.at(step), batch) for step, batch in enumerate(two))
    assert not equal(one.at(5), one.at(6))
    assert not equal(one.at(5), shuffled(seed=2).at(5))


def test_every_epoch_has_every_pair_once_in_another_order():
    batches = shuffled()
    size = batches.steps_in_epoch
    first, second = ([batches.at(size * epoch + n) for n in range(size)] for epoch in (0, 1))
    assert size > 3
    assert rows(first) == rows(second) == EVERY_ROW
    assert not all(equal(a, b) for a, b in zip(first, second, strict=True))
    # Not the order of the batches alone: pairs of the same lengths change places.
    assert {tuple(rows([batch])) for batch in first} != {tuple(rows([batch])) for batch in second}


def test_a_resumed_order_goes_on_behind_the_last_batch():
    whole, stopped, resumed = list(shuffled()), shuffled(), shuffled()
    batches = iter(stopped)
    for _ in range(13):
        next(batches)
    resumed.load_state_dict(stopped.state_dict())
    rest = list(resumed)
    assert len(rest) == 17
    assert all(equal(a, b) for a, b in zip(whole[13:], rest, strict=True))


def test_batches_are_as_full_as_they_may_be():
    for tokens in (60, 200, 10_000):
        batches = shuffled(tokens=tokens)
        sizes = [batches.at(n) for n in range(batches.steps_in_epoch)]
        assert all(part.numel() <= tokens for batch in sizes for part in batch)
        longest = max(part.shape[1] for batch in sizes for part in batch)
        # All but the last, and but a quarter that stands before longer pairs.
        full = [max(part.numel() for part in batch) > tokens - 2 * longest for batch in sizes]
        assert sum(full) >= len(full) - 1 - len(full) // 4
    assert len(sizes) == 1


def test_devices_share_a_batch_without_overlap_or_an_empty_one():
    for of in (2, 64):
        whole = shuffled()
        shares = [shuffled(share=(rank, of)) for rank in range(of)]
        for step in range(whole.steps_in_epoch):
            parts = [share.at(step) for share in shares]
            scored = [part for part in parts if (part[2] != IGNORE).any()]
            assert rows(scored) == rows([whole.at(step)])
            assert all(len(part[0]) for part in parts)
        assert (len(scored) < len(parts)) == (of == 64)


def test_what_the_model_reads_and_what_it_is_to_say():
    source, inputs, targets = encode_pairs(TEXT[:1] + TEXT[-1:], SUBWORDS).batch(np.array([0, 1]))
    assert source.dtype == inputs.dtype == targets.dtype == torch.int64
    for row, pair in enumerate((TEXT[0], TEXT[-1])):
        assert SUBWORDS.decode(source[row].tolist()) == pair.source
        target = SUBWORDS.encode(pair.target)
        n = len(target) + 1
        assert inputs[row, :n].tolist() == [BEGIN, *target]
        assert targets[row, :n].tolist() == [*target, END]
        assert (inputs[row, n:] == PADDING).all()
        assert (targets[row, n:] == IGNORE).all()
    assert (inputs[0] == PADDING).any()


def test_pairs_beyond_the_longest_are_left_out_and_counted():
    longest = max(len(SUBWORDS.encode(text)) for pair in TEXT[:50] for text in pair)
    kept = encode_pairs(TEXT, SUBWORDS, longest=longest)
    assert kept.left_out == len(TEXT) - len(kept) > 0
    assert kept.lengths.max() == longest + 1
    assert encode_pairs(TEXT, SUBWORDS).left_out == 0


def test_validation_batches_hold_every_pair_once_in_the_same_order():
    data = TranslationData(ENCODED, ENCODED, tokens=200, steps=3, seed=0)
    one, two = data.val_dataloader(), data.val_dataloader()
    assert len(one) == len(list(one)) > 3
    assert rows(one) == EVERY_ROW
    assert all(equal(a, b) for a, b in zip(one, two, strict=True))
    # A pair that is longer than a batch is measured all the same.
    assert rows(OrderedBatches(ENCODED, tokens=5)) == EVERY_ROW


def test_the_data_module_gives_each_device_its_share():
    class SecondOfTwo:
        global_rank, world_size = 1, 2

    data = TranslationData(ENCODED, ENCODED, tokens=200, steps=3, seed=1)
    assert equal(data.train_dataloader().at(2), shuffled().at(2))
    data.trainer = SecondOfTwo()  # type: ignore[assignment]
    assert equal(data.train_dataloader().at(2), shuffled(share=(1, 2)).at(2))


def test_what_cannot_be_batched_is_refused():
    longest = ENCODED.lengths.max()
    with pytest.raises(ValueError, match=rf"tokens must be at least {longest}, .*, got 9"):
        shuffled(tokens=9)
    with pytest.raises(ValueError, match="pairs must be at least one, got none"):
        shuffled(EncodedPairs([], []))
    # Before a training has begun its folder.
    with pytest.raises(ValueError, match="choose a larger --batch"):
        TranslationData(ENCODED, ENCODED, tokens=9, steps=3, seed=0)
    assert list(OrderedBatches(EncodedPairs([], []), tokens=9)) == []
