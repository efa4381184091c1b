"""A piece as MIDI and as sound."""

import io
import wave

import numpy as np
import pytest
from pretty_midi import PrettyMIDI

from relpos_tasks.music import Piece
from relpos_tasks.music.sound import midi_of, wav_of
from relpos_tasks.music.wav import SAMPLE_RATE
from tests.tasks.music.pieces import piece_from

RNG = np.random.default_rng(4)


def test_midi_holds_every_note_of_the_piece():
    piece = piece_from(RNG, 65, pickup=12, fifths=-2)
    midi = PrettyMIDI(io.BytesIO(midi_of(piece, tempo=60.0)))
    assert [track.name for track in midi.instruments] == ["Soprano", "Alto", "Tenor", "Bass"]
    assert midi.key_signature_changes[0].key_number == 10
    pitches = np.full_like(piece.pitches, -1)
    onsets = np.zeros_like(piece.onsets)
    for voice, track in enumerate(midi.instruments):
        for note in track.notes:
            # A quarter a second, after three quarters of the first bar.
            start, end = round(note.start * 4) - 12, round(note.end * 4) - 12
            pitches[start:end, voice] = note.pitch
            onsets[start, voice] = True
    assert np.array_equal(pitches, piece.pitches)
    assert np.array_equal(onsets, piece.onsets)


def test_sound_lasts_as_the_tempo_says_and_never_clips():
    piece = piece_from(RNG, 33)
    with wave.open(io.BytesIO(wav_of(piece, tempo=60.0))) as sound:
        assert (sound.getnchannels(), sound.getsampwidth(), sound.getframerate()) == (
            1,
            2,
            SAMPLE_RATE,
        )
        samples = np.frombuffer(sound.readframes(sound.getnframes()), "<i2")
    # pretty_midi adds a second for the last note to die away.
    assert 7 < len(samples) / SAMPLE_RATE - 1 < 33 / 4 + 0.01
    assert np.abs(samples).max() == round(0.9 * 32767)


def test_a_lone_voice_sounds_at_its_pitch():
    pitches = np.full((8, 4), -1, np.int16)
    pitches[:, 0] = 69
    onsets = np.zeros((8, 4), np.bool_)
    onsets[0, 0] = True
    with wave.open(io.BytesIO(wav_of(Piece("a", pitches, onsets), tempo=60.0))) as sound:
        samples = np.frombuffer(sound.readframes(2 * SAMPLE_RATE), "<i2")
    assert np.abs(np.fft.rfft(samples)).argmax() / 2 == pytest.approx(440, abs=1)
    # It begins softly.
    assert np.abs(samples[:50]).max() < 2000


def test_silence_is_silence():
    silent = Piece("s", np.full((4, 4), -1, np.int16), np.zeros((4, 4), np.bool_))
    with wave.open(io.BytesIO(wav_of(silent))) as sound:
        assert not any(sound.readframes(sound.getnframes()))
    assert PrettyMIDI(io.BytesIO(midi_of(silent))).get_end_time() == 0


def test_the_same_piece_gives_the_same_bytes():
    piece = piece_from(RNG, 17)
    assert midi_of(piece) == midi_of(piece)
    assert wav_of(piece) == wav_of(piece)


@pytest.mark.parametrize("play", [midi_of, wav_of])
@pytest.mark.parametrize("tempo", [0.0, -1.0, float("nan")])
def test_a_tempo_must_be_positive(play, tempo):
    with pytest.raises(ValueError, match=f"{play.__name__}: tempo must be positive, got {tempo}"):
        play(piece_from(RNG, 3), tempo=tempo)
