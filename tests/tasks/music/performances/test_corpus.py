"""A folder exported from the music21 corpus: read, split and learned as any other."""

import numpy as np
import pytest

from relpos_tasks.music.performances.source import read_performances
from relpos_tasks.music.performances.tokens import SIZE
from scripts.corpus_midi import chosen_scores, export


@pytest.mark.slow
# music21 has some about its own corpus.
@pytest.mark.filterwarnings("ignore")
def test_scores_of_the_corpus_are_a_folder_to_train_on(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("scripts.corpus_midi.chosen_scores", small_scores)
    written = export(tmp_path / "corpus", 8)
    assert written >= 7
    source = read_performances(tmp_path / "corpus")
    read = [*source.split.train, *source.split.valid, *source.split.held_out]
    assert len(read) == written
    assert all(performance.seconds > 5 for performance in read)
    # Counts alone know something of the music.
    assert source.counting(window=128)["previous token"] < 0.7 * np.log(SIZE)


def small_scores(count):
    """The smallest files among many, since some scores take music21 half a minute."""
    return sorted(chosen_scores(120), key=lambda path: path.stat().st_size)[20 : 20 + count]


def test_scores_are_taken_from_all_composers_in_turn():
    chosen = chosen_scores(8)
    assert len({path.parent for path in chosen}) == 8
    assert chosen_scores(3) == chosen[:3]
