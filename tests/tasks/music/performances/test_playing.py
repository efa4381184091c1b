"""What may come next on a keyboard."""

from hypothesis import given

from relpos_tasks.music.performances.playing import Keyboard
from relpos_tasks.music.performances.tokens import NOTE_OFF, NOTE_ON, SHIFT, VELOCITY, encode
from tests.tasks.music.performances.played import performances


@given(performances())
def test_every_performance_can_be_played(performance):
    keyboard = Keyboard()
    for token in encode(performance)[1:].tolist():
        # Chords of the strategy may have more notes than hands have fingers.
        if keyboard._together < 40:
            assert keyboard.allowed()[token]
        keyboard.play([token])


def allowed_after(*tokens):
    keyboard = Keyboard()
    keyboard.play(tokens)
    return keyboard.allowed()


def test_a_note_is_struck_once_and_ended_later():
    assert not allowed_after()[NOTE_OFF:SHIFT].any()
    assert not allowed_after(NOTE_ON + 60)[[NOTE_ON + 60, NOTE_OFF + 60]].any()
    after = allowed_after(NOTE_ON + 60, SHIFT)
    assert after[NOTE_OFF + 60]
    assert not after[NOTE_ON + 60]
    assert allowed_after(NOTE_ON + 60, SHIFT, NOTE_OFF + 60)[NOTE_ON + 60]


def test_a_velocity_is_for_a_note():
    after = allowed_after(VELOCITY + 3)
    assert after[NOTE_ON:NOTE_OFF].all()
    assert not after[NOTE_OFF:].any()


def test_time_moves_on():
    together = [NOTE_ON + pitch for pitch in range(40)]
    after = allowed_after(*together)
    assert after[SHIFT:VELOCITY].all()
    assert after.sum() == VELOCITY - SHIFT
    assert allowed_after(*together, SHIFT)[NOTE_ON + 50]


def test_something_is_always_allowed():
    assert allowed_after(*range(NOTE_ON, NOTE_OFF)).any()
    assert allowed_after(*range(NOTE_ON, NOTE_OFF), SHIFT).any()
    assert allowed_after(*[NOTE_ON + pitch for pitch in range(39)], VELOCITY).any()


def test_the_begin_token_cannot_be_drawn():
    assert not allowed_after()[0]
