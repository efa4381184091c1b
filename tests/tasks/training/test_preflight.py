"""What is refused before the data is read: devices, sizes and folders."""

import json

import pytest
import torch
from lightning.pytorch.utilities import rank_zero_only

from relpos_tasks.machine import memory_bytes
from relpos_tasks.music.train import check_training, train_position
from relpos_tasks.training import preflight
from relpos_tasks.training.checkpoint import ABOUT, WEIGHTS
from relpos_tasks.training.devices import Devices
from relpos_tasks.training.preflight import check_devices, check_memory
from relpos_tasks.training.run_folder import RESUME, only_run_in
from relpos_tasks.training.settings import TrainingError
from tests.tasks.small import CPU, SMALL, small


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        (Devices("abacus"), "--accelerator: must be one of auto, cpu, .* got 'abacus'"),
        (Devices("tpu"), r"--accelerator: must be one that this machine has \(cpu.*\), got 'tpu'"),
        (Devices("cpu", "0"), "--devices: must be how many, or which .*, got '0'"),
        (Devices("cpu", "none"), "--devices: must be how many, or which .*, got 'none'"),
        (Devices("cpu", "\u00b2"), "--devices: must be how many, or which"),
        (Devices("cpu", "99999999999"), "--devices: must be how many, or which"),
        (Devices("cpu", "99"), "--devices: must be at most the 2 processor cores, got 99"),
        (Devices("cpu", "2"), "--batch: must be a multiple of the 2 devices, got 3"),
        (Devices("cpu", "1", "12"), "--precision: must be one of 32-true, .*, got '12'"),
        (Devices("cpu", "0,1"), "^--accelerator cpu --devices 0,1 .*: refused by Lightning: .*int"),
    ],
)
def test_devices_that_cannot_be_used_are_refused_in_one_line(monkeypatch, devices, message):
    monkeypatch.setattr(preflight.os, "sched_getaffinity", lambda process: {0, 1})
    with pytest.raises(TrainingError, match=message) as error:
        check_devices(devices, batch=3)
    assert "\n" not in str(error.value)


def test_what_does_not_fit_the_memory_is_refused_with_both_sizes():
    check_memory(2**30, what="it", way_out="less", available=2**31)
    with pytest.raises(TrainingError, match=r"it must fit the memory of 2\.0 GiB, and takes"):
        check_memory(2**30 + 1, what="it", way_out="less", available=2**31)
    # At least the two tensors of the smallest test.
    assert memory_bytes() > 2**20


def test_a_new_folder_and_a_run_with_the_same_settings_are_let_pass(source, tmp_path):
    check_training(SMALL, folder=tmp_path / "new", devices=CPU)
    assert not list(tmp_path.iterdir())
    settings = small(steps=2)
    train_position("none", settings, source, folder=tmp_path, devices=CPU)
    check_training(settings, folder=tmp_path, devices=CPU)
    (tmp_path / ABOUT).write_text("[]")
    check_training(settings, folder=tmp_path, devices=CPU)


def test_a_folder_with_a_run_of_an_earlier_relpos_is_refused(source, tmp_path):
    train_position("none", small(steps=2), source, folder=tmp_path, devices=CPU)
    about = json.loads((tmp_path / ABOUT).read_text())
    del about["format"]
    (tmp_path / ABOUT).write_text(json.dumps(about))
    with pytest.raises(TrainingError, match=r"model.json: was written by an earlier relpos .*"):
        check_training(small(steps=2), folder=tmp_path, devices=CPU)


def test_a_folder_with_other_settings_or_another_run_at_work_is_refused(
    source, tmp_path, monkeypatch
):
    train_position("none", small(steps=2), source, folder=tmp_path, devices=CPU)
    with pytest.raises(TrainingError, match="steps was 2, now 3"):
        check_training(small(steps=3), folder=tmp_path, devices=CPU)
    with only_run_in(tmp_path):
        with pytest.raises(TrainingError, match="another run is at work in it"):
            check_training(small(steps=2), folder=tmp_path, devices=CPU)
        # The other devices of the run that is at work.
        monkeypatch.setattr(rank_zero_only, "rank", 1)
        check_training(small(steps=2), folder=tmp_path, devices=CPU)


@pytest.mark.parametrize("taken", [ABOUT, WEIGHTS, RESUME, "logs/metrics.csv"])
def test_a_folder_where_a_file_of_the_run_must_be_is_refused(tmp_path, taken):
    (tmp_path / taken).mkdir(parents=True)
    with pytest.raises(ValueError, match=f"{taken}: cannot be written, there is a folder"):
        check_training(SMALL, folder=tmp_path, devices=CPU)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"cannot be written, .*file is not a folder"):
        check_training(SMALL, folder=tmp_path / "file" / "run", devices=CPU)


def test_memory_that_runs_out_in_a_step_is_said_with_the_way_out(source, tmp_path, monkeypatch):
    def step(self, batch, index):
        return torch.empty(10**15)

    monkeypatch.setattr(
        "relpos_tasks.training.language_model.LanguageModelTask.training_step", step
    )
    with pytest.raises(TrainingError, match="for a step with --batch 2; choose a smaller one"):
        train_position("none", SMALL, source, folder=tmp_path, devices=CPU)
