"""The benchmark of small calls on tiny inputs: what it times, its parts and its page."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest

from benchmarks import small_calls as program
from benchmarks.measure import small_calls
from benchmarks.measure.passes import BOTH, FORWARD, measure_settings
from benchmarks.report.benchmark_page import small_calls_section
from benchmarks.report.small_calls_section import fixed_costs_verdict
from benchmarks.report.targets import SMALL_TARGETS
from benchmarks.workloads.schemes import SCHEMES
from benchmarks.workloads.settings import SMALL_SETTINGS
from relpos import backends

needs_native = pytest.mark.skipif(backends()["native"] is not None, reason="native cannot run here")


def test_every_scheme_of_every_setting_has_a_target():
    assert {scheme for setting in SMALL_SETTINGS for scheme in setting.schemes} <= set(SCHEMES)
    assert {(target.setting, target.scheme) for target in SMALL_TARGETS} == {
        (setting.name, scheme) for setting in SMALL_SETTINGS for scheme in setting.schemes
    }


@needs_native
def test_the_page_has_what_was_measured(capsys):
    settings = [replace(one, queries=12, heads=2, width=8, seconds=0.0) for one in SMALL_SETTINGS]
    result = measure_settings(settings, small_calls.time_small_calls)
    assert {row["pass"] for row in result["time"]} == {FORWARD, BOTH}
    assert all(
        row["error"] < (1e-4 if row["setting"].startswith("float32") else 0.1)
        for row in result["time"]
    )
    # Compiled it takes tens of seconds.
    eager = [name for name in small_calls.FIXED_COST_PASSES if "compiled" not in name]
    result["fixed_costs"] = small_calls.measure_fixed_costs(tuple(eager))
    rows = result["fixed_costs"]["rows"]
    assert len(rows) == 2 * len(eager)
    rows.append(
        {**rows[0], "pass": "compiled: forward", "beyond": dict.fromkeys(rows[0]["beyond"], 7)}
    )
    rows[0]["beyond"] = {"median": 40.4, "p20": 39.0, "p80": 41.0}
    rows[1]["beyond"] = {"median": 40.6, "p20": 39.0, "p80": 41.0}
    page = small_calls_section(result)
    assert page.count("| relpos native |") == len(SMALL_TARGETS)
    assert "| no terms | forward | 40 (39 to 41) | 40 |" in page
    assert "| no terms | forward with gradients | **41 (39 to 41), missed** | 40 |" in page
    assert "| no terms | compiled: forward | **7 (7 to 7), missed** | 0 |" in page
    lines = fixed_costs_verdict(result["fixed_costs"])
    assert "missed: fixed cost: no terms: forward with gradients: 41 us, not 40" in lines


def test_a_part_that_is_measured_again_leaves_the_other(monkeypatch, tmp_path, capsys):
    out = tmp_path / "small_calls.json"

    def run(said: str, *arguments: str) -> dict:
        measured = {"settings": {}, "time": [], "said": said}
        monkeypatch.setattr(program, "measure_settings", lambda *_: measured)
        monkeypatch.setattr(program, "measure_fixed_costs", lambda: {"rows": [], "said": said})
        monkeypatch.setattr(sys, "argv", ["small_calls", "--out", str(out), *arguments])
        program.main()
        return json.loads(out.read_text())

    first = run("first")
    again = run("again", "--parts", "fixed_costs")
    assert again == {**first, "fixed_costs": {"rows": [], "said": "again"}}
    assert run("at last", "--parts", "time") == {**again, "said": "at last"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "L=9", "--out", "part.json"], "--only: must be among"),
        (["--only", "float32, L=64, B=8"], "--out: must be given with --only"),
        (["--out", "."], "--out: must be a file, got the folder ."),
        (["--parts", "all"], "--parts: invalid choice: 'all'"),
    ],
)
def test_wrong_options_end_the_program_before_it_measures(
    arguments: list[str], message: str, refusal, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    work = "measure_settings", "measure_fixed_costs", "save"
    assert message in refusal(program, arguments, *work)
