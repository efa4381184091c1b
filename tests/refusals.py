"""Programs that refuse their arguments, run in this process: to start one takes seconds."""

from __future__ import annotations

import sys
from typing import Any

import pytest

__all__ = ["refusal"]


def refusal(
    program: Any,
    arguments: tuple[str, ...] | list[str],
    work: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> str:
    """What the `main` of a module says on stderr as it ends with exit code 2.

    Before its work, which is the function of that name.
    """
    monkeypatch.setattr(program, work, lambda *_, **__: pytest.fail(f"{work} is called"))
    monkeypatch.setattr(sys, "argv", [program.__name__, *arguments])
    with pytest.raises(SystemExit) as ended:
        program.main()
    assert ended.value.code == 2
    return " ".join(capsys.readouterr().err.split())
