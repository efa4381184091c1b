"""The benchmark's code on tiny inputs: that it times, refuses and reports what it says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import (
    adapters,
    attention,
    busy,
    choice,
    decoding,
    generation,
    half,
    training,
)
from benchmarks.files import load
from benchmarks.measure import gpu, memory
from benchmarks.measure.passes import time_scheme
from benchmarks.measure.timing import interleaved, wall_clock
from benchmarks.report.benchmark_page import on_gpu, without_gpu
from benchmarks.report.choice_section import SLACK, choice_section
from benchmarks.report.documents import DOCUMENTS, filled, parts
from benchmarks.report.targets import GPU_TARGETS, TARGETS, notes, verdict
from benchmarks.workloads import schemes
from benchmarks.workloads.gpu_settings import GPU_SETTINGS, GpuSetting, gpu_setting_name
from benchmarks.workloads.schemes import SCHEMES, make_workload
from benchmarks.workloads.settings import (
    MEMORY_SETTINGS,
    TIME_SETTINGS,
    Setting,
    find_setting,
)
from benchmarks.workloads.workload import UNIT, contenders, exact, inputs
from relpos import backends

ROOT = Path(__file__).parent.parent
SETTINGS = (*TIME_SETTINGS, *MEMORY_SETTINGS, *GPU_SETTINGS)
TINY = Setting("tiny", 12, ("Shaw keys, k=64",), heads=2, width=8, seconds=0.0)


def test_every_settings_schemes_exist():
    assert len({setting.name for setting in SETTINGS}) == len(SETTINGS)
    assert {scheme for setting in SETTINGS for scheme in setting.schemes} <= set(SCHEMES)


def test_every_target_is_measured():
    by_name = {setting.name: setting for setting in SETTINGS}
    for target in (*TARGETS, *GPU_TARGETS):
        setting = by_name[target.setting]
        assert target.scheme in setting.schemes, target.name
        assert target.quantity != "forward+backward" or setting.backward, target.name
        for contender in (target.contender, target.against):
            backend = contender.removeprefix("relpos ")
            assert backend == contender or backend in setting.backends, target.name


def test_every_note_is_about_a_target():
    targets = (*TARGETS, *GPU_TARGETS)
    assert len({(target.group, target.name) for target in targets}) == len(targets)
    assert set(notes()) <= {target.name for target in targets}


@pytest.mark.parametrize("scheme", [name for name in SCHEMES if "dropout" not in name])
def test_every_scheme_and_rival_computes_what_is_exact(monkeypatch, scheme):
    monkeypatch.setattr(schemes, "_gpu_only", lambda setting, **runs: runs)  # those too
    setting = replace(TINY, backends=("tiled",), rivals=True)
    workload, tensors = make_workload(scheme, setting), inputs(setting)
    expected = exact(workload, *tensors)
    for contender, run in contenders(setting, workload).items():
        if contender not in (UNIT, "FlexAttention"):  # the latter is compiled
            torch.testing.assert_close(
                run(*tensors).double(), expected, rtol=1e-4, atol=1e-4, msg=contender
            )


def test_a_scheme_is_timed_as_the_pages_want_it(capsys):
    setting = replace(find_setting("L=64, B=1"), queries=8, seconds=0.0)
    rows = time_scheme(setting, "Shaw keys + values, k=64")
    assert {row["pass"] for row in rows} == {"forward", "forward+backward"}
    for row in rows:
        assert row["ratios"]["plain SDPA"]["p20"] <= row["ratios"]["plain SDPA"]["p80"]
        assert row["error"] < 1e-4
        assert row["rounds"] >= 3
    assert "plain" in capsys.readouterr().out


def test_slow_contenders_rest_and_the_leading_one_runs_in_every_round():
    clock = {"unit": 0.01, "slow": 1.0, "fast": 0.01}
    runs = {name: lambda name=name: name for name in clock}
    rounds = interleaved(
        runs, leading=("unit",), seconds=0.1, max_rounds=8, clock=lambda run, _: clock[run()]
    )
    assert len(rounds) == 8
    assert sum("slow" in timings for timings in rounds) == 3
    assert all("unit" in timings for timings in rounds)


def test_the_benchmark_writes_time_and_memory_of_the_settings_it_is_given(
    monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr(attention, "TIME_SETTINGS", (replace(TINY, backends=("tiled",)),))
    monkeypatch.setattr(attention, "MEMORY_SETTINGS", (replace(TINY, name="memory"),))
    measured = {"growth_mib": 1.0, "peak_mib": 2.0}
    monkeypatch.setattr(memory, "in_fresh_process", lambda *_: measured)
    out = tmp_path / "cpu.json"
    monkeypatch.setattr(sys, "argv", ["attention", "--skip-tests", "--out", str(out)])
    attention.main()
    result = json.loads(out.read_text())
    assert result["settings"]["tiny"]["workloads"] == ["Shaw keys, k=64"]
    assert {row["contender"] for row in result["time"]} == {"relpos tiled"}
    assert {row["contender"] for row in result["memory"]} == {"relpos native", "relpos tiled"}
    assert {row["peak_ratio"] for row in result["memory"]} == {1.0}


def test_a_machine_without_amx_leaves_the_result_in_16_bits_as_it_is(monkeypatch, capsys):
    def begun(*_, **__):
        pytest.fail("something is measured or saved")

    for name in ("measure_settings", "save"):
        monkeypatch.setattr(half, name, begun)
    monkeypatch.setattr(half, "instructions", lambda: "avx512")
    monkeypatch.setattr(sys, "argv", ["half"])
    half.main()
    assert "this machine has no AMX (avx512)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("program", "arguments", "message"),
    [
        (attention, ["--only", "L=9", "--out", "part.json"], r"--only: must be among .*'L=9'"),
        (attention, ["--only", "L=1024"], "--out: must be given with --only"),
        (attention, ["--backends", "tiled"], "--out: must be given with --backends"),
        (half, ["--only", "d=9", "--out", "part.json"], r"--only: must be among .*'d=9'"),
        (half, ["--only", "float16, d=64"], "--out: must be given with --only"),
        (choice, ["--only", "9 x 9", "--out", "part.json"], r"--only: must be among .*'9 x 9'"),
        (choice, ["--only", "16 x 16, B=1, H=8"], "--out: must be given with --only"),
        (decoding, ["--out", "."], "--out: must be a file, got the folder"),
        (generation, ["--presets", "default"], "--out: must be given with --presets or --tokens"),
        (generation, ["--tokens", "64"], "--out: must be given with --presets or --tokens"),
        (generation, ["--tokens", "1"], "must be 2 or more"),
        (generation, ["--out", "."], "--out: must be a file, got the folder"),
    ],
)
def test_a_part_must_be_there_and_never_takes_the_place_of_the_whole_result(
    program, arguments, message, monkeypatch, capsys, tmp_path
):
    def begun(*_, **__):
        pytest.fail("something is run")

    monkeypatch.setattr(subprocess, "run", begun)
    for name in ("measure", "save"):
        monkeypatch.setattr(program, name, begun, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["program", *arguments])
    with pytest.raises(SystemExit, match="2"):
        program.main()
    assert re.search(message, " ".join(capsys.readouterr().err.split()))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.no_typecheck
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_is_that_of_a_fresh_process_without_what_the_libraries_take():
    measured = memory.in_fresh_process("L=64, B=1", "Shaw keys, k=64", "relpos tiled")
    assert 0 <= measured["growth_mib"] < 64 < measured["peak_mib"]


@pytest.mark.skipif(backends()["native"] is not None, reason="native cannot run here")
def test_a_size_of_the_sweep_has_the_fastest_backend_and_what_auto_took():
    setting = next(one for one in choice.sweep() if one.name == "16 x 16, B=1, H=8")
    rows = choice.measure(setting, "no terms")
    assert [row["pass"] for row in rows] == ["forward", "forward+backward"]
    for row in rows:
        assert row["seconds"][row["fastest"]] == min(row["seconds"].values())
        assert row["auto"] == "native"
        assert row["auto_slower_by"] == row["native_slower_by"] >= 1


def test_the_page_lists_every_size_at_which_native_was_clearly_slower():
    result = load("choice.json")
    row = {**result["choice"][0], "workload": "made up", "fastest": "tiled"}
    slower = {**result, "choice": [*result["choice"], {**row, "native_slower_by": SLACK + 0.3}]}
    assert "| made up | float32 | forward | tiled | 1.35 | native |" in choice_section(slower)
    near = {**result, "choice": [*result["choice"], {**row, "native_slower_by": SLACK}]}
    assert "made up" not in choice_section(near)


def test_every_contender_trains_the_same_model(monkeypatch, capsys):
    rows = training.measure(window=8, steps=1, rounds=1)
    assert [row["contender"] for row in rows] == list(training.contenders())
    assert len({f"{row['first_loss']:.4f}" for row in rows}) == 1


@pytest.fixture
def no_gpu(monkeypatch):
    """The benchmark of a GPU on the CPU: its clock and its count of memory are stood in for."""
    measured = {"growth_mib": 1.0, "peak_mib": 2.0}
    facts = {"gpu": "no GPU", "driver": "0", "triton": "0"}
    monkeypatch.setattr(GpuSetting, "device", "cpu")
    monkeypatch.setattr(gpu, "event_clock", wall_clock)
    monkeypatch.setattr(gpu, "enqueue_seconds", lambda run: 0.0)
    monkeypatch.setattr(gpu, "peak_memory", lambda run: measured)
    monkeypatch.setattr(gpu, "free_memory", lambda: None)
    monkeypatch.setattr(gpu, "gpu", lambda: facts)


def small(prefix: str, **changes) -> GpuSetting:
    """The schemes that begin so in a setting of the GPU's, at a size for the CPU."""
    setting = next(one for one in GPU_SETTINGS if one.name == gpu_setting_name(4096, 64))
    names = tuple(name for name in SCHEMES if name.startswith(prefix))
    sizes = {"queries": 16, "batch": 2, "heads": 2, "width": 8, "dtype": "float32", "seconds": 0.0}
    return replace(setting, schemes=names, **{**sizes, "backends": ("tiled",), **changes})


def test_the_page_has_what_was_measured_on_a_gpu(no_gpu, tmp_path, capsys):
    out = tmp_path / "cuda.json"
    result = gpu.measure_on_gpu((small("logits"),), out, minutes=1)
    assert json.loads(out.read_text())["time"] == result["time"]
    assert {row["pass"] for row in result["time"]} == {"forward", "forward+backward"}
    assert all(row["unit"] == "flash" and row["error"] < 1e-4 for row in result["time"])
    assert [row["peak_ratio"] for row in result["memory"]] == [1.0]
    assert result["left_out"] == []
    result = json.loads(out.read_text().replace("relpos tiled", "relpos triton"))
    result["time"][0]["ratios"]["plain SDPA"]["median"] = 9.0
    page = "\n\n".join(on_gpu(result))
    assert "### L=4096, B=4, d=64" in page
    assert "one no GPU (driver 0)" in page
    assert "Left out" not in page
    lines = verdict(result, GPU_TARGETS).splitlines()
    assert ": 3 measured, " in lines[-1]
    assert "missed: L=4096, B=4, d=64: logits, causal (Inkling): forward: 9.00, not 1.3" in lines
    made = parts(load("cpu.json"), result)
    assert "| L=4096, B=4, d=64 | logits, causal (Inkling) |" in made["cuda"]
    assert "| logits, causal (Inkling) | " in made["gpu"]
    assert parts(load("cpu.json"))["cuda"] == "On a GPU: not measured."


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_document_has_the_parts_that_are_made_and_no_other(document):
    made = {name: f"made {name}" for name in DOCUMENTS[document]}
    text = (ROOT / document).read_text()
    text = filled(document, text, made)
    for name in DOCUMENTS[document]:
        assert f"<!-- {name} -->\nmade {name}\n<!-- /{name} -->" in text
    first = DOCUMENTS[document][0]
    for broken in (f"{text}\n<!-- other -->\n", text.replace(f"<!-- /{first} -->", "")):
        with pytest.raises(ValueError, match=f"^{document} must have"):
            filled(document, broken, made)


def test_what_takes_python_longer_than_the_gpu_is_timed_as_graphs_too(
    no_gpu, monkeypatch, tmp_path, capsys
):
    assert {one.queries for one in GPU_SETTINGS if one.captured} == {1, 1024}
    assert not any(one.captured for one in GPU_SETTINGS if one.rivals)
    monkeypatch.setattr(gpu, "captured", lambda run: (run, None))
    setting = small("logits", captured=True)
    result = gpu.measure_on_gpu((setting,), tmp_path / "cuda.json", minutes=1)
    assert result["left_out"] == []
    assert len(result["time"]) == 2
    assert all(row["captured"]["ratio"]["median"] > 0 for row in result["time"])
    page = "\n\n".join(on_gpu(result))
    assert "| forward+backward | forward, as graphs | forward+backward, as graphs |" in page

    def fails(run):
        raise RuntimeError("no graph of this")

    monkeypatch.setattr(gpu, "captured", fails)
    result = gpu.measure_on_gpu((setting,), tmp_path / "cuda.json", minutes=1)
    assert len(result["time"]) == 2
    assert all(
        row["captured"] == {"reason": "RuntimeError: no graph of this"} for row in result["time"]
    )
    assert "| not measured | not measured |" in "\n\n".join(on_gpu(result))


def test_without_a_gpu_the_page_has_the_targets_for_one():
    row = "| L=4096, B=4, d=64 | grid, per axis (SAM) | not measured | 1.15 |"
    assert row in without_gpu()[-1]


def test_what_cannot_run_on_a_gpu_is_left_out_with_its_reason(no_gpu, tmp_path, capsys):
    setting = small("Huang", backends=("tiled", "none"))
    result = gpu.measure_on_gpu((setting,), tmp_path / "cuda.json", minutes=1)
    assert {row["contender"] for row in result["time"]} == {"relpos tiled"}
    (left_out,) = result["left_out"]
    assert left_out["contender"] == "relpos none"
    assert left_out["reason"].startswith("ValueError: attention: backend must be")
    assert left_out["reason"] in "\n".join(on_gpu(result))


def test_a_rival_that_takes_too_long_is_left_out(no_gpu, monkeypatch, capsys):
    monkeypatch.setattr(gpu, "event_clock", lambda run, repeats: 3.0)
    rows = gpu.measure_scheme(small("Huang"), "Huang, global, causal")
    assert rows["time"] == []
    assert rows["left_out"][0]["reason"] == "one forward and backward takes 3.0 s"


def test_what_the_time_leaves_no_room_for_is_left_out(no_gpu, tmp_path, capsys):
    result = gpu.measure_on_gpu((small("Shaw"),), tmp_path / "cuda.json", minutes=-1)
    assert result["time"] == []
    assert {row["reason"] for row in result["left_out"]} == {"the -1 minutes were over"}


@pytest.mark.no_typecheck
def test_adapted_models_on_a_gpu_are_left_out_with_their_reasons(monkeypatch, tmp_path, capsys):
    """Whatever a model raises, the next one is measured."""
    seen = []

    def measured(model, **options):
        seen.append((model.name, options["device"], options["dtype"]))
        if len(seen) == 1:
            raise ValueError("adapt: no such class")
        return [{"model": model.name}]

    monkeypatch.setattr(adapters, "measure_time", measured)
    monkeypatch.setattr(adapters, "gpu", lambda: {"gpu": "no GPU"})
    names, out = [model.name for model in adapters.MODELS[:3]], tmp_path / "gpu_adapters.json"
    adapters.measure_on_gpu(names, 1.0, out)
    assert seen == [(name, "cuda", torch.bfloat16) for name in names]
    result = json.loads(out.read_text())
    assert result["time"] == [{"model": name} for name in names[1:]]
    assert result["left_out"] == [{"model": names[0], "reason": "ValueError: adapt: no such class"}]
    adapters.measure_on_gpu(names, -1.0, out)
    assert len(json.loads(out.read_text())["left_out"]) == 3


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(
    "more", [[], ["--equality"], ["--long"], ["--parts", "memory"]], ids=" ".join
)
def test_adapted_models_on_a_gpu_need_one(more: list[str], refusal, monkeypatch):
    given = ["--device", "cuda", *more]
    assert "--device: cuda needs a CUDA device" in refusal(adapters, given)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    if more:
        assert "measures time alone" in refusal(adapters, given)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_benchmark_says_so():
    command = [sys.executable, "-m", "benchmarks.attention", "--device", "cuda"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert ran.stderr == "benchmarks.attention: --device cuda needs a CUDA device\n"


def test_more_settings_are_of_a_gpu_and_have_names_of_their_own(refusal):
    from benchmarks import attention
    from benchmarks.workloads.gpu_settings import GPU_SETTINGS, MORE_GPU_SETTINGS

    assert "--more: must be with --device cuda" in refusal(attention, ["--more"])
    names = [setting.name for setting in (*GPU_SETTINGS, *MORE_GPU_SETTINGS)]
    assert len(set(names)) == len(names)
    assert {setting.dtype for setting in MORE_GPU_SETTINGS if "float32" in setting.name} == {
        "float32"
    }


def test_waiting_threads_are_compared_with_the_first_alone_round_by_round(monkeypatch):
    monkeypatch.setattr(busy, "ENVIRONMENTS", {"first": {}, "second": {}})
    steps = {
        busy.ALONE: {"first": [1.0, 4.0, 2.0], "second": [2.0, 8.0, 8.0]},
        busy.NEIGHBOUR: {"first": [3.0, 12.0, 2.0], "second": [1.0, 2.0, 1.0]},
    }
    assert busy.ratios(steps) == {
        busy.ALONE: {"first": 1.0, "second": 2.0},
        busy.NEIGHBOUR: {"first": 3.0, "second": 0.5},
    }


@pytest.mark.slow
@pytest.mark.no_typecheck
@pytest.mark.costly(2, of="programs that measure")
def test_a_worker_takes_its_threads_from_its_own_environment(monkeypatch):
    monkeypatch.setattr(busy, "ENVIRONMENTS", {"one": {"OMP_NUM_THREADS": "1"}})
    monkeypatch.setattr(busy, "PRESETS", ("tiny",))
    result = busy.measure(rounds=1, seconds=0.01)
    assert result["threads"] == {"one": 1}
    for beside in (busy.ALONE, busy.NEIGHBOUR):
        (taken,) = result["milliseconds"]["tiny"][beside]["one"]
        assert taken > 0
