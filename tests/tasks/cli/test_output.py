"""What commands print of their figures."""

import io
import sys

import pytest

from relpos_tasks.cli.output import loading, print_rows


class _Terminal(io.StringIO):
    """Of some encoding, or none that is a terminal's."""

    def __init__(self, encoding: str, *, is_terminal: bool) -> None:
        super().__init__()
        self._encoding, self._is_terminal = encoding, is_terminal

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Of what is written."""
        return self._encoding

    def isatty(self) -> bool:
        """Whether somebody is looking."""
        return self._is_terminal


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_terminal_is_told_that_something_is_loaded(monkeypatch, encoding: str, rank: str):
    monkeypatch.setenv("LOCAL_RANK", rank)
    monkeypatch.setenv("TERM", "xterm")
    for is_terminal in (True, False):
        terminal = _Terminal(encoding, is_terminal=is_terminal)
        monkeypatch.setattr(sys, "stderr", terminal)
        with loading():
            pass
        said = terminal.getvalue()
        assert ("loading torch and Lightning" in said) == (is_terminal and rank == "0")
        assert said.isascii() or encoding == "utf-8"


def test_figures_of_several_seeds_are_a_mean_and_a_spread(capsys):
    print_rows("held out", {"huang": [0.5, 0.6], "one": [0.25], "counting": 1.0}, digits=2)
    assert capsys.readouterr().out.splitlines() == [
        "held out",
        "  huang     0.55 ± 0.07",
        "  one       0.25",
        "  counting  1.00",
    ]
