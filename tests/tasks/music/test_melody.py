"""Melodies from MIDI and MusicXML."""

import re

import mido
import numpy as np
import pytest

from relpos_tasks.music import ScoreError
from relpos_tasks.music.melody import read_melody
from relpos_tasks.music.score import musicxml_of
from relpos_tasks.music.sound import midi_of
from tests.tasks.music.scores import TIE_START, TIE_STOP, attributes, note, score


def midi_file(path, *messages, ticks=480):
    file = mido.MidiFile(ticks_per_beat=ticks)
    file.tracks.append(mido.MidiTrack(messages))
    file.save(path)
    return path


def on(pitch, time=0, channel=0):
    return mido.Message("note_on", note=pitch, velocity=64, time=time, channel=channel)


def off(pitch, time=0, channel=0):
    return mido.Message("note_off", note=pitch, time=time, channel=channel)


def test_midi_and_musicxml_of_a_chorale_give_its_soprano(by_name, tmp_path):
    piece = by_name["bwv66.6"]
    (tmp_path / "tune.mid").write_bytes(midi_of(piece))
    (tmp_path / "tune.musicxml").write_text(musicxml_of(piece))
    for name in ("tune.mid", "tune.musicxml"):
        melody = read_melody(tmp_path / name)
        assert np.array_equal(melody.pitches, piece.pitches[:, 0])
        assert np.array_equal(melody.onsets, piece.onsets[:, 0])
        assert (melody.pickup, melody.steps_per_bar, melody.fifths) == (12, 16, 3)


def test_the_highest_note_is_the_melody(tmp_path):
    messages = [on(60), on(72), off(72, 480), off(60, 480)]
    melody = read_melody(midi_file(tmp_path / "m.mid", *messages))
    assert melody.pitches.tolist() == [72] * 4 + [60] * 4
    assert melody.onsets.nonzero()[0].tolist() == [0, 4]


def test_midi_notes_go_to_the_nearest_step(tmp_path):
    messages = [on(60, 20), off(60, 450), on(62, 5), off(62, 10), on(64, 100), off(64, 135)]
    melody = read_melody(midi_file(tmp_path / "m.mid", *messages))
    assert melody.pitches.tolist() == [60, 60, 60, 60, 62, 64]


MIDI_OF_SEVERAL_NOTES = {
    "four at two sixteenths": (
        [on(60), off(60, 37), on(62), off(62, 481), on(64), off(64, 1), on(65), off(65, 959)],
        2,
    ),
    "a chord": ([on(60), on(64), on(67), off(60, 480), off(64), off(67)], 2),
    "one of two instruments": (
        [
            on(60),
            mido.Message("note_on", note=60, channel=1),
            off(60, 480),
            mido.Message("note_off", note=60, channel=1),
        ],
        0,
    ),
    "one below, released later": ([on(60), on(72), off(72, 480), off(60, 480)], 0),
    "one after the other": ([on(60), off(60, 120), on(60), off(60, 120), on(62), off(62, 1)], 0),
}


@pytest.mark.parametrize("name", MIDI_OF_SEVERAL_NOTES)
def test_the_notes_of_midi_that_have_no_sixteenth_are_counted(tmp_path, name):
    messages, unsung = MIDI_OF_SEVERAL_NOTES[name]
    assert read_melody(midi_file(tmp_path / "m.mid", *messages)).unsung == unsung


def chord(*names):
    return note(names[0], 4) + "".join(note(name, 4, inside="<chord/>") for name in names[1:])


SCORES_OF_SEVERAL_NOTES = {
    "thirty-seconds": ([attributes(divisions=8) + note("C4", 1) + note("D4", 1)], 1),
    "a chord": ([attributes() + chord("C4", "G4", "E4"), note("C4", 4)], 2),
    "a tie": ([attributes() + note("C4", 4, inside=TIE_START), note("C4", 4, inside=TIE_STOP)], 0),
    "one note a sixteenth": ([attributes(divisions=4) + note("C4", 1) + note("C4", 1)], 0),
}


@pytest.mark.parametrize("name", SCORES_OF_SEVERAL_NOTES)
def test_the_notes_of_a_score_that_have_no_sixteenth_are_counted(tmp_path, name):
    bars, unsung = SCORES_OF_SEVERAL_NOTES[name]
    path = tmp_path / "m.musicxml"
    # Parts that are not the melody do not count.
    path.write_text(
        score(bars, [attributes() + chord("C3", "E3")] + [chord("C3", "E3")] * (len(bars) - 1))
    )
    assert read_melody(path).unsung == unsung


def test_metre_and_key_of_midi_are_read(tmp_path):
    messages = [
        mido.MetaMessage("time_signature", numerator=3, denominator=4),
        mido.MetaMessage("key_signature", key="F#m"),
        on(60, 960),
        off(60, 480),
    ]
    melody = read_melody(midi_file(tmp_path / "m.mid", *messages))
    assert (melody.pickup, melody.steps_per_bar, melody.fifths) == (8, 12, 3)


@pytest.mark.parametrize(("beats", "unit"), [(5, 32), (1, 32), (255, 1)])
def test_a_metre_off_the_grid_is_refused_as_in_musicxml(tmp_path, beats, unit):
    metre = mido.MetaMessage("time_signature", numerator=beats, denominator=unit)
    path = midi_file(tmp_path / "m.mid", metre, on(60), off(60, 480))
    message = f"{path}: a bar must be 1..64 whole sixteenths long, got a metre of {beats}/{unit}"
    with pytest.raises(ScoreError, match=re.escape(message)):
        read_melody(path)


def test_drums_are_no_melody(tmp_path):
    path = midi_file(tmp_path / "m.mid", on(60, channel=9), off(60, 480, channel=9))
    with pytest.raises(ScoreError, match="holds no note but those of drums"):
        read_melody(path)


def test_a_note_out_of_range_is_named_with_its_bar(tmp_path):
    path = tmp_path / "m.musicxml"
    path.write_text(score([attributes() + note("C4", 4), note("C4", 2) + note("A6", 2)]))
    assert len(read_melody(path).pitches) == 32
    message = f"{path}: the melody must lie in C4..G5, got A6 in bar 2"
    with pytest.raises(ScoreError, match=re.escape(message)):
        read_melody(path, lowest=60, highest=79)


def test_a_pickup_is_bar_0(tmp_path):
    path = tmp_path / "m.musicxml"
    path.write_text(score([attributes() + note("A6", 1), note("C4", 4)]))
    with pytest.raises(ScoreError, match="got A6 in bar 0"):
        read_melody(path, highest=80)


def test_a_silent_first_part_is_refused(tmp_path):
    path = tmp_path / "m.musicxml"
    path.write_text(score([attributes() + note("-", 4)], [attributes() + note("C4", 4)]))
    with pytest.raises(ScoreError, match="holds no note in its first part"):
        read_melody(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "must be a MIDI or a MusicXML file"),
        (b"RIFF....WAVE", "must be a MIDI or a MusicXML file"),
        (b"MThd", "broken MIDI file: it ends too early"),
        (b"MThd\0\0\0\6\0\1\0\1\1\xe0MTrk\0\0\0\x20\0\x90", "broken MIDI file"),
        (b"MThd\0\0\0\6\0\0\0\0\1\xe0", "holds no note$"),
        (b"MThd\0\0\0\6\0\0\0\0\xe7\x28", "must count time in quarters"),
        (b"<html/>", "must be MusicXML with root <score-partwise>"),
        (b"PK\3\4", "broken compressed MusicXML"),
    ],
)
def test_a_broken_file_is_named_with_what_is_wrong(tmp_path, content, message):
    path = tmp_path / "tune"
    path.write_bytes(content)
    with pytest.raises(ScoreError, match=message) as caught:
        read_melody(path)
    assert str(caught.value).startswith(str(path))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ScoreError, match=r"gone\.mid: cannot be read: No such file"):
        read_melody(tmp_path / "gone.mid")
