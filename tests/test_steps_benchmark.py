"""The benchmark of training steps on tiny models: what it times, and what it refuses."""

from __future__ import annotations

import json
import sys

import pytest
import torch

from benchmarks import steps
from benchmarks.measure import training_memory
from benchmarks.measure.training_steps import TrainingSteps
from benchmarks.report.league_grounds import GROUNDS
from benchmarks.workloads.training_jobs import NONE, PRESETS, TRAINING_JOBS


@pytest.mark.parametrize("task", TRAINING_JOBS)
def test_every_scheme_of_the_league_is_timed_at_every_preset(task):
    for preset in PRESETS:
        schemes = TRAINING_JOBS[task](preset).schemes
        assert NONE in schemes
        assert len(set(schemes)) == len(schemes)
        assert all(GROUNDS[task].title_of(scheme) is not None for scheme in schemes)


@pytest.mark.parametrize("task", TRAINING_JOBS)
def test_steps_of_every_task_lower_the_loss_of_a_batch(task):
    job = TRAINING_JOBS[task]("tiny")
    for before, again in zip(job.batches(2), job.batches(2), strict=True):
        assert all(torch.equal(one, other) for one, other in zip(before, again, strict=True))
    (batch,) = job.batches(1)
    training = TrainingSteps(job.task(NONE))
    training.task.model.eval()  # without dropout
    losses = [training.step(batch) for _ in range(4)]
    assert losses[-1] < losses[0]


def test_sentences_fill_batches_of_the_tokens_that_are_said():
    job = TRAINING_JOBS["translation"]("default")
    assert job.batch == "at most 2,048 tokens on either side, in sentences of about 15"
    batches = job.batches(40)
    sizes = [max(source.numel(), target.numel()) for source, target, _ in batches]
    assert max(sizes) <= 2048
    assert sum(sizes) / len(sizes) > 1800
    lengths = torch.cat([(source != 0).sum(1) for source, _, _ in batches])
    assert 14 < lengths.float().mean() < 17


@pytest.mark.no_typecheck
@pytest.mark.costly(2, of="programs that measure")
def test_the_program_writes_time_and_memory_of_each_scheme(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(
        steps, "growth_of_training", lambda task, preset, schemes: dict.fromkeys(schemes, 7.5)
    )
    out = tmp_path / "steps.json"
    arguments = ["--only", "translation", "--preset", "tiny", "--steps", "1", "--seconds", "0"]
    monkeypatch.setattr(sys, "argv", ["steps", *arguments, "--out", str(out)])
    steps.main()
    result = json.loads(out.read_text())
    rows = {row["scheme"]: row for row in result["steps"]}
    assert list(rows) == list(TRAINING_JOBS["translation"]("tiny").schemes)
    assert rows[NONE]["ratio"] == {"median": 1.0, "p20": 1.0, "p80": 1.0}
    assert all(row["growth_mib"] == 7.5 and row["rounds"] >= 3 for row in rows.values())
    assert list(result["batches"]) == ["translation"]
    assert result["machine"]["torch"] == torch.__version__


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "speech", "--out", "some.json"], "--only: must be among"),
        (["--only", "music"], "--out: must be given with --only"),
        (["--preset", "tiny"], "--out: must be given with --preset"),
        (["--steps", "0"], "--steps: must be at least 1, got 0"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is(
    arguments, message, refusal, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    assert message in refusal(steps, arguments, "measure")


@pytest.mark.slow
@pytest.mark.no_typecheck
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.costly(2, of="programs that measure")
def test_memory_is_that_of_a_fresh_process_for_each_scheme():
    growth = training_memory.growth_of_training("music", "default", ["absolute", "huang"])
    # The activations of a step alone: 3 layers, each 8 x 256 tokens of 6 * 128 + 2 * 512 numbers.
    least = 3 * 8 * 256 * (6 * 128 + 2 * 512) * 4 / 2**20
    assert all(least < mib < 8 * least for mib in growth.values())
    assert growth["huang"] == pytest.approx(growth["absolute"], rel=0.2)
