"""Bach's chorales as music21 carries them, and their cache."""

import shutil

import numpy as np
import pytest

from relpos_tasks.music import Piece, ScoreError, chorales, voice_ranges
from relpos_tasks.music import corpus as corpus_module
from relpos_tasks.music.cache import load_pieces, save_pieces
from tests.tasks.music.pieces import piece_from


def equal(one: Piece, other: Piece) -> bool:
    arrays = ("pitches", "onsets")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in arrays) and all(
        getattr(one, name) == getattr(other, name) for name in vars(one) if name not in arrays
    )


@pytest.fixture
def small_corpus(tmp_path, monkeypatch):
    """Three real files in a folder, and an empty cache; returns the folder and the cache."""
    files = {file.name: file for file in corpus_module.chorale_files()}
    folder = tmp_path / "bach"
    folder.mkdir()
    # Four parts, four parts, five parts.
    for name in ("bwv66.6.mxl", "bwv269.mxl", "bwv1.6.mxl"):
        shutil.copy(files[name], folder)
    monkeypatch.setattr(corpus_module, "chorale_files", lambda: sorted(folder.iterdir()))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder, tmp_path / "cache" / "relpos"


def test_the_corpus_holds_365_chorales_in_four_parts(corpus):
    assert len(corpus) == 365
    names = [piece.name for piece in corpus]
    assert names == sorted(set(names))
    assert all(piece.has_onsets for piece in corpus)
    assert sum(piece.steps for piece in corpus) == 79_440


def test_voices_stay_where_people_sing(corpus):
    assert voice_ranges(corpus).tolist() == [[57, 81], [53, 74], [48, 69], [36, 64]]


def test_first_chords_are_those_of_the_scores(by_name):
    # Read off the scores: C#5 E4 A3 A3 on an upbeat in A, and G4 D4 B3 G2 on an upbeat in 3/4.
    piece = by_name["bwv66.6"]
    assert piece.pitches[0].tolist() == [73, 64, 57, 57]
    assert piece.pitches[2].tolist() == [71, 64, 59, 56]
    assert piece.onsets[2].tolist() == [True, False, True, True]
    assert (piece.pickup, piece.steps_per_bar, piece.fifths) == (12, 16, 3)
    piece = by_name["bwv269"]
    assert piece.pitches[0].tolist() == [67, 62, 59, 43]
    assert (piece.pickup, piece.steps_per_bar, piece.fifths) == (8, 12, 1)


def test_nearly_all_chorales_end_on_a_struck_or_held_triad(corpus):
    triads = 0
    for piece in corpus:
        classes = sorted({int(pitch - piece.pitches[-1, 3]) % 12 for pitch in piece.pitches[-1]})
        triads += classes in ([0], [0, 3, 7], [0, 4, 7], [0, 4], [0, 7], [0, 3])
    assert triads / len(corpus) > 0.95


def test_the_cache_gives_back_what_was_read(small_corpus):
    _, cache = small_corpus
    read = chorales()
    (file,) = cache.iterdir()
    cached = chorales()
    assert [piece.name for piece in read] == ["bwv269", "bwv66.6"]
    assert all(equal(one, other) for one, other in zip(read, cached, strict=True))
    assert list(cache.iterdir()) == [file]


def test_a_broken_cache_is_rebuilt(small_corpus):
    _, cache = small_corpus
    read = chorales()
    (file,) = cache.iterdir()
    whole = file.read_bytes()
    for broken in (b"", b"no archive", whole[: len(whole) // 2], whole.replace(b"about", b"ab0ut")):
        file.write_bytes(broken)
        assert all(equal(one, other) for one, other in zip(read, chorales(), strict=True))
        assert load_pieces(file) is not None


def test_another_listing_has_another_cache(small_corpus):
    folder, cache = small_corpus
    chorales()
    (folder / "bwv269.mxl").unlink()
    assert [piece.name for piece in chorales()] == ["bwv66.6"]
    assert len(list(cache.iterdir())) == 2


def test_an_unreadable_score_is_named_left_out_and_not_cached(small_corpus):
    folder, cache = small_corpus
    (folder / "bwv66.6.mxl").write_bytes(b"PK\3\4")
    with pytest.warns(UserWarning, match=r"left out: .*bwv66\.6\.mxl: broken compressed"):
        assert [piece.name for piece in chorales()] == ["bwv269"]
    assert not cache.exists()


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    save_pieces(tmp_path / "file" / "cache.npz", [piece_from(np.random.default_rng(0), 3)])
    assert load_pieces(tmp_path / "file" / "cache.npz") is None


def test_progress_is_shown_while_reading(small_corpus, capsys):
    chorales(cache=False, progress=True)
    assert "Reading the chorales" in capsys.readouterr().err


def test_a_missing_package_is_an_error_with_a_way_out(monkeypatch):
    monkeypatch.setattr(corpus_module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ScoreError, match=r"music21: is not installed.*relpos\[music\]"):
        chorales(cache=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bwv66.6", "bwv269", "bwv248.64-s"])
def test_the_reader_agrees_with_music21(by_name, name):
    from music21 import converter

    (file,) = (file for file in corpus_module.chorale_files() if file.stem == name)
    score = converter.parse(file)
    piece = by_name[name]
    for voice, part in enumerate(score.parts):
        expected = {}
        for element in part.stripTies().flatten().notes:
            # The grid keeps notes that sound when a sixteenth begins.
            start, end = (
                -(-4 * at // 1) for at in (element.offset, element.offset + element.quarterLength)
            )
            if start < end:
                expected[int(start)] = (element.pitch.midi, int(end))
        struck = piece.onsets[:, voice].nonzero()[0].tolist()
        assert struck == sorted(expected)
        for start, (pitch, end) in expected.items():
            assert set(piece.pitches[start:end, voice].tolist()) == {pitch}
            assert not piece.onsets[start + 1 : end, voice].any()
        covered = sum(end - start for start, (_, end) in expected.items())
        assert (piece.pitches[:, voice] >= 0).sum() == covered


def test_a_user_without_a_home_has_no_cache(small_corpus, monkeypatch):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    folder, _ = small_corpus
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(corpus_module.Path, "home", homeless)
    assert [piece.name for piece in chorales()] == ["bwv269", "bwv66.6"]
    assert sorted(folder.parent.iterdir()) == [folder]
