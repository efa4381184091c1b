"""A performance as sound: as long as it is, in tune, as loud as it is struck."""

import io
import wave

import numpy as np
import pytest

from relpos_tasks.music.performances.performance import performance_of
from relpos_tasks.music.performances.sound import wav_of
from relpos_tasks.music.wav import SAMPLE_RATE
from tests.tasks.music.performances.played import played


def samples_of(performance):
    with wave.open(io.BytesIO(wav_of(performance))) as sound:
        assert (sound.getnchannels(), sound.getsampwidth()) == (1, 2)
        assert sound.getframerate() == SAMPLE_RATE
        return np.frombuffer(sound.readframes(sound.getnframes()), "<i2").astype(float)


def test_it_lasts_until_the_last_string_is_damped():
    one = played(np.random.default_rng(0), 30)
    assert len(samples_of(one)) / SAMPLE_RATE == pytest.approx(one.seconds + 0.12, abs=0.001)


@pytest.mark.parametrize("pitch", [21, 60, 69, 108])
def test_a_note_sounds_at_its_pitch(pitch):
    samples = samples_of(performance_of("", [0], [200], [pitch], [64]))
    spectrum = np.abs(np.fft.rfft(samples))
    # No other harmonic is stronger than the first.
    found = spectrum.argmax() * SAMPLE_RATE / len(samples)
    assert found == pytest.approx(440 * 2 ** ((pitch - 69) / 12), rel=0.03)


def test_a_note_that_is_struck_harder_is_louder():
    samples = samples_of(performance_of("", [0, 300], [100, 400], [60, 60], [40, 120]))
    soft, hard = np.abs(samples[: 2 * SAMPLE_RATE]).max(), np.abs(samples).max()
    assert hard == pytest.approx(0.9 * 32767, abs=1)
    assert soft == pytest.approx(hard / 9, rel=0.02)


def test_it_is_silent_between_notes():
    samples = samples_of(performance_of("", [0, 300], [100, 400], [60, 60], [80, 80]))
    assert not samples[int(1.13 * SAMPLE_RATE) : 3 * SAMPLE_RATE - 1].any()


def test_no_note_is_silence():
    assert not samples_of(performance_of("", [], [], [], [])).any()
