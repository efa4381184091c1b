"""Training: resumed to the bit, refused in words, logged."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from relpos_tasks.models import DecoderLM
from relpos_tasks.music.train import build, check_training, train_position
from relpos_tasks.training.checkpoint import ABOUT, WEIGHTS, load
from relpos_tasks.training.devices import Devices
from relpos_tasks.training.language_model import IGNORE, LanguageModelTask, nats
from relpos_tasks.training.run_folder import RESUME
from relpos_tasks.training.settings import TrainingError
from tests.tasks.small import CPU, SMALL, disk_with, small


def same(one, other) -> bool:
    return all(
        torch.equal(a, b)
        for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    )


@pytest.fixture
def stop_at(monkeypatch):
    """Ctrl-C as soon as a step begins; later steps run as if nothing had been done."""
    training_step = LanguageModelTask.training_step

    def stop(step):
        def interrupted(self, batch, index):
            if self.global_step == step:
                raise KeyboardInterrupt
            return training_step(self, batch, index)

        monkeypatch.setattr(LanguageModelTask, "training_step", interrupted)

    return stop


def test_a_stopped_and_resumed_run_ends_as_one_never_stopped(source, tmp_path, stop_at):
    whole = train_position("huang", SMALL, source, folder=tmp_path / "a", devices=CPU)
    handler = signal.getsignal(signal.SIGINT)
    for step in (1, 3, 4):
        stop_at(step)
        with pytest.raises(KeyboardInterrupt):
            train_position("huang", SMALL, source, folder=tmp_path / "b", devices=CPU)
    stop_at(None)
    resumed = train_position("huang", SMALL, source, folder=tmp_path / "b", devices=CPU)
    assert same(whole.model, resumed.model)
    assert whole.curves == resumed.curves
    # Each four steps, and after the last.
    assert [step for step, _ in resumed.curves["valid"]] == [4, 6]
    assert signal.getsignal(signal.SIGINT) is handler


@pytest.mark.parametrize(("steps", "measured"), [(3, [3]), (8, [4, 8]), (9, [4, 8, 9])])
def test_the_weights_that_are_written_are_validated(source, tmp_path, steps, measured):
    trained = train_position("none", small(steps=steps), source, folder=tmp_path, devices=CPU)
    assert [step for step, _ in trained.curves["valid"]] == measured
    again = train_position("none", small(steps=steps), source, folder=tmp_path, devices=CPU)
    assert again.curves == trained.curves


def test_the_checkpoint_holds_the_weights_of_its_step(source, tmp_path, stop_at):
    stop_at(5)
    with pytest.raises(KeyboardInterrupt):
        train_position("absolute", SMALL, source, folder=tmp_path, devices=CPU)
    kept = torch.load(tmp_path / RESUME, weights_only=True)
    assert kept["global_step"] == 4
    for name, tensor in load(tmp_path, DecoderLM).model.state_dict().items():
        assert torch.equal(tensor, kept["state_dict"][f"model.{name}"])


def test_a_finished_run_is_read_and_not_trained_again(source, tmp_path, stop_at):
    first = train_position("huang", SMALL, source, folder=tmp_path, devices=CPU)
    stop_at(0)
    again = train_position("huang", SMALL, source, folder=tmp_path, devices=CPU)
    assert same(first.model, again.model)
    assert first.curves == again.curves
    assert first.time.seconds >= again.time.seconds > 0


def test_the_seed_decides_everything(source, tmp_path):
    one, two, other = (
        train_position(
            "huang", small(seed=seed, steps=2), source, folder=tmp_path / name, devices=CPU
        )
        for name, seed in (("one", 1), ("two", 1), ("other", 2))
    )
    assert same(one.model, two.model)
    assert not same(one.model, other.model)


def test_models_differ_in_their_positions_alone(source):
    relative, absolute = (
        build(name, SMALL, source.vocabulary).state_dict() for name in ("huang", "absolute")
    )
    shared = [name for name in relative if "position" not in name]
    assert shared == [name for name in absolute if "position" not in name]
    assert all(torch.equal(relative[name], absolute[name]) for name in shared)


def test_other_settings_in_the_same_folder_are_refused(source, tmp_path):
    train_position("huang", small(steps=2), source, folder=tmp_path, devices=CPU)
    before = (tmp_path / ABOUT).read_text(), (tmp_path / WEIGHTS).read_bytes()
    with pytest.raises(TrainingError, match=r"other settings \(settings.training.steps was 2, now"):
        train_position("huang", small(steps=3), source, folder=tmp_path, devices=CPU)
    assert before == ((tmp_path / ABOUT).read_text(), (tmp_path / WEIGHTS).read_bytes())


def test_another_precision_in_the_same_folder_is_refused(source, tmp_path):
    settings = small(steps=2)
    train_position("huang", settings, source, folder=tmp_path, devices=CPU)
    mixed = Devices("cpu", "1", "bf16-mixed")
    for again in (
        lambda: train_position("huang", settings, source, folder=tmp_path, devices=mixed),
        lambda: check_training(settings, folder=tmp_path, devices=mixed),
    ):
        with pytest.raises(TrainingError, match="precision was 32-true, now bf16-mixed"):
            again()
    # Lightning's earlier name of the same one, and a run from before it was kept.
    check_training(settings, folder=tmp_path, devices=Devices("cpu", "1", "32"))
    about = json.loads((tmp_path / ABOUT).read_text())
    assert about.pop("precision") == "32-true"
    (tmp_path / ABOUT).write_text(json.dumps(about))
    kept = torch.load(tmp_path / RESUME, weights_only=True)
    torch.save(kept | {ABOUT: json.dumps(about)}, tmp_path / RESUME)
    check_training(settings, folder=tmp_path, devices=mixed)
    train_position("huang", settings, source, folder=tmp_path, devices=mixed)


@pytest.mark.parametrize("precision", ["64-true", "bf16-true", "bf16-mixed"])
def test_a_model_is_measured_in_float32_whatever_it_was_trained_in(source, tmp_path, precision):
    devices = Devices("cpu", "1", precision)
    trained, read = (
        train_position("huang", small(steps=2), source, folder=tmp_path, devices=devices).model
        for _ in range(2)
    )
    assert {tensor.dtype for tensor in trained.state_dict().values()} == {torch.float32}
    assert same(trained, read)
    assert trained(torch.zeros(1, 4, dtype=torch.long)).isfinite().all()


def test_a_broken_resume_file_is_named(source, tmp_path):
    train_position("none", small(steps=2), source, folder=tmp_path, devices=CPU)
    whole = (tmp_path / RESUME).read_bytes()
    torch.save([1], tmp_path / "other")
    for broken in (b"", b"PK broken", whole[: len(whole) // 2], (tmp_path / "other").read_bytes()):
        (tmp_path / RESUME).write_bytes(broken)
        with pytest.raises(
            TrainingError, match=r"last.ckpt: cannot be read; delete it to begin anew$"
        ):
            train_position("none", small(steps=2), source, folder=tmp_path, devices=CPU)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"global_step": "a"}, "cannot be read; delete it to begin anew"),
        ({"relpos": {}}, "cannot be read; delete it to begin anew"),
        ({"state_dict": [1]}, "must hold tensors by their names"),
        ({"state_dict": {"model": 1}}, "must hold tensors by their names"),
        ({"state_dict": {1: torch.ones(2)}}, "must hold tensors by their names"),
    ],
)
@pytest.mark.no_typecheck
def test_a_resume_file_with_other_things_in_it_is_named(changes, words, source, tmp_path):
    train_position("none", small(steps=2), source, folder=tmp_path, devices=CPU)
    kept = torch.load(tmp_path / RESUME, weights_only=True)
    torch.save(kept | changes, tmp_path / RESUME)
    with pytest.raises(ValueError, match=f"last.ckpt: {words}"):
        train_position("none", small(steps=2), source, folder=tmp_path, devices=CPU)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("loops", {}),
        ("loops", {"fit_loop": 3}),
        ("optimizer_states", [{"state": 1}]),
        ("optimizer_states", []),
        ("lr_schedulers", [7]),
        ("lr_schedulers", []),
        ("pytorch-lightning_version", 5),
        ("callbacks", 3),
    ],
)
def test_a_resume_file_that_lightning_cannot_take_up_is_named(
    part, value, source, tmp_path, stop_at
):
    stop_at(3)
    with pytest.raises(KeyboardInterrupt):
        train_position("none", SMALL, source, folder=tmp_path, devices=CPU)
    stop_at(None)
    kept = torch.load(tmp_path / RESUME, weights_only=True)
    torch.save(kept | {part: value}, tmp_path / RESUME)
    with pytest.raises(TrainingError, match=r"last.ckpt: cannot be read; delete it to begin anew$"):
        train_position("none", SMALL, source, folder=tmp_path, devices=CPU)


class OfBefore:
    """As a class that has been moved or removed since a checkpoint was written with it."""


def test_runs_of_an_earlier_relpos_are_refused_in_words(source, tmp_path):
    train_position("none", small(steps=2), source, folder=tmp_path, devices=CPU)
    kept = torch.load(tmp_path / RESUME, weights_only=True)
    about = json.loads(kept[ABOUT])
    assert about == json.loads((tmp_path / ABOUT).read_text())
    del about["format"]
    torch.save(kept | {ABOUT: json.dumps(about)}, tmp_path / RESUME)
    with pytest.raises(
        TrainingError,
        match=r"last.ckpt: was written by an earlier relpos \(no format number, this one reads "
        r"3\); choose another --name, or delete that folder$",
    ):
        train_position("none", small(steps=2), source, folder=tmp_path, devices=CPU)
    torch.save(kept | {"settings": OfBefore()}, tmp_path / RESUME)
    with pytest.raises(TrainingError, match=r"last.ckpt: cannot be read; delete it to begin anew$"):
        train_position("none", small(steps=2), source, folder=tmp_path, devices=CPU)


@pytest.mark.parametrize("lost", [[ABOUT], [WEIGHTS], [ABOUT, WEIGHTS]])
def test_a_finished_run_writes_again_what_was_lost(source, tmp_path, lost):
    train_position("huang", small(steps=2), source, folder=tmp_path, devices=CPU)
    before = {name: (tmp_path / name).read_bytes() for name in lost}
    for name in lost:
        (tmp_path / name).unlink()
    with pytest.raises(TrainingError, match="holds a run with other settings"):
        train_position("huang", small(steps=3), source, folder=tmp_path, devices=CPU)
    train_position("huang", small(steps=2), source, folder=tmp_path, devices=CPU)
    assert before == {name: (tmp_path / name).read_bytes() for name in lost}


@pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-true"])
@pytest.mark.parametrize("left", [0.0, 0.01, 0.9])
def test_a_finished_run_writes_again_what_was_cut_off(source, tmp_path, left, precision):
    devices = replace(CPU, precision=precision)
    train_position("huang", small(steps=2), source, folder=tmp_path, devices=devices)
    files = {name: (tmp_path / name).read_bytes() for name in (ABOUT, WEIGHTS)}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content[: int(left * len(content))])
    train_position("huang", small(steps=2), source, folder=tmp_path, devices=devices)
    assert files == {name: (tmp_path / name).read_bytes() for name in files}


@pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-true", "bf16-mixed"])
def test_a_finished_run_writes_nothing_that_is_there(source, tmp_path, precision):
    devices = replace(CPU, precision=precision)
    train_position("huang", small(steps=2), source, folder=tmp_path, devices=devices)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir() if path.is_file()}
    train_position("huang", small(steps=2), source, folder=tmp_path, devices=devices)
    after = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir() if path.is_file()}
    assert after == before


@pytest.mark.filterwarnings("ignore:Total length of")
def test_the_last_checkpoint_is_written_without_a_validation_too(source, tmp_path):
    # The last step is one after which to validate, and there is nothing to validate on.
    unwatched = replace(source, split=replace(source.split, valid=()))
    train_position("none", small(steps=4), unwatched, folder=tmp_path, devices=CPU)
    assert torch.load(tmp_path / RESUME, weights_only=True)["global_step"] == 4
    assert (tmp_path / WEIGHTS).exists()


def test_two_runs_at_once_in_one_folder_are_refused(source, tmp_path, monkeypatch):
    training_step = LanguageModelTask.training_step
    inner = []

    def second(self, batch, index):
        if not inner:
            inner.append(None)
            with pytest.raises(TrainingError, match="another run is at work in it"):
                train_position("none", small(steps=2), source, folder=tmp_path, devices=CPU)
        return training_step(self, batch, index)

    monkeypatch.setattr(LanguageModelTask, "training_step", second)
    train_position("none", small(steps=2), source, folder=tmp_path, devices=CPU)
    assert inner


@pytest.mark.parametrize("full", [WEIGHTS, RESUME, "logs/version_0/metrics.csv"])
def test_a_full_disk_is_named_and_the_checkpoint_before_it_stays(
    source, tmp_path, monkeypatch, full
):
    training_step = LanguageModelTask.training_step
    with ExitStack() as disk:

        def filled(self, batch, index):
            if self.global_step == 3:
                disk.enter_context(disk_with((tmp_path / full).stat().st_size - 1))
            return training_step(self, batch, index)

        monkeypatch.setattr(LanguageModelTask, "training_step", filled)
        with pytest.raises(OSError, match="File too large") as error:
            train_position("huang", SMALL, source, folder=tmp_path, devices=CPU)
    named = Path(error.value.filename)
    assert named == (tmp_path / full if full in (WEIGHTS, RESUME) else (tmp_path / full).parent)
    assert not list(tmp_path.glob(".part-*"))
    assert torch.load(tmp_path / RESUME, weights_only=True)["global_step"] == 2
    monkeypatch.setattr(LanguageModelTask, "training_step", training_step)
    resumed = train_position("huang", SMALL, source, folder=tmp_path, devices=CPU)
    assert resumed.curves["train"][-1][0] == 6


def test_weights_that_are_no_numbers_end_the_training_and_not_the_checkpoint(
    source, tmp_path, monkeypatch
):
    training_step = LanguageModelTask.training_step

    def spoiled(self, batch, index):
        return training_step(self, batch, index) * (torch.nan if self.global_step == 2 else 1)

    monkeypatch.setattr(LanguageModelTask, "training_step", spoiled)
    with pytest.raises(TrainingError, match="must stay finite, got NaN or infinity by step 4; try"):
        train_position("none", SMALL, source, folder=tmp_path, devices=CPU)
    assert torch.load(tmp_path / RESUME, weights_only=True)["global_step"] == 2
    load(tmp_path, DecoderLM)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda kept: kept.pop("optimizer_states"), "last.ckpt: cannot be read; delete it"),
        (lambda kept: kept["state_dict"].popitem(), "last.ckpt: .* must be .*, got nothing"),
        (
            lambda kept: kept["state_dict"].update(
                {name: tensor.long() for name, tensor in kept["state_dict"].items()}
            ),
            "last.ckpt: .* must be one of .*, got int64",
        ),
    ],
)
def test_a_resume_file_without_what_is_needed_is_named(source, tmp_path, spoil, message):
    train_position("none", small(steps=2), source, folder=tmp_path, devices=CPU)
    kept = torch.load(tmp_path / RESUME, weights_only=True)
    spoil(kept)
    torch.save(kept, tmp_path / RESUME)
    with pytest.raises(ValueError, match=message):
        train_position("none", small(steps=2), source, folder=tmp_path, devices=CPU)


def test_a_log_says_where_training_begins_and_how_it_goes_on(source, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("relpos_tasks.training.progress_bar._SECONDS_BETWEEN_LINES", 0.0)
    trained = train_position("none", small(steps=30), source, folder=tmp_path, devices=CPU)
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(",")[0] for line in lines] == [
        f"none (seed 3): step {n}/30" for n in range(31)
    ]
    assert f"valid {trained.curves['valid'][-1][1]:.3f}" in lines[-1]


def test_unknown_devices_are_refused_in_one_line(source, tmp_path):
    with pytest.raises(TrainingError, match="abacus"):
        train_position("none", SMALL, source, folder=tmp_path, devices=Devices("abacus"))
    assert not (tmp_path / ABOUT).exists()


def test_logs_are_written_as_csv_and_for_tensorboard(source, tmp_path):
    train_position("none", small(steps=2), source, folder=tmp_path, devices=CPU)
    logs = tmp_path / "logs" / "version_0"
    header = (logs / "metrics.csv").read_text().splitlines()[0].split(",")
    assert {"train/loss", "train/tokens_per_second", "valid/loss"} <= set(header)
    assert list(logs.glob("events.out.tfevents.*"))


def test_the_rate_rises_and_falls_to_nothing(source):
    task = LanguageModelTask(
        build("none", SMALL, source.vocabulary), small(steps=50, warmup=10).training
    )
    rates = [task._rate(step) for step in range(50)]
    assert max(rates) == rates[9] == 1
    assert rates == sorted(rates[:10]) + sorted(rates[10:], reverse=True)
    assert 0 < rates[-1] < 0.01


def test_ignored_targets_cost_nothing():
    logits = torch.zeros(1, 3, 5)
    lost = nats(logits, torch.tensor([[1, IGNORE, 4]]))
    torch.testing.assert_close(lost, torch.tensor([[5.0, 1, 5]]).log())


SCRIPT = """
import sys, time
from pathlib import Path
import numpy as np, torch
from relpos_tasks.music.train import train_position
from relpos_tasks.training.language_model import LanguageModelTask
from tests.tasks.small import CPU, small, source_from
torch.set_num_threads(1)
training_step = LanguageModelTask.training_step
def slow(self, batch, index):
    if self.global_step >= 5:
        print("here", flush=True)
        time.sleep(60)
    return training_step(self, batch, index)
LanguageModelTask.training_step = slow
source = source_from(np.random.default_rng(5))
train_position("huang", small(), source, folder=Path(sys.argv[1]), devices=CPU)
"""


@pytest.mark.slow
@pytest.mark.no_typecheck
def test_kill_9_loses_nothing_before_the_last_checkpoint(source, tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "b")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=Path(__file__).parents[3],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"here\n"
        time.sleep(0.1)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    (tmp_path / "b" / ".part-xyz.ckpt").write_bytes(b"half")
    resumed = train_position("huang", SMALL, source, folder=tmp_path / "b", devices=CPU)
    whole = train_position("huang", SMALL, source, folder=tmp_path / "a", devices=CPU)
    assert same(whole.model, resumed.model)
    assert whole.curves == resumed.curves
    assert not list((tmp_path / "b").glob(".part-*"))
