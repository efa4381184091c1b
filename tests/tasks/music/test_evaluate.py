"""Nats per token: every token once, with enough context, at any window."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from relpos_tasks.music.evaluate import held_out_nats, lengths_test, long_enough, windows
from relpos_tasks.training.language_model import IGNORE
from tests.tasks.music.pieces import piece_from
from tests.tasks.small import SMALL


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
        for inputs, targets in windows([piece], source.vocabulary, window=window, batch=1):
            (one,), (following,) = inputs.numpy(), targets.numpy()
            places = (following != IGNORE).nonzero()[0]
            np.testing.assert_array_equal(following[places], tokens[start + places + 1])
            np.testing.assert_array_equal(one[: places[-1] + 1], tokens[start:][: places[-1] + 1])
            scored[start + places + 1] += 1
            # Half a window of context for all but the piece's beginning.
            assert start == 0 or places[0] >= window // 2
            start += window // 2
        assert scored.tolist() == [0] + [1] * (len(tokens) - 1)


def test_a_uniform_model_costs_the_logarithm_of_the_vocabulary(source):
    size = source.vocabulary.size
    measured = held_out_nats(Uniform(size), source.split.held_out, source.vocabulary, window=16)
    assert measured == pytest.approx(math.log(size), abs=1e-12)


def test_batches_do_not_change_what_is_scored(source):
    one, many = (
        [
            torch.cat([batch[part] for batch in batches])
            for part in (0, 1)
            for batches in [
                list(windows(source.split.held_out, source.vocabulary, window=16, batch=size))
            ]
        ]
        for size in (1, 5)
    )
    assert all(torch.equal(a, b) for a, b in zip(one, many, strict=True))


def test_a_token_is_scored_with_half_a_window_of_context(source):
    piece = piece_from(np.random.default_rng(1), 65)
    tokens = source.vocabulary.encode(piece)
    model = Memory(tokens, source.vocabulary.size, context=8)
    assert held_out_nats(model, [piece], source.vocabulary, window=16) < 1e-9
    assert held_out_nats(model, [piece], source.vocabulary, window=8) > 0.1


def test_the_length_test_measures_the_same_long_pieces(source):
    pieces = source.split.held_out
    assert [piece.steps for piece in long_enough(pieces, window=16)] == [33, 16, 70]
    assert [piece.steps for piece in long_enough(pieces, window=24)] == [33, 70]
    measured = lengths_test(
        Uniform(source.vocabulary.size), pieces, source.vocabulary, window=SMALL.window
    )
    assert list(measured) == [16, 32, 64]
    assert len({round(value, 9) for value in measured.values()}) == 1


def test_without_long_pieces_there_is_no_length_test(source):
    assert lengths_test(Uniform(9), source.split.held_out, source.vocabulary, window=512) == {}


def test_nothing_to_score_and_odd_windows_are_refused(source):
    with pytest.raises(ValueError, match="pieces must have tokens"):
        held_out_nats(Uniform(9), [], source.vocabulary, window=8)
    with pytest.raises(ValueError, match="positive multiple of 8, got 12"):
        held_out_nats(Uniform(9), source.split.valid, source.vocabulary, window=12)


def test_a_model_whose_numbers_are_not_finite_is_named(source):
    class Overflowing(Uniform):
        def forward(self, tokens):
            return super().forward(tokens) * torch.nan

    model = Overflowing(source.vocabulary.size)
    with pytest.raises(ValueError, match="logits of the model must be finite, got nan nats"):
        held_out_nats(model, source.split.held_out, source.vocabulary, window=64)
