"""Nats per token: every token once, with enough context, at any window."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from relpos_tasks.music.tokens import BEGIN
from relpos_tasks.music.windows import (
    check_window,
    crop_at,
    nats_per_token,
    nats_per_token_by_length,
    windows_of,
)
from relpos_tasks.training.language_model import IGNORE
from tests.tasks.music.pieces import piece_from


class Uniform(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size = size

    def forward(self, tokens):
        return torch.zeros(*tokens.shape, self.size)


class Memory(nn.Module):
    """Knows the next token of a sequence as long as it can see its context of some tokens."""

    def __init__(self, tokens, size, context):
        super().__init__()
        self.size, self.context = size, context
        self.following = {
            tuple(tokens[max(0, n - context) : n].tolist()): int(tokens[n])
            for n in range(1, len(tokens))
        }

    def forward(self, tokens):
        logits = torch.zeros(*tokens.shape, self.size)
        for row, line in enumerate(tokens.tolist()):
            for n in range(len(line)):
                known = self.following.get(tuple(line[max(0, n + 1 - self.context) : n + 1]))
                if known is not None:
                    logits[row, n, known] = 50.0
        return logits


@pytest.mark.parametrize("window", [8, 16, 32, 512])
def test_every_token_is_scored_exactly_once(source, window):
    for piece in source.split.held_out:
        tokens = source.vocabulary.encode(piece)
        scored = np.zeros(len(tokens), int)
        start = 0
        for inputs, targets in windows_of([tokens], window=window, batch=1):
            (one,), (following,) = inputs.numpy(), targets.numpy()
            places = (following != IGNORE).nonzero()[0]
            np.testing.assert_array_equal(following[places], tokens[start + places + 1])
            np.testing.assert_array_equal(one[: places[-1] + 1], tokens[start:][: places[-1] + 1])
            scored[start + places + 1] += 1
            # Half a window of context for all but the piece's beginning.
            assert start == 0 or places[0] >= window // 2
            start += window // 2
        assert scored.tolist() == [0] + [1] * (len(tokens) - 1)


def test_batches_do_not_change_what_is_scored(source):
    sequences = list(map(source.vocabulary.encode, source.split.held_out))
    one, many = (
        [
            torch.cat([batch[part] for batch in batches])
            for part in (0, 1)
            for batches in [list(windows_of(sequences, window=16, batch=size))]
        ]
        for size in (1, 5)
    )
    assert all(torch.equal(a, b) for a, b in zip(one, many, strict=True))


def test_a_token_is_scored_with_half_a_window_of_context(source):
    piece = piece_from(np.random.default_rng(1), 65)
    tokens = source.vocabulary.encode(piece)
    model = Memory(tokens, source.vocabulary.size, context=8)
    assert nats_per_token(model, [tokens], window=16) < 1e-9
    assert nats_per_token(model, [tokens], window=8) > 0.1


def test_nothing_to_score_and_odd_windows_are_refused():
    with pytest.raises(ValueError, match="sequences must have tokens"):
        nats_per_token(Uniform(9), [], window=8)
    with pytest.raises(ValueError, match="positive multiple of 8, got 12"):
        nats_per_token(Uniform(9), [np.zeros(5, np.int64)], window=12)


def test_a_model_whose_numbers_are_not_finite_is_named():
    class Overflowing(Uniform):
        def forward(self, tokens):
            return super().forward(tokens) * torch.nan

    model = Overflowing(9)
    with pytest.raises(ValueError, match="logits of the model must be finite, got nan nats"):
        nats_per_token(model, [np.zeros(5, np.int64)], window=64)


@pytest.mark.parametrize("count", [0, 1, 5, 16, 17, 30])
def test_a_crop_is_inputs_and_the_tokens_after_them(count):
    tokens = np.arange(1, count + 2)
    inputs, targets = crop_at(tokens, window=16)
    length = min(count, 16)
    assert inputs.tolist() == [*range(1, length + 1), *[BEGIN] * (16 - length)]
    assert targets.tolist() == [*range(2, length + 2), *[IGNORE] * (16 - length)]


def test_sequences_that_are_too_short_are_left_out_of_the_length_test():
    long, short = np.zeros(33, np.int64), np.zeros(32, np.int64)
    assert list(nats_per_token_by_length(Uniform(9), [short, long], window=8)) == [8, 16, 32]
    assert nats_per_token_by_length(Uniform(9), [short], window=8) == {}


def test_a_uniform_model_costs_the_logarithm_of_the_vocabulary(source):
    size = source.vocabulary.size
    measured = nats_per_token(Uniform(size), source.held_out(), window=16)
    assert measured == pytest.approx(math.log(size), abs=1e-12)


def test_a_window_longer_than_every_sequence_is_refused():
    sequences = [np.zeros(count, np.int64) for count in (9, 31)]
    check_window("window", 32, sequences)
    with pytest.raises(ValueError, match="window must be at most 32, the longest of these pieces"):
        check_window("window", 40, sequences)
