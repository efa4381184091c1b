"""How a long work shows where it is, in a terminal and in a log."""

import io
import re
import time

import pytest

from relpos_tasks import progress
from relpos_tasks.progress import show_activity, show_progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_log_gets_a_line_now_and_then(monkeypatch, capsys):
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 0.0)
    with show_progress("composing", 1200, "sixteenths") as show:
        show(1)
        show(1100)
    lines = ["composing: 1 of 1,200 sixteenths", "composing: 1,100 of 1,200 sixteenths"]
    assert capsys.readouterr() == ("", "\n".join(lines) + "\n")


def test_work_that_cannot_tell_how_far_it_is_tells_a_log_how_long_it_has_lasted(
    monkeypatch, capsys
):
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 0.01)
    with show_activity("drawing"):
        time.sleep(0.3)
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"(drawing: \d s so far\n)+", err)


def test_a_quick_work_leaves_nothing_in_a_log(capsys):
    with show_progress("composing", 2, "sixteenths") as show, show_activity("drawing"):
        show(2)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_gets_a_bar(monkeypatch):
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    with show_progress("composing", 12, "sixteenths") as show:
        show(5)
    assert "5/12" in screen.getvalue()


def test_a_terminal_gets_the_time_of_work_that_cannot_tell_how_far_it_is(monkeypatch):
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    with show_activity("drawing"):
        pass
    assert "drawing" in screen.getvalue()
    assert "0:00:00" in screen.getvalue()


def test_an_error_ends_the_lines(monkeypatch, capsys):
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 0.01)

    def fail():
        with show_activity("drawing"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    capsys.readouterr()
    time.sleep(0.05)
    assert capsys.readouterr().err == ""
