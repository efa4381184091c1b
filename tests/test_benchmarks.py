"""What the benchmark measures, what it is to reach, and its pages name the same things."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
import torch

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def benchmarks():
    """The benchmark's modules by name; they are scripts, not a package."""
    sys.path.insert(0, str(ROOT / "benchmarks"))

    def module(name: str) -> ModuleType:
        return import_module(name)

    yield module
    sys.path.remove(str(ROOT / "benchmarks"))


def test_every_scenes_cases_exist(benchmarks):
    scenes, cases = benchmarks("scenes"), benchmarks("cases")
    every = (*scenes.TIME, *scenes.MEMORY)
    assert len({scene.name for scene in every}) == len(every)
    assert {name for scene in every for name in scene.cases} <= set(cases.SCHEMES)


def test_every_target_is_measured(benchmarks):
    scenes, targets = benchmarks("scenes"), benchmarks("targets")
    by_name = {scene.name: scene for scene in (*scenes.TIME, *scenes.MEMORY)}
    for target in targets.TARGETS:
        scene = by_name[target.scene]
        assert target.case in scene.cases, target.name
        assert target.label != "forward+backward" or scene.backward, target.name
        for one in (target.own, target.against):
            backend = one.removeprefix("relpos ")
            assert backend == one or backend in scene.backends, target.name


def test_every_note_is_about_a_target(benchmarks):
    targets = benchmarks("targets")
    assert set(targets.notes()) <= {target.name for target in targets.TARGETS}


def test_native_was_the_fastest_wherever_it_was_measured(benchmarks):
    """As `auto` has it, and the committed run: no time is taken here."""
    rows = benchmarks("figures").load("choice.json")["choice"]
    assert {row["dtype"] for row in rows} == {"float32", "bfloat16"}
    assert [row for row in rows if row["native_slower_by"] > benchmarks("page").SLACK] == []


def test_every_scheme_and_rival_computes_what_is_exact(benchmarks):
    scenes, cases = benchmarks("scenes"), benchmarks("cases")
    scene = scenes.Scene("small", 12, (), heads=2, width=8, backends=("tiled",), rivals=True)
    for name in cases.SCHEMES:
        case, tensors = cases.make_case(name, scene), cases.inputs(scene)
        if case.dropout:
            continue
        exact = cases.exact(case, *tensors)
        for contender, run in cases.contenders(scene, case).items():
            if contender not in (cases.UNIT, "FlexAttention"):  # the latter is compiled
                torch.testing.assert_close(
                    run(*tensors).double(), exact, rtol=1e-4, atol=1e-4, msg=f"{name}: {contender}"
                )


def test_a_case_is_timed_as_the_pages_want_it(benchmarks, capsys):
    scenes, attention = benchmarks("scenes"), benchmarks("attention")
    scene = replace(scenes.scene("L=64, B=1"), queries=8, seconds=0.0)
    rows = attention.compare(scene, "Shaw keys + values, k=64")
    assert {row["pass"] for row in rows} == {"forward", "forward+backward"}
    for row in rows:
        assert row["ratios"]["plain SDPA"]["p20"] <= row["ratios"]["plain SDPA"]["p80"]
        assert row["error"] < 1e-4
        assert row["rounds"] >= 3
    assert "plain" in capsys.readouterr().out
