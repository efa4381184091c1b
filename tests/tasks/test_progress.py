"""How a long work shows where it is, in a terminal and in a log."""

import io

from relpos_tasks import progress
from relpos_tasks.progress import shown_progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_log_gets_a_line_now_and_then(monkeypatch, capsys):
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 0.0)
    with shown_progress("composing", 1200, "sixteenths") as show:
        show(1)
        show(1100)
    lines = ["composing: 1 of 1,200 sixteenths", "composing: 1,100 of 1,200 sixteenths"]
    assert capsys.readouterr() == ("", "\n".join(lines) + "\n")


def test_a_quick_work_leaves_nothing_in_a_log(capsys):
    with shown_progress("composing", 2, "sixteenths") as show:
        show(2)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_gets_a_bar(monkeypatch):
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    with shown_progress("composing", 12, "sixteenths") as show:
        show(5)
    assert "5/12" in screen.getvalue()
