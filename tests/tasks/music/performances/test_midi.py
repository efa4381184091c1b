"""MIDI files read as performances: pedals, tempi, tracks, and what cannot be read."""

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from symusic import Note, Score, Tempo, Track

from relpos_tasks.music.performances.midi import LARGEST_FILE, midi_of, read_performance
from relpos_tasks.music.score_lines import ScoreError
from tests.tasks.music.performances.played import midi_file, performances, played


@pytest.fixture
def read(tmp_path):
    """Reads the bytes of a file."""

    def from_bytes(content):
        (tmp_path / "a.mid").write_bytes(content)
        return read_performance(tmp_path / "a.mid")

    return from_bytes


def notes_of(performance):
    names = ("starts", "ends", "pitches", "velocities")
    return list(zip(*(getattr(performance, name).tolist() for name in names), strict=True))


def test_what_is_written_is_read_again(read):
    one = played(np.random.default_rng(2), 200)
    assert notes_of(read(midi_of(one))) == notes_of(one)


@given(performances())
def test_any_performance_is_written_and_read_again(tmp_path_factory, performance):
    path = tmp_path_factory.mktemp("midi") / "a.mid"
    path.write_bytes(midi_of(performance))
    assert notes_of(read_performance(path)) == notes_of(performance)


def test_the_name_is_the_files_or_the_given_one(tmp_path):
    (tmp_path / "a.mid").write_bytes(midi_file([(0, 480, 60, 64)]))
    assert read_performance(tmp_path / "a.mid").name == "a.mid"
    assert read_performance(tmp_path / "a.mid", name="b").name == "b"


def test_ticks_are_seconds_by_the_tempo_and_silence_before_is_left_out(read):
    content = midi_file([(960, 480, 60, 64), (1440, 240, 62, 64)], qpm=60)
    assert notes_of(read(content)) == [(0, 100, 60, 64), (100, 150, 62, 64)]


def test_a_change_of_tempo_counts_from_where_it_stands(read):
    score, track = Score(480), Track()
    for tempo in (Tempo(0, qpm=60), Tempo(480, qpm=120)):
        score.tempos.append(tempo)
    for start in (0, 480, 960):
        track.notes.append(Note(start, 480, 60 + start // 480, 64))
    score.tracks.append(track)
    found = notes_of(read(score.dumps_midi()))
    assert [note[:2] for note in found] == [(0, 100), (100, 150), (150, 200)]


@pytest.mark.parametrize(
    ("pedals", "ends"),
    [
        ([], [50, 100]),
        # Down while both end, up at 1.5 s.
        ([(10, 127), (1440, 0)], [150, 150]),
        # Half a pedal is none; 64 is one.
        ([(10, 63), (1440, 0)], [50, 100]),
        ([(10, 64), (1440, 63)], [150, 150]),
        # Up before the second note ends.
        ([(10, 127), (720, 0)], [75, 100]),
        # Down only after the first has ended.
        ([(600, 127), (1440, 0)], [50, 150]),
        # Up and down again where the first ends, which is no longer held.
        ([(10, 127), (480, 0), (480, 127), (1440, 0)], [50, 150]),
        # Down where the first ends.
        ([(480, 127), (1440, 0)], [50, 150]),
        # Pressed twice.
        ([(10, 127), (20, 100), (720, 0)], [75, 100]),
        # Never released: to the last end.
        ([(10, 127)], [100, 100]),
        ([(10, 127), (1440, 0), (1500, 127)], [150, 150]),
    ],
)
def test_the_pedal_holds_what_ends_while_it_is_down(read, pedals, ends):
    notes = [(0, 480, 60, 64), (480, 480, 62, 64)]
    assert read(midi_file(notes, pedals=pedals)).ends.tolist() == ends


def with_tracks(content, *tracks):
    """A MIDI file with more tracks, whose bytes are given without their header and their end."""
    count = int.from_bytes(content[10:12], "big") + len(tracks)
    chunks = [
        b"MTrk" + (len(track) + 4).to_bytes(4, "big") + track + b"\x00\xff\x2f\x00"
        for track in tracks
    ]
    return content[:10] + count.to_bytes(2, "big") + content[12:] + b"".join(chunks)


@pytest.mark.parametrize(
    ("pedal", "ends"),
    [
        (b"\x00\xff\x03\x05pedal\x0a\xb0\x40\x7f\x8b\x16\xb0\x40\x00", [150, 150]),
        # Running status, from the first pedal or from the volume before it.
        (b"\x00\xff\x03\x05pedal\x0a\xb0\x40\x7f\x8b\x16\x40\x00", [150, 150]),
        (b"\x00\xb0\x07\x64\x0a\x40\x7f\x8b\x16\x40\x00", [150, 150]),
        # A delta of 3840 ticks, whose first byte would begin a note elsewhere.
        (b"\x0a\xb0\x40\x7f\x9e\x00\xb0\x40\x00", [401, 401]),
    ],
)
def test_a_pedal_in_a_track_without_notes_is_everybodys(read, pedal, ends):
    content = midi_file([(0, 480, 60, 64), (480, 480, 62, 64)])
    assert read(with_tracks(content, pedal)).ends.tolist() == ends


@pytest.mark.parametrize(
    "odd",
    [
        # A key with twelve sharps; then a pedal long after the last time that there is.
        b"\x00\xff\x59\x02\x0c\x00\x0a\xb0\x40\x7f",
        8 * (b"\xff\xff\xff\x7f\xb0\x07\x40") + b"\xff\xff\xff\x7f\xb0\x40\x7f",
    ],
)
def test_an_odd_track_without_notes_takes_no_note_away(read, odd):
    assert read(with_tracks(midi_file([(0, 480, 60, 64)]), odd)).ends.tolist() == [50]


def test_of_several_pedals_the_last_that_is_up_counts(read):
    down, up = b"\x0a\xb0\x40\x7f", b"\xb0\x40\x00"
    own = midi_file([(0, 480, 60, 64)], pedals=[(10, 127), (600, 0)])
    early, late = down + b"\x84\x58" + up, down + b"\x8b\x16" + up
    assert read(with_tracks(own, late)).ends.tolist() == [150]
    assert read(with_tracks(own, late, early)).ends.tolist() == [150]


def test_a_pedal_that_is_never_released_holds_to_the_end_of_all_programs(read):
    score = Score.from_midi(midi_file([(0, 240, 60, 64)], pedals=[(10, 127)]))
    other = Score.from_midi(midi_file([(0, 1920, 36, 64)])).tracks[0]
    other.program = 32
    score.tracks.append(other)
    assert read(score.dumps_midi()).ends.tolist() == [200, 200]


def test_a_broken_track_is_refused_even_without_notes(read):
    content = bytearray(midi_file([(0, 480, 60, 64)]))
    content[10:12] = (int.from_bytes(content[10:12], "big") + 1).to_bytes(2, "big")
    broken = b"\x0a\xb0\x40\x7f\x0a"
    with pytest.raises(ScoreError, match="broken MIDI file"):
        read(bytes(content) + b"MTrk" + len(broken).to_bytes(4, "big") + broken)


def test_a_held_note_ends_where_it_is_struck_again(read):
    notes = [(0, 240, 60, 64), (960, 240, 60, 64)]
    held = read(midi_file(notes, pedals=[(0, 127), (2880, 0)]))
    assert held.ends.tolist() == [100, 300]


def test_tracks_are_one_piano_and_share_the_pedal_of_their_program(read):
    both = Score.from_midi(midi_file([(0, 480, 60, 64)], pedals=[(0, 127), (1440, 0)]))
    both.tracks.append(Score.from_midi(midi_file([(0, 240, 48, 64)])).tracks[0])
    other = Score.from_midi(midi_file([(0, 240, 36, 64)])).tracks[0]
    other.program = 32
    both.tracks.append(other)
    assert notes_of(read(both.dumps_midi())) == [
        (0, 25, 36, 64), (0, 150, 48, 64), (0, 150, 60, 64),
    ]  # fmt: skip


def test_drums_are_left_out(read):
    score = Score.from_midi(midi_file([(0, 480, 60, 64)]))
    score.tracks.append(Score.from_midi(midi_file([(0, 480, 38, 64)], drums=True)).tracks[0])
    assert read(score.dumps_midi()).pitches.tolist() == [60]


GOOD = midi_file([(0, 480, 60, 64)])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "must be a MIDI file, and begins like none"),
        (b"MThd", "must be a MIDI file, and begins like none"),
        (b"words, words, words", "must be a MIDI file, and begins like none"),
        (GOOD[:-9], "broken MIDI file: MiniMidi: "),
        (
            GOOD[:8] + b"\0\2" + GOOD[10:],
            "must be of type 0 or 1 and count time in quarters, got type 2",
        ),
        (
            GOOD[:12] + b"\xe7\x28" + GOOD[14:],
            "must be of type 0 or 1 and count time in quarters, got type 1",
        ),
        (
            GOOD[:12] + b"\0\0" + GOOD[14:],
            "must be of type 0 or 1 and count time in quarters, got type 1",
        ),
        (midi_file([]), "holds no note"),
        (midi_file([(0, 480, 38, 64)], drums=True), "holds no note that ends but those of drums"),
        (midi_file([(0, 90_000_000, 60, 64)]), r"must be at most 86,400 seconds long, got 93,750"),
    ],
)
def test_what_cannot_be_read_is_refused_in_a_line(read, content, message):
    with pytest.raises(ScoreError, match=f"a.mid: {message}") as refused:
        read(content)
    assert "\n" not in str(refused.value)


def test_a_huge_file_is_refused_unread(tmp_path):
    path = tmp_path / "huge.mid"
    with path.open("wb") as file:
        file.write(GOOD)
        file.truncate(LARGEST_FILE + 1)
    with pytest.raises(ScoreError, match="must be at most 20,000,000 bytes, got 20,000,001"):
        read_performance(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ScoreError, match=r"no.mid: cannot be read: No such file or directory"):
        read_performance(tmp_path / "no.mid")


@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_file_is_read_or_refused(read, seed):
    rng = np.random.default_rng(seed)
    content = bytearray(midi_of(played(rng, 20)))
    for _ in range(3):
        content[rng.integers(8, len(content))] = rng.integers(256)
    with suppress(ScoreError):
        assert read(bytes(content)).notes
