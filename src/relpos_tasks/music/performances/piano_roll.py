"""A performance as a picture: a line for each note, pitch over time, darker where struck harder."""

from __future__ import annotations

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgba

from relpos.plots.style import WIDTH, new_figure, svg

from ..melody import note_name
from .performance import STEPS_PER_SECOND, Performance

__all__ = ["piano_roll"]

_OCTAVE = 12
_NOTE = "#0b6e6e"
_SOFTEST = 0.25


def piano_roll(performance: Performance) -> str:
    """The notes over the seconds, as SVG.

    Args:
        performance: any.
    """
    pitches = performance.pitches.astype(int)
    lowest, highest = int(pitches.min(initial=127)), int(pitches.max(initial=0))
    if not performance.notes:
        lowest, highest = 48, 72
    starts, ends = performance.starts / STEPS_PER_SECOND, performance.ends / STEPS_PER_SECOND
    lines = np.stack([np.stack([starts, pitches], 1), np.stack([ends, pitches], 1)], axis=1)
    loudness = _SOFTEST + (1 - _SOFTEST) * performance.velocities / 127
    with new_figure(WIDTH, 3.6) as (figure, (axes,)):
        colors = [to_rgba(_NOTE, alpha) for alpha in loudness.tolist()]
        axes.add_collection(
            LineCollection(list(lines), colors=colors, linewidths=2.2, capstyle="butt")
        )
        # The Cs, by which a keyboard is read.
        ticks = range(-(-lowest // _OCTAVE) * _OCTAVE, highest + 1, _OCTAVE)
        axes.set_yticks(list(ticks), [note_name(pitch) for pitch in ticks])
        axes.set(
            xlabel="seconds",
            ylabel="pitch",
            xlim=(0, max(performance.seconds, 1.0)),
            ylim=(lowest - 2, highest + 2),
        )
        return svg(figure)
