"""Harmonising: the music task's batches with a voice taken out, and a piece with three more."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from relpos_tasks.models import EncoderDecoder, EncoderDecoderConfig
from relpos_tasks.music.augment import semitones_within, transpose, voice_ranges
from relpos_tasks.music.data import Crops
from relpos_tasks.music.melody import Melody
from relpos_tasks.music.score import musicxml_of
from relpos_tasks.music.split import Split
from relpos_tasks.music.tokens import BEGIN, vocabulary_of
from relpos_tasks.training.fitting import fit
from relpos_tasks.training.language_model import IGNORE
from relpos_tasks.training.sequence_to_sequence import SequenceToSequenceTask, mean_nats
from relpos_tasks.training.settings import TrainingSettings
from relpos_tasks.translation.harmonise import (
    HarmonyData,
    as_translation,
    harmonise,
    harmony_windows,
    soprano_of,
)
from tests.tasks.music.pieces import piece_from
from tests.tasks.small import CPU


def data(source, **changed):
    options = {"window": 16, "batch": 4, "steps": 9, "seed": 1} | changed
    return HarmonyData(source.split, source.vocabulary, **options)


def built(vocabulary, position="shaw", *, seed=0):
    torch.manual_seed(seed)
    size = vocabulary.size
    config = EncoderDecoderConfig(size, size, width=16, layers=1, heads=2, position=position)
    return EncoderDecoder(config).double().eval()


def equal(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def pairs_of(source):
    """Soprano and lower voices of each training piece in each transposition."""
    ranges = voice_ranges(source.split.train)
    for piece in source.split.train:
        for semitones in semitones_within(piece, ranges):
            grid = source.vocabulary.encode(transpose(piece, semitones))[1:].reshape(-1, 4)
            yield grid[:, 0], grid[:, 1:].ravel()


def test_a_crop_is_a_soprano_and_its_three_voices_in_one_transposition(source):
    whole = list(pairs_of(source))
    for batch in data(source, steps=20).train_dataloader():
        assert [tuple(part.shape) for part in batch] == [(4, 4), (4, 12), (4, 12)]
        for soprano, written, target in zip(*(part.numpy() for part in batch), strict=True):
            steps = int((target != IGNORE).sum()) // 3
            assert steps
            assert (soprano[steps:] == BEGIN).all()
            assert (target[3 * steps :] == IGNORE).all()
            assert written[0] == BEGIN
            np.testing.assert_array_equal(written[1 : 3 * steps], target[: 3 * steps - 1])
            assert any(
                np.array_equal(one[start : start + steps], soprano[:steps])
                and np.array_equal(three[3 * start : 3 * (start + steps)], target[: 3 * steps])
                for one, three in whole
                for start in range(len(one) - steps + 1)
            )


def test_a_batch_is_a_function_of_seed_and_step(source):
    once, again, other = (list(data(source, seed=seed).train_dataloader()) for seed in (1, 1, 2))
    assert all(equal(a, b) for a, b in zip(once, again, strict=True))
    assert not equal(once[0], once[1])
    assert not equal(once[0], other[0])
    crops = Crops(source.split.train, source.vocabulary, window=16, batch=4, steps=9, seed=1)
    assert equal(once[5], as_translation(*crops.at(5)))


def test_a_resumed_order_goes_on_behind_the_last_batch(source):
    whole = list(data(source).train_dataloader())
    stopped, resumed = data(source).train_dataloader(), data(source).train_dataloader()
    batches = iter(stopped)
    for _ in range(3):
        next(batches)
    resumed.load_state_dict(stopped.state_dict())
    assert all(equal(a, b) for a, b in zip(whole[3:], resumed, strict=True))
    assert len(whole) == len(resumed) == 9


def test_windows_score_every_lower_note_once_and_see_all_of_their_soprano(source):
    vocabulary, pieces = source.vocabulary, source.split.held_out
    scored, batches = [], list(harmony_windows(pieces, vocabulary, window=16))
    for soprano, written, target in batches:
        scored.append(target[target != IGNORE])
        ended = (soprano == BEGIN).repeat_interleave(3, dim=1)
        assert (target[ended] == IGNORE).all()
        # Half a window may be there for what follows, but never less than one sixteenth is new.
        assert ((target != IGNORE).sum(1) >= 3).all()
        assert (written[:, 0] == BEGIN).all()
    tokens = [vocabulary.encode(piece)[1:].reshape(-1, 4)[:, 1:].ravel() for piece in pieces]
    np.testing.assert_array_equal(torch.cat(scored).numpy(), np.concatenate(tokens))
    valid = data(source).val_dataloader()
    tokens = [vocabulary.encode(piece)[1:].reshape(-1, 4)[:, 1:] for piece in source.split.valid]
    scored = torch.cat([target[target != IGNORE] for _, _, target in valid])
    np.testing.assert_array_equal(scored.numpy(), np.concatenate(tokens).ravel())


@pytest.mark.parametrize("position", ["shaw", "none"])
def test_nats_of_windows_are_those_of_each_window_alone(source, position):
    model, (piece, *_) = built(source.vocabulary, position), source.split.held_out
    grid = source.vocabulary.encode(piece)[1:].reshape(-1, 4)
    total, start, done, steps = 0.0, 0, 0, 4
    while done < len(grid):
        soprano, lower = (
            torch.from_numpy(part[start : start + steps].ravel())
            for part in (grid[:, 0], grid[:, 1:])
        )
        inputs = torch.cat((torch.tensor([BEGIN]), lower[:-1]))
        with torch.no_grad():
            log_p = model(soprano[None], inputs[None])[0].log_softmax(-1)
        new = slice(3 * (done - start), len(lower))
        total -= log_p.gather(1, lower[:, None])[new].sum().item()
        done, start = start + len(soprano), start + steps // 2
    got = mean_nats(model, harmony_windows([piece], source.vocabulary, window=16))
    assert got == pytest.approx(total / (3 * len(grid)), abs=1e-9)


@pytest.mark.parametrize("steps", [1, 2, 4, 5, 17])
@pytest.mark.parametrize("has_onsets", [True, False])
def test_a_harmonised_melody_is_a_piece_with_that_soprano(steps, has_onsets):
    piece = piece_from(
        np.random.default_rng(steps), steps, has_onsets=has_onsets, pickup=4, steps_per_bar=12,
        fifths=-2,
    )  # fmt: skip
    vocabulary = vocabulary_of([piece_from(np.random.default_rng(9), 40, has_onsets=has_onsets)])
    model, melody = built(vocabulary), soprano_of(piece)
    done: list[int] = []
    got = harmonise(model, vocabulary, melody, window=16, beam=2, name="new", progress=done.append)
    assert done == sorted(done)
    assert done[-1] == steps
    assert (got.name, got.pickup, got.steps_per_bar, got.fifths) == ("new", 4, 12, -2)
    np.testing.assert_array_equal(got.pitches[:, 0], piece.pitches[:, 0])
    np.testing.assert_array_equal(got.strikes[:, 0], piece.strikes[:, 0])
    assert got.has_onsets == has_onsets
    assert "<part-name>Bass</part-name>" in musicxml_of(got)


def test_a_window_goes_on_from_what_the_one_before_has_written():
    """With one hypothesis each token is the likeliest one, given all that its window holds."""
    piece = piece_from(np.random.default_rng(1), 11)
    vocabulary = vocabulary_of([piece])
    model = built(vocabulary)
    model.source_embedding.weight.data *= 3
    got = harmonise(model, vocabulary, soprano_of(piece), window=16, beam=1)
    # The soprano's tokens, and the likeliest lower voices, by full passes.
    soprano = torch.from_numpy(vocabulary.encode(piece)[1::4])
    lower, start = [], 0
    while len(lower) < 33:
        heard = soprano[start : start + 4]
        while len(lower) < 3 * (start + len(heard)):
            inputs = torch.tensor([[BEGIN, *lower[3 * start :]]])
            with torch.no_grad():
                lower.append(int(model(heard[None], inputs)[0, -1].argmax()))
        start += 2
    grid = np.concatenate([soprano.numpy()[:, None], np.reshape(lower, (-1, 3))], axis=1)
    want = vocabulary.decode(grid.ravel())
    np.testing.assert_array_equal(got.pitches, want.pitches)
    np.testing.assert_array_equal(got.onsets, want.onsets)


def test_what_cannot_be_harmonised_is_named():
    piece = piece_from(np.random.default_rng(0), 8)
    vocabulary, other = vocabulary_of([piece]), vocabulary_of([piece], transposition=0)
    model, melody = built(vocabulary), soprano_of(piece)
    with pytest.raises(ValueError, match=r"model must have \d+ tokens on both sides, got \("):
        harmonise(model, other, melody)
    with pytest.raises(ValueError, match="window must be a positive multiple of 8, got 12"):
        harmonise(model, vocabulary, melody, window=12)
    empty = Melody(melody.pitches[:0], melody.onsets[:0], 0, 16, 0)
    with pytest.raises(ValueError, match="melody must have a step, got none"):
        harmonise(model, vocabulary, empty)
    long = Melody(np.repeat(melody.pitches, 600), np.repeat(melody.onsets, 600), 0, 16, 0)
    with pytest.raises(ValueError, match="melody must be at most 4096 sixteenths long, got 4800"):
        harmonise(model, vocabulary, long)
    high = Melody(melody.pitches * 0 + np.int16(127), melody.onsets, 0, 16, 0)
    with pytest.raises(
        ValueError, match=r"pitches must be in .*, got 127 in step 0 of the soprano"
    ):
        harmonise(model, vocabulary, high)


def test_a_model_learns_to_double_the_soprano_in_all_voices(tmp_path):
    """Training runs on Lightning, resumes as finished, and what it learns is what is scored."""
    pieces = []
    for n in range(6):
        piece = piece_from(np.random.default_rng(n), 24, name=str(n))
        doubled = np.repeat(piece.pitches[:, :1], 4, axis=1)
        onsets = np.repeat(piece.onsets[:, :1], 4, axis=1)
        pieces.append(type(piece)(piece.name, doubled, onsets))
    split = Split(tuple(pieces[:4]), tuple(pieces[4:5]), tuple(pieces[5:]))
    vocabulary = vocabulary_of(split.train, transposition=0)
    settings = TrainingSettings(
        steps=150, batch=8, learning_rate=1e-2, warmup=10, valid_every=150, checkpoint_every=150
    )

    def train():
        model = built(vocabulary).float().train()
        task = SequenceToSequenceTask(model, settings)
        four = HarmonyData(split, vocabulary, window=32, batch=8, steps=150, seed=0)
        fit(task, four, folder=tmp_path, about={"model": model.config.to_dict()}, devices=CPU)
        return task

    task = train()
    held_out = mean_nats(task.model, harmony_windows(split.held_out, vocabulary, window=32))
    # Alto, tenor and bass are copies; guessing costs log(size), more than three nats.
    assert held_out < 1.0
    ((step, valid),) = task.curves["valid"]
    assert (step, valid < 1.0) == (150, True)
    again = train()
    assert again.curves == task.curves
    for one, other in zip(task.model.parameters(), again.model.parameters(), strict=True):
        assert_close(one, other, rtol=0, atol=0)
