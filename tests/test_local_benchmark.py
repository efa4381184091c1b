"""The benchmark of local attention on tiny inputs: its pairs, its rivals, its rows and its page."""

from __future__ import annotations

import json
import sys
from math import prod

import pytest
import torch

from benchmarks import local as program
from benchmarks.measure import local, local_memory, rolling
from benchmarks.report.local_section import local_section, local_targets, local_verdict
from benchmarks.workloads import flex
from benchmarks.workloads.local import DENSE_MASK, LOCAL_TERMS, PATTERNS, local_workload
from benchmarks.workloads.neighborhoods import DENSE_BIAS, Map, map_workload
from benchmarks.workloads.settings import Setting
from benchmarks.workloads.workload import NATIVE, UNIT, contenders, inputs
from relpos import attention, backends

LENGTH = 2200  # longer than two chunks, and no multiple of one

needs_native = pytest.mark.skipif(backends()["native"] is not None, reason="native cannot run here")


@pytest.mark.parametrize("name", PATTERNS)
def test_pairs_are_counted_as_flex_attention_is_told(name: str):
    i = torch.arange(LENGTH)
    allowed = PATTERNS[name].allows(torch.tensor(0), torch.tensor(0), i[:, None], i)
    assert PATTERNS[name].pairs(LENGTH) == allowed.sum()
    assert PATTERNS[name].share(LENGTH) == allowed.double().mean()


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("terms", LOCAL_TERMS)
@pytest.mark.parametrize("name", PATTERNS)
def test_every_contender_computes_the_same_pairs(monkeypatch, name: str, terms: str):
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)  # seconds each
    setting = Setting("tiny", LENGTH, (), batch=1, heads=1, width=8, backends=("native", "tiled"),
                      rivals=True)  # fmt: skip
    workload, tensors = local_workload(PATTERNS[name], terms, setting), inputs(setting)
    q, k, v = (x.detach().double() for x in tensors)
    exact = attention(
        q, k, v, workload.terms(q, k), backend="reference", **workload.arguments(q, k)
    )
    runs = contenders(setting, workload)
    assert {"FlexAttention", "relpos tiled"} < set(runs)
    assert (DENSE_MASK in runs) == (terms == LOCAL_TERMS[0])
    for contender, run in runs.items():
        if contender == UNIT or (contender == NATIVE and backends()["native"] is not None):
            continue
        assert (run(*tensors).double() - exact).abs().max() < 1e-5, contender


SMALL_MAP = Map((6, 7), 3, batch=2, heads=3, width=8)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("of", [SMALL_MAP, Map((5, 9), 4, batch=1, heads=2, width=8)])
def test_every_contender_computes_the_same_neighbourhoods(monkeypatch, of: Map):
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    workload, tensors = map_workload(of), inputs(of.setting)
    exact = attention(
        *(x.detach().double() for x in tensors),
        workload.terms(*tensors[:2]).map(lambda x: x.double()),
        backend="reference", **workload.local,
    )  # fmt: skip
    runs = contenders(of.setting, workload)
    assert set(runs) == {UNIT, NATIVE, "FlexAttention", DENSE_BIAS}
    for contender, run in runs.items():
        if contender == UNIT or (contender == NATIVE and backends()["native"] is not None):
            continue
        assert (run(*tensors).double() - exact).abs().max() < 1e-5, contender
    pairs = [(ranges[0, :, 1] - ranges[0, :, 0]).sum() for ranges in workload.local["key_ranges"]]
    assert of.share == pairs[0] * pairs[1] / prod(of.grid) ** 2


@pytest.fixture
def without_flex(monkeypatch):
    """FlexAttention takes tens of seconds to be compiled: its rows are those of a dense mask."""
    monkeypatch.setattr(flex, "_flex_attention", lambda allows=None: _dense(allows))


def _dense(allows):
    def run(q, k, v, score):
        i = torch.arange(q.shape[2])
        mask = allows(torch.tensor(0), torch.tensor(0), i[:, None], i)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    return run


@pytest.mark.slow
@pytest.mark.no_typecheck
@needs_native
@pytest.mark.costly(2, of="programs that measure")
def test_the_page_has_what_was_measured(without_flex, monkeypatch, capsys):
    one = "window (512, 0)"  # in a fresh process, seconds each
    monkeypatch.setattr(local_memory, "PATTERNS", {one: PATTERNS[one]})
    monkeypatch.setattr(local_memory, "LOCAL_TERMS", LOCAL_TERMS[:1])
    monkeypatch.setattr(local, "MAPS", {"3 x 3 of 6 x 7": SMALL_MAP})
    result = {
        "machine": {"threads": 2, "processor": "p", "capability": "c", "torch": "t", "commit": "x"},
        "length": 512,
        "cached": rolling.LEAST_TOKENS,
        "commits": {"maps": "y", "rolling": "z"},
        "processors": {"rolling": {"processor": "o", "capability": "d"}},
        "time": local.measure_floors(512, seconds=0),
        "maps": local.measure_maps(seconds=0),
        "growth": local.measure_growth(64, 128, seconds=0),
        "short": local.measure_short(64, seconds=0),
        "memory": local_memory.measure_memory(512),
        "rolling": rolling.measure_rolling(rolling.LEAST_TOKENS),
    }
    page = local_section(result)
    assert page.count(f"| {NATIVE} |") == len(PATTERNS) * len(LOCAL_TERMS) + 1
    assert "floor: 3 x 3 of 6 x 7: B=2, H=3, d=8." in page
    assert "Measured on 2 threads of an o (d), torch t, relpos z." in page
    assert len(local_targets(result)) == 12 + 12 + 4 + 1
    held: dict[str, list[int]] = {}
    for row in result["rolling"]["rows"]:
        held.setdefault(row["layer"], []).append(row["most_held_bytes"])
    assert len(set(held["window (512, 0)"][1:])) == 1  # it stays what it is
    assert held["no window"][-1] > held["window (512, 0)"][-1]
    result["time"][0]["floor_ratio"]["median"] = 9.0
    assert "missed: window (512, 0): no terms: forward: 9.00, not 1.35" in local_verdict(result)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--length", "5"], "--length: must be in 512..1048576, got 5"),
        (["--length", "9" * 20], "--length: must be in 512..1048576, got 999"),
        (["--cached", "5"], "--cached: must be in 5120..1048576, got 5"),
        (["--length", "512", "--out", "."], "--out: must be a file, got the folder ."),
        (["--length", "1024"], "--out: must be given with --length or --cached"),
    ],
)
def test_wrong_options_end_the_program_before_it_measures(
    arguments: list[str], message: str, refusal
):
    assert message in refusal(program, arguments, "machine")


def test_parts_that_are_measured_again_leave_the_others(monkeypatch, tmp_path, capsys):
    out = tmp_path / "local.json"

    def run(said: str, *arguments: str) -> dict:
        parts = {name: lambda _: [] for name in ("time", "growth", "short", "memory")}
        monkeypatch.setattr(program, "PARTS", {**parts, "rolling": lambda _: {"said": said}})
        monkeypatch.setattr(sys, "argv", ["local", "--out", str(out), *arguments])
        program.main()
        return json.loads(out.read_text())

    first = run("first")
    assert set(first["commits"]) == {"time", "growth", "short", "memory", "rolling"}
    again = run("again", "--parts", "rolling")
    assert again == {**first, "rolling": {"said": "again"}}
    with pytest.raises(SystemExit):
        run("of another length", "--parts", "rolling", "--length", "512")
    assert json.loads(out.read_text()) == again
    assert "must have been measured at {'length': 512" in capsys.readouterr().err
