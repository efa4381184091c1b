"""The benchmark over several processes on few tokens: its rows, its verdict and its page."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks import distributed as program
from benchmarks import hour_of_speech
from benchmarks.files import load
from benchmarks.measure import distributed
from benchmarks.report.distributed_section import distributed_section, distributed_verdict

pytestmark = [pytest.mark.slow, pytest.mark.no_typecheck]


@pytest.mark.costly(2, of="programs that measure")
def test_every_part_on_few_tokens(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(distributed, "RANKS", (2,))
    monkeypatch.setattr(distributed, "ROUNDS", 2)
    out = tmp_path / "some.json"
    for parts in (["bytes", "time"], ["timeline", "plan", "memory"]):
        given = ["--length", "128", "--out", str(out), "--parts", *parts]
        monkeypatch.setattr(sys, "argv", ["distributed", *given])
        program.main()
    result = json.loads(out.read_text())
    assert set(result["machines"]) == set(program.PARTS)
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
        peaks[hour["hours"], hour["layers"], hour["processes"]] = hour["peak_gib"]
    assert peaks[0.25, 24, 2] < 0.7 * peaks[0.25, 24, 1]
    assert peaks[1, 24, 2] < 0.65 * peaks[1, 24, 1]
    assert peaks[1, 4, 2] < peaks[1, 4, 1]
    alone = result["timeline"]["hop_alone_seconds"]
    for of_rank in result["timeline"]["events"]:
        for what, begin, end in of_rank:
            if what == "wait for ring":
                assert end - begin < alone / 10
    found = {(row["ranks"], row["method"]): row["ratio"] for row in result["memory"]}
    # Of what lies on a rank, 1 / P; what passes through it is of two ranks, whatever P is.
    assert found[2, "heads"] < 0.85
    assert found[4, "heads"] < 0.6 * found[2, "heads"]
    assert found[4, "ring"] < 0.65 * found[2, "ring"] < 0.65
    for row in result["bytes"]:
        assert row["both_bytes"] == row["both_formula"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--length", "8"], "--length: must be in 64"),
        (["--length", "128"], "--out: must be given with --length"),
        (["--out", "."], "--out: must be a file in a folder that is there, got ."),
    ],
)
def test_wrong_options_are_named(given, message, refusal):
    assert message in refusal(program, given)


@pytest.mark.costly(2, of="programs that measure")
def test_the_hour_on_few_frames(tmp_path, monkeypatch):
    out = tmp_path / "hour.json"
    sizes = ["--frames", "40", "--layers", "1", "--width", "64", "--out", str(out)]
    for processes in ("2", "1"):
        monkeypatch.setattr(sys, "argv", ["hour_of_speech", "--processes", processes, *sizes])
        hour_of_speech.main()
    rows = json.loads(out.read_text())["rows"]
    assert [row["processes"] for row in rows] == [1, 2]
    for row in rows:
        assert row["frames"] == 40
        assert row["difference"] < 1e-5
        assert row["machine"]["commit"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--processes", "0"], "--processes: must be at least 1, got 0"),
        (["--layers", "2"], "--out: must be given with another encoder"),
        (["--out", "."], "--out: must be a file in a folder that is there, got ."),
    ],
)
def test_wrong_options_of_the_hour_are_named(given, message, refusal):
    assert message in refusal(hour_of_speech, given)
