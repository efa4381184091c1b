"""The benchmark over several processes on few tokens: its rows, its verdict and its page."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks import distributed as program
from benchmarks.files import load
from benchmarks.measure import distributed
from benchmarks.report.distributed_section import distributed_section, distributed_verdict

pytestmark = pytest.mark.slow


def test_every_part_on_few_tokens(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(distributed, "RANKS", (2,))
    monkeypatch.setattr(distributed, "ROUNDS", 2)
    out = tmp_path / "some.json"
    for parts in (["bytes", "time"], ["timeline", "plan", "memory"]):
        given = ["--length", "128", "--out", str(out), "--parts", *parts]
        monkeypatch.setattr(sys, "argv", ["distributed", *given])
        program.main()
    result = json.loads(out.read_text())
    assert set(result["commits"]) == set(program.PARTS)
    section = distributed_section(result, load("hour_of_speech.json"))
    for words in ("one process, two threads", "ring", "| 2 | gather |"):
        assert words in section
    assert "the plan is at most" in distributed_verdict(result)
    waits = [what for of_rank in result["timeline"]["events"] for what, _, _ in of_rank]
    assert {"compute", "wait for ring", "wait for ring gradients"} <= set(waits)


def test_the_committed_result_has_what_is_claimed():
    result = load("distributed.json")
    peaks = {}
    for hour in load("hour_of_speech.json")["rows"]:
        assert hour["difference"] < 1e-6
        assert hour["hours"] == 1
        peaks[hour["layers"], hour["processes"]] = hour["peak_gib"]
    assert peaks[4, 2] < peaks[4, 1]
    alone = result["timeline"]["hop_alone_seconds"]
    for of_rank in result["timeline"]["events"]:
        for what, begin, end in of_rank:
            if what == "wait for ring":
                assert end - begin < alone / 10
    for row in result["bytes"]:
        assert row["both_bytes"] == row["both_formula"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--length", "8"], "--length: must be in 64"),
        (["--length", "128"], "--out: must be given with --length"),
        (["--out", "."], "--out: must be a file, got the folder"),
    ],
)
def test_wrong_options_are_named(given, message, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["distributed", *given])
    with pytest.raises(SystemExit) as stopped:
        program.main()
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
