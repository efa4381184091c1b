"""What the sustain pedal does to the ends of notes."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import Any

import mido
import numpy as np
from jaxtyping import Float64
from mido.midifiles.meta import KeySignatureError
from numpy import ndarray
from symusic import ControlChange, Score, Track

__all__ = ["pedals_in", "sustained", "tracks_of_pedals"]

# The controller of the pedal, and the least value at which it is down.
_SUSTAIN = 64
_DOWN = 64
# Of symusic, which counts in 32 bits.
_LAST_TICK = 2**31 - 1

# Tracks have different numbers of them.
Times = Float64[ndarray, "_"]


def tracks_of_pedals(raw: bytes) -> list[Any]:
    """The pedals of each track without notes, which symusic leaves out, their times in ticks.

    Args:
        raw: the MIDI file.

    Returns:
        Tracks of symusic with nothing but pedals.
    """
    found = []
    for chunk in _tracks_in(raw):
        alone = raw[:8] + (1).to_bytes(2, "big") * 2 + raw[12:14] + chunk
        if _SUSTAIN not in chunk or _has_notes(alone):
            continue
        try:
            (messages,) = mido.MidiFile(file=io.BytesIO(alone)).tracks
        except (OSError, EOFError, ValueError, IndexError, KeyError, KeySignatureError):
            # What is broken there is no note.
            continue
        track: Any = Track()
        tick = 0
        for message in messages:
            tick += message.time
            if tick > _LAST_TICK:
                break
            if message.type == "control_change" and message.control == _SUSTAIN:
                track.controls.append(ControlChange(tick, _SUSTAIN, message.value))
        if len(track.controls):
            found.append(track)
    return found


def pedals_in(tracks: Iterable[Any]) -> list[tuple[Times, Times]]:
    """When the pedal of each track goes down, and when it comes up: the last time perhaps never.

    Args:
        tracks: of symusic.
    """
    found = []
    for track in tracks:
        controls = track.controls.numpy()
        of_pedal = controls["number"] == _SUSTAIN
        times = controls["time"][of_pedal].astype(np.float64)
        order = np.argsort(times, kind="stable")
        times, down = times[order], (controls["value"][of_pedal] >= _DOWN)[order]
        before = np.append(False, down)[:-1]
        up = times[before & ~down]
        found.append((times[down & ~before], np.append(up, np.inf) if down[-1:].any() else up))
    return found


def sustained(
    ends: Float64[ndarray, "notes"], pedals: Iterable[tuple[Times, Times]]
) -> Float64[ndarray, "notes"]:
    """Ends of notes, those while a pedal is down moved to where it comes up.

    They are infinite where it never comes up. A note that ends where a pedal goes down is not held.

    Args:
        ends: when keys come up.
        pedals: when they go down and up; infinite where one does not come up.
    """
    downs, ups = (np.concatenate(part) for part in zip(*pedals, strict=True))
    if not len(downs) or not len(ends):
        return ends
    order = np.argsort(downs, kind="stable")
    # Pedals of several tracks may overlap: it is down until the last of them is up.
    downs, ups = downs[order], np.maximum.accumulate(ups[order])
    found = np.searchsorted(downs, ends, side="left") - 1
    return np.where(found >= 0, np.maximum(ends, ups[found]), ends)


def _has_notes(raw: bytes) -> bool:
    """Whether symusic, which is fast, finds notes in a MIDI file."""
    try:
        score: Any = Score.from_midi(raw)
        return score.note_num() > 0
    except (RuntimeError, ValueError, IndexError, OverflowError):
        return False


def _tracks_in(raw: bytes) -> Iterator[bytes]:
    """The chunks of the tracks of a MIDI file, with their headers."""
    at = 8 + int.from_bytes(raw[4:8], "big")
    while at + 8 <= len(raw):
        size = 8 + int.from_bytes(raw[at + 4 : at + 8], "big")
        if raw[at : at + 4] == b"MTrk":
            yield raw[at : at + size]
        at += size
