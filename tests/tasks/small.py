"""A source, settings and runs that are small enough for tests."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import mido
import numpy as np

from relpos_tasks.music.augment import voice_ranges
from relpos_tasks.music.piece import SILENCE, Piece, strikes_of
from relpos_tasks.music.settings import MusicSettings
from relpos_tasks.music.sound import midi_of
from relpos_tasks.music.source import Source
from relpos_tasks.music.split import Split
from relpos_tasks.music.tokens import vocabulary_of
from relpos_tasks.training.comparison import Comparison
from relpos_tasks.training.devices import Devices
from relpos_tasks.training.settings import TrainingSettings
from tests.tasks.music.pieces import piece_from

CPU = Devices("cpu", "1", "32-true")
# Options of a training of two steps.
QUICK = ["--preset=tiny", "--steps=2", "--batch=2", "--window=16", "--accelerator=cpu"]
# Absolute positions, both kinds of relative ones, and two seeds.
COMPARISON = Comparison(["absolute", "huang", "shaw"], seed=3, seeds=2)
SMALL = MusicSettings(
    window=16,
    width=8,
    layers=1,
    heads=2,
    hidden=8,
    dropout=0.2,
    training=TrainingSettings(
        steps=6, batch=2, warmup=2, seed=3, valid_every=4, checkpoint_every=2
    ),
)


def small(**training) -> MusicSettings:
    """The small settings, with other training settings."""
    return replace(SMALL, training=replace(SMALL.training, **training))


def source_from(rng: np.random.Generator, *, has_onsets: bool = True) -> Source:
    """Six random pieces to train on, two to watch, three to measure on."""
    sizes = (33, 17, 65, 5, 40, 29), (21, 8), (33, 16, 70)
    parts = [
        tuple(
            piece_from(rng, steps, name=f"{part}-{n}", has_onsets=has_onsets)
            for n, steps in enumerate(part_sizes)
        )
        for part, part_sizes in zip(("train", "valid", "held"), sizes, strict=True)
    ]
    split = Split(*parts)
    return Source("random", "0", split, vocabulary_of(split.train), voice_ranges(split.train))


def write_grid(path: Path) -> Path:
    """A small file in the literature's form."""
    rng = np.random.default_rng(7)
    content = {
        part: [piece_from(rng, steps).pitches.tolist() for steps in sizes]
        for part, sizes in (("train", (40, 33, 48, 37, 29, 64, 41, 50)), ("valid", (34, 70)))
    }
    path.write_text(json.dumps(content))
    return path


def write_melody(path: Path, pitches: list[int]) -> Path:
    """A MIDI file with a soprano alone, a sixteenth for each pitch; equal ones are one note."""
    column = np.array(pitches, np.int16)[:, None]
    voices = np.concatenate([column, np.full((len(column), 3), SILENCE, np.int16)], axis=1)
    path.write_bytes(midi_of(Piece("tune", voices, strikes_of(voices))))
    return path


def write_chords(path: Path, chords: list[tuple[int, ...]]) -> Path:
    """A MIDI file with a sixteenth for each chord."""
    track = mido.MidiTrack()
    for chord in chords:
        track.extend(mido.Message("note_on", note=pitch, velocity=64) for pitch in chord)
        for n, pitch in enumerate(chord):
            track.append(mido.Message("note_off", note=pitch, time=0 if n else 120))
    file = mido.MidiFile(ticks_per_beat=480)
    file.tracks.append(track)
    file.save(path)
    return path


@contextmanager
def disk_with(size: int) -> Iterator[None]:
    """Lets no file become larger than so many bytes; the system's error is that of a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
