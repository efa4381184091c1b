"""What the sustain pedal does to the ends of notes."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from typing import Any

import mido
import numpy as np
from jaxtyping import Float64
from numpy import ndarray
from symusic import ControlChange

__all__ = ["add_pedals_of_their_own_track", "pedals_in", "sustained"]

# The controller of the pedal, and the least value at which it is down.
_SUSTAIN = 64
_DOWN = 64
# Status bytes of notes that begin, and of a control change of the pedal.
_NOTE_ON = re.compile(rb"[\x90-\x9f]")
_PEDAL = re.compile(rb"[\xb0-\xbf]\x40")

Times = Float64[ndarray, "entries"]


def add_pedals_of_their_own_track(score: Any, raw: bytes) -> None:
    """Give every track the pedals of tracks without notes, which symusic leaves out.

    Args:
        score: of symusic, its times in ticks.
        raw: the MIDI file.
    """
    for chunk in _tracks_of(raw):
        # As a rule no track is like this, and reading one message by message is slow.
        if _NOTE_ON.search(chunk) or not _PEDAL.search(chunk):
            continue
        alone = raw[:8] + (1).to_bytes(2, "big") * 2 + raw[12:14] + chunk
        try:
            (messages,) = mido.MidiFile(file=io.BytesIO(alone)).tracks
        except (OSError, EOFError, ValueError, IndexError, KeyError):
            # What is broken there is no note.
            continue
        tick = 0
        for message in messages:
            tick += message.time
            if message.type == "control_change" and message.control == _SUSTAIN:
                for track in score.tracks:
                    track.controls.append(ControlChange(tick, _SUSTAIN, message.value))


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

    A note that ends where a pedal goes down is not held by it.

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
    held = np.where(found >= 0, np.maximum(ends, ups[found]), ends)
    # The last key or pedal that comes up ends the music.
    last = max(ends.max(), ups[np.isfinite(ups)].max(initial=-np.inf))
    return np.minimum(held, last)


def _tracks_of(raw: bytes) -> Iterator[bytes]:
    """The chunks of the tracks of a MIDI file, with their headers."""
    at = 8 + int.from_bytes(raw[4:8], "big")
    while at + 8 <= len(raw):
        size = 8 + int.from_bytes(raw[at + 4 : at + 8], "big")
        if raw[at : at + 4] == b"MTrk":
            yield raw[at : at + size]
        at += size
