"""Which event may come next, so that what is drawn can be played."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from jaxtyping import Bool
from numpy import ndarray

from .tokens import NOTE_OFF, NOTE_ON, SHIFT, SIZE, VELOCITY

__all__ = ["Keyboard"]

# So many events in one step of 10 ms, and the next one moves on in time: ten fingers end and
# strike a note, each with a velocity of its own, and some more.
_MOST_TOGETHER = 40
_PITCHES = 128


class Keyboard:
    """What sounds after some tokens, and what may follow.

    A note is ended if it sounds, though not in the step in which it was struck, and struck if it
    does not sound; a velocity is for a note; and time moves on after forty events in one step.

    >>> keyboard = Keyboard()
    >>> keyboard.play([NOTE_ON + 60])
    >>> bool(keyboard.allowed()[NOTE_ON + 60]), bool(keyboard.allowed()[NOTE_ON + 62])
    (False, True)
    """

    def __init__(self) -> None:
        self._sounding = np.zeros(_PITCHES, np.bool_)
        self._struck_now = np.zeros(_PITCHES, np.bool_)
        self._together = 0
        self._after_velocity = False

    def play(self, tokens: Iterable[int]) -> None:
        """Go on by some tokens.

        Args:
            tokens: any, also such as are not allowed.
        """
        for token in tokens:
            self._after_velocity = token >= VELOCITY
            if SHIFT <= token < VELOCITY:
                self._together = 0
                self._struck_now[:] = False
                continue
            self._together += 1
            if NOTE_ON <= token < NOTE_OFF:
                self._sounding[token - NOTE_ON] = self._struck_now[token - NOTE_ON] = True
            elif NOTE_OFF <= token < SHIFT:
                self._sounding[token - NOTE_OFF] = False

    def allowed(self) -> Bool[ndarray, "vocabulary"]:
        """The tokens that may come next."""
        allowed = np.zeros(SIZE, np.bool_)
        if self._together < _MOST_TOGETHER or self._after_velocity:
            allowed[NOTE_ON:NOTE_OFF] = ~self._sounding
        if not self._after_velocity:
            allowed[SHIFT:VELOCITY] = True
        if self._together < _MOST_TOGETHER and not self._after_velocity:
            allowed[NOTE_OFF:SHIFT] = self._sounding & ~self._struck_now
            allowed[VELOCITY:] = not self._sounding.all()
        return allowed
