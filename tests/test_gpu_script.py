"""The script for GPU machines, as far as it runs without one."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from relpos import attention
from scripts import gpu, gpu_calls, gpu_checks

pytestmark = pytest.mark.no_typecheck

ROOT = Path(__file__).parent.parent
CHECKS = ("terms", "determinism", "touch", "capture")


def python(text: str, seconds: float = 60.0, **settings) -> dict:
    """What becomes of a stage that runs this text."""
    return gpu.perform(
        gpu.Stage("one", "truth", (sys.executable, "-c", text), 60, **settings), seconds, {}
    )


def test_a_stage_keeps_its_last_line_and_its_results(capfd):
    lines = """print('{"call": "a", "ok": true}'); print('{no json'); print('3 passed'); print()"""
    found = python(lines, note="so much")
    assert (found["outcome"], found["summary"], found["note"]) == ("ok", "3 passed", "so much")
    assert found["results"] == [{"call": "a", "ok": True}]


def test_a_failed_stage_keeps_what_failed(capfd):
    found = python("print('FAILED test_one'); print('1 failed'); raise SystemExit(3)")
    assert (found["outcome"], found["returncode"]) == ("failed", 3)
    assert found["failures"] == ["FAILED test_one"]


@pytest.mark.slow
def test_a_stage_is_interrupted_before_it_is_ended(monkeypatch, capfd):
    monkeypatch.setattr(gpu, "GRACE", 1.0)
    # A shell may have started the tests without Ctrl-C.
    sleeping = "import signal, time; signal.signal(signal.SIGINT, signal.default_int_handler)"
    sleeping += "\ntry: time.sleep(60)\nexcept KeyboardInterrupt: print('had to stop')"
    found = python(sleeping, seconds=3.0)
    assert (found["outcome"], found["summary"]) == ("timed out", "had to stop")
    deaf = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(60)"
    found = python(deaf, seconds=3.0)
    assert (found["outcome"], found["returncode"]) == ("timed out", -9)


def test_a_stage_without_its_tool_or_without_time_is_skipped():
    assert python("", missing="no tool")["summary"] == "no tool"
    assert python("", seconds=1.0)["summary"] == "no time was left"


def test_every_stage_is_run_and_written_down(monkeypatch, tmp_path, capfd):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    says = (sys.executable, "-c", "print('{minutes}', 'minutes')")
    fails = (sys.executable, "-c", "raise SystemExit(1)")
    monkeypatch.setattr(
        gpu,
        "stages",
        lambda *_: [gpu.Stage("bad", "truth", fails, 60), gpu.Stage("good", "verdict", says, 70)],
    )
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as end:
        gpu.main()
    assert end.value.code == 1
    bad, good = json.loads((tmp_path / "gpu.json").read_text())["stages"]
    assert (bad["outcome"], good["outcome"], good["summary"]) == ("failed", "ok", "0.50 minutes")
    assert capfd.readouterr().out.splitlines()[-2].startswith("bad          failed")


def test_what_went_well_is_kept_and_parts_are_run_alone(monkeypatch, tmp_path, capfd):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    counts = (sys.executable, "-c", f"open({str(tmp_path / 'count')!r}, 'a').write('x')")
    fails = (sys.executable, "-c", "raise SystemExit(1)")
    stages = [
        gpu.Stage("good", "truth", counts, 60), gpu.Stage("bad", "truth", fails, 60),
        gpu.Stage("other", "verdict", counts, 60),
    ]  # fmt: skip
    monkeypatch.setattr(gpu, "stages", lambda *_: stages)

    def run(*arguments: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", ["gpu.py", "--out", str(tmp_path), *arguments])
        with pytest.raises(SystemExit):
            gpu.main()
        return [one["name"] for one in json.loads((tmp_path / "gpu.json").read_text())["stages"]]

    assert run("--part", "truth") == ["good", "bad"]
    assert run("--part", "verdict") == ["good", "bad", "other"]
    assert (tmp_path / "count").read_text() == "xx"
    assert sorted(run("--resume")) == ["bad", "good", "other"]
    assert (tmp_path / "count").read_text() == "xx"
    run("--only", "good")
    assert (tmp_path / "count").read_text() == "xxx"


def test_a_part_takes_less_than_eight_minutes(tmp_path):
    for part in gpu.PARTS:
        assert (
            sum(one.seconds for one in gpu.stages(tmp_path, None) if one.part == part) <= 60 * 7.8
        )


def test_every_stage_runs_a_module_that_exists(tmp_path):
    for stage in gpu.stages(tmp_path, ""):
        module = stage.command[stage.command.index("-m") + 1]
        assert find_spec(module), stage.name


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_and_writes_nothing(tmp_path):
    command = [sys.executable, "-m", "scripts.gpu", "--out", str(tmp_path / "new")]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert ran.stderr == "scripts.gpu: there must be a CUDA device, got none\n"
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.costly(2, of="programs that measure")
def test_the_checks_pass_on_a_backend_that_is_right(check):
    found = list(gpu_checks.findings(check, "tiled"))
    assert len(found) >= 10
    assert [one for one in found if not one[1]] == []


@pytest.mark.parametrize("check", ["terms", "determinism", "capture"])
@pytest.mark.costly(2, of="programs that measure")
def test_the_checks_fail_on_a_backend_that_is_not(monkeypatch, check):
    def noisy(q, k, v, terms, backend, **settings):
        output = attention(q, k, v, terms, backend=backend, **settings)
        return output if backend == "reference" else output * (1 + 0.01 * torch.rand(()))

    monkeypatch.setattr(gpu_calls, "attention", noisy)
    monkeypatch.setattr(torch, "manual_seed", lambda seed: None)
    found = list(gpu_checks.findings(check, "tiled"))
    assert [one for one in found if one[1]] == []


def test_a_backend_that_refuses_is_found_for_each_call():
    found = list(gpu_checks.findings("touch", "none"))
    assert not any(right for _, right, _ in found)
    assert all(detail.startswith("ValueError: attention: backend") for _, _, detail in found)


@pytest.mark.slow
@pytest.mark.costly(2, of="programs that measure")
def test_the_check_of_several_devices_runs_on_two_processes():
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    command = (*torchrun, "-m", "scripts.gpu_ranks", "--device", "cpu", "--length", "130")
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = ran.stdout.splitlines()
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert len(lines) == 12
    assert all(line.startswith("ok: ") for line in lines)
