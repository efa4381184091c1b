"""What the benchmark measures, what it is to reach, and its pages name the same things."""

from __future__ import annotations

import json
import subprocess
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
    every = (*scenes.TIME, *scenes.MEMORY, *benchmarks("cuda_scenes").ON_CUDA)
    assert len({scene.name for scene in every}) == len(every)
    assert {name for scene in every for name in scene.cases} <= set(cases.SCHEMES)


def test_every_target_is_measured(benchmarks):
    scenes, targets = benchmarks("scenes"), benchmarks("targets")
    every = (*scenes.TIME, *scenes.MEMORY, *benchmarks("cuda_scenes").ON_CUDA)
    by_name = {scene.name: scene for scene in every}
    for target in (*targets.TARGETS, *targets.CUDA_TARGETS):
        scene = by_name[target.scene]
        assert target.case in scene.cases, target.name
        assert target.label != "forward+backward" or scene.backward, target.name
        for one in (target.own, target.against):
            backend = one.removeprefix("relpos ")
            assert backend == one or backend in scene.backends, target.name


def test_every_note_is_about_a_target(benchmarks):
    targets = benchmarks("targets")
    every = (*targets.TARGETS, *targets.CUDA_TARGETS)
    assert len({(target.group, target.name) for target in every}) == len(every)
    assert set(targets.notes()) <= {target.name for target in every}


def test_native_was_the_fastest_wherever_it_was_measured(benchmarks):
    """As `auto` has it, and the committed run: no time is taken here."""
    rows = benchmarks("figures").load("choice.json")["choice"]
    assert {row["dtype"] for row in rows} == {"float32", "bfloat16"}
    assert [row for row in rows if row["native_slower_by"] > benchmarks("page").SLACK] == []


def test_every_scheme_and_rival_computes_what_is_exact(benchmarks, monkeypatch):
    scenes, cases = benchmarks("scenes"), benchmarks("cases")
    monkeypatch.setattr(cases, "_on_gpu", lambda scene, **others: others)  # those too
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
    scenes, comparing = benchmarks("scenes"), benchmarks("comparing")
    scene = replace(scenes.scene("L=64, B=1"), queries=8, seconds=0.0)
    rows = comparing.compare(scene, "Shaw keys + values, k=64")
    assert {row["pass"] for row in rows} == {"forward", "forward+backward"}
    for row in rows:
        assert row["ratios"]["plain SDPA"]["p20"] <= row["ratios"]["plain SDPA"]["p80"]
        assert row["error"] < 1e-4
        assert row["rounds"] >= 3
    assert "plain" in capsys.readouterr().out


@pytest.fixture
def no_gpu(benchmarks, monkeypatch):
    """The benchmark of a GPU on the CPU: its clock and its count of memory are stood in for."""
    on_cuda = benchmarks("on_cuda")
    memory = {"growth_mib": 1.0, "peak_mib": 2.0}
    facts = {"gpu": "no GPU", "driver": "0", "triton": "0"}
    monkeypatch.setattr(benchmarks("cuda_scenes").CudaScene, "device", "cpu")
    monkeypatch.setattr(on_cuda, "clock", benchmarks("timing").wall)
    monkeypatch.setattr(on_cuda, "enqueued", lambda run: 0.0)
    monkeypatch.setattr(on_cuda, "peak", lambda run: memory)
    monkeypatch.setattr(on_cuda, "release", lambda: None)
    monkeypatch.setattr(on_cuda, "gpu", lambda: facts)
    return on_cuda


def small(benchmarks, names: str, **settings):
    """A few cases in a scene of the GPU's, at a size for the CPU."""
    scenes = benchmarks("cuda_scenes")
    scene = next(one for one in scenes.ON_CUDA if one.name == scenes.cuda_name(4096, 64))
    cases = tuple(name for name in benchmarks("cases").SCHEMES if name.startswith(names))
    small = {"queries": 16, "batch": 2, "heads": 2, "width": 8, "dtype": "float32", "seconds": 0.0}
    return replace(scene, cases=cases, **{**small, "backends": ("tiled",), **settings})


def test_the_page_has_what_was_measured_on_a_gpu(benchmarks, no_gpu, tmp_path, capsys):
    out = tmp_path / "cuda.json"
    result = no_gpu.measure((small(benchmarks, "logits"),), out, minutes=1)
    assert json.loads(out.read_text())["time"] == result["time"]
    assert {row["pass"] for row in result["time"]} == {"forward", "forward+backward"}
    assert all(row["unit"] == "flash" and row["error"] < 1e-4 for row in result["time"])
    assert [row["peak_ratio"] for row in result["memory"]] == [1.0]
    assert result["left_out"] == []
    result = json.loads(out.read_text().replace("relpos tiled", "relpos triton"))
    result["time"][0]["ratios"]["plain SDPA"]["median"] = 9.0
    tables, verdict = benchmarks("tables"), benchmarks("targets").verdict(result)
    page = "\n\n".join(benchmarks("page").on_cuda(result))
    assert "### L=4096, B=4, d=64" in page
    assert "one no GPU (driver 0)" in page
    assert "Left out" not in page
    assert ": 3 measured, " in verdict.splitlines()[-1]
    assert "missed: L=4096, B=4, d=64: logits, causal (Inkling): forward: 9.00, not 1.3" in verdict
    text = tables.README.read_text()
    result_on_cpu = benchmarks("figures").load("cpu.json")
    assert "| L=4096, B=4, d=64 | logits, causal (Inkling) |" in tables.readme(
        text, result_on_cpu, result
    )
    without = benchmarks("page").without_cuda()
    assert "| L=4096, B=4, d=64 | grid, per axis (SAM) | not measured | 1.15 |" in without[-1]


def test_what_cannot_run_on_a_gpu_is_left_out_with_its_reason(benchmarks, no_gpu, tmp_path, capsys):
    scene = small(benchmarks, "Huang", backends=("tiled", "none"))
    result = no_gpu.measure((scene,), tmp_path / "cuda.json", minutes=1)
    assert {row["contender"] for row in result["time"]} == {"relpos tiled"}
    (left,) = result["left_out"]
    assert left["contender"] == "relpos none"
    assert left["reason"].startswith("ValueError: attention: backend must be")
    assert left["reason"] in "\n".join(benchmarks("page").on_cuda(result))


def test_a_rival_that_takes_too_long_is_left_out(benchmarks, no_gpu, monkeypatch, capsys):
    monkeypatch.setattr(no_gpu, "clock", lambda run, repeats: 3.0)
    found = no_gpu.compare(small(benchmarks, "Huang"), "Huang, global, causal")
    assert found["time"] == []
    assert found["left_out"][0]["reason"] == "one forward and backward takes 3.0 s"


def test_what_the_time_leaves_no_room_for_is_left_out(benchmarks, no_gpu, tmp_path, capsys):
    result = no_gpu.measure((small(benchmarks, "Shaw"),), tmp_path / "cuda.json", minutes=-1)
    assert result["time"] == []
    assert {row["reason"] for row in result["left_out"]} == {"the -1 minutes were over"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_benchmark_says_so():
    command = [sys.executable, str(ROOT / "benchmarks" / "attention.py"), "--device", "cuda"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert ran.stderr == "benchmarks/attention.py: --device cuda needs a CUDA device\n"
