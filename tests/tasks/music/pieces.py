"""Pieces for tests: one seeded factory and one hypothesis strategy."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from relpos_tasks.music.piece import SILENCE, Piece, strikes_of


def piece_from(
    rng: np.random.Generator,
    steps: int,
    *,
    name: str = "piece",
    has_onsets: bool = True,
    pickup: int = 0,
    steps_per_bar: int = 16,
    fifths: int = 0,
) -> Piece:
    """Random notes with holds, re-strikes and silences, S above A above T above B."""
    changes = rng.random((steps, 4)) < 0.4
    drawn = rng.integers(0, 12, (steps, 4)) + np.array([65, 58, 52, 43])
    drawn[rng.random((steps, 4)) < 0.1] = SILENCE
    pitches = drawn.astype(np.int16)
    for step in range(1, steps):
        pitches[step] = np.where(changes[step], drawn[step], pitches[step - 1])
    onsets = (strikes_of(pitches) | (rng.random((steps, 4)) < 0.1)) & (pitches != SILENCE)
    return Piece(name, pitches, onsets & has_onsets, pickup, steps_per_bar, fifths, has_onsets)


@st.composite
def pieces(draw: st.DrawFn, *, has_onsets: bool | None = None) -> Piece:
    steps_per_bar = draw(st.sampled_from([6, 8, 12, 16, 24]))
    return piece_from(
        np.random.default_rng(draw(st.integers(0, 2**32 - 1))),
        draw(st.sampled_from([1, 2, 15, 16, 17, 33, 65])),
        has_onsets=draw(st.booleans()) if has_onsets is None else has_onsets,
        pickup=draw(st.integers(0, steps_per_bar - 1)),
        steps_per_bar=steps_per_bar,
        fifths=draw(st.integers(-6, 6)),
    )
