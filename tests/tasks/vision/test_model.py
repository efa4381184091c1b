"""A checkpoint of a pixel classifier, with the images that it was trained beside."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest

from relpos_tasks.training.checkpoint import CheckpointError
from relpos_tasks.vision.digits import DigitSplit
from relpos_tasks.vision.model import check_digits, load_vision
from relpos_tasks.vision.train import train_position
from tests.tasks.small import CPU
from tests.tasks.vision.small import small


@pytest.fixture
def changed(compared, tmp_path):
    """Makes a checkpoint whose `model.json` says something else."""

    def change(**fields):
        folder, _ = compared
        about = json.loads((folder / "grid" / "model.json").read_text())
        (tmp_path / "model.json").write_text(json.dumps(about | fields))
        shutil.copy(folder / "grid" / "model.safetensors", tmp_path)
        return tmp_path

    return change


def test_other_images_than_those_held_out_are_refused(compared, digits):
    folder, _ = compared
    vision = load_vision(folder / "grid")
    check_digits(vision, digits, folder)
    with pytest.raises(CheckpointError, match="was trained beside other images"):
        check_digits(vision, DigitSplit(digits.train[1:], digits.valid, digits.held_out), folder)


@pytest.mark.parametrize("data", [None, {}, {"digest": 3}, "digits"])
def test_a_checkpoint_without_its_data_is_refused_in_one_line(changed, data):
    folder = changed(data=data)
    with pytest.raises(CheckpointError, match=r"data\.digest must be text") as error:
        load_vision(folder)
    assert str(error.value).startswith(f"{folder}: is not a checkpoint of the vision task: ")


@pytest.mark.parametrize("canvases", [0, 100_001, True, 2.0, None])
def test_a_number_of_canvases_that_cannot_be_measured_is_refused(changed, canvases):
    with pytest.raises(CheckpointError, match=r"measuring\.canvases must be in 1\.\.100,000, got "):
        load_vision(changed(measuring={"canvases": canvases}))


def test_a_checkpoint_that_says_no_number_is_measured_on_the_default_one(changed, compared):
    folder = changed()
    assert load_vision(folder).canvases == small().canvases
    about = json.loads((folder / "model.json").read_text())
    del about["measuring"]
    (folder / "model.json").write_text(json.dumps(about))
    assert load_vision(folder).canvases == 400


def test_a_training_goes_on_whatever_number_is_measured(compared, digits):
    folder, results = compared
    settings = replace(small(), canvases=small().canvases + 1)
    again = train_position("grid", settings, digits, folder=folder / "grid", devices=CPU)
    assert again.curves == results.trained["grid"][0].curves


def test_a_model_of_other_classes_is_refused(changed, compared):
    folder, _ = compared
    model = json.loads((folder / "grid" / "model.json").read_text())["model"]
    with pytest.raises(CheckpointError, match="head"):
        load_vision(changed(model=model | {"classes": 11}))


@pytest.mark.no_typecheck
def test_reading_a_picture_needs_no_lightning():
    modules = ("model", "picture", "show")
    wanted = "; ".join(f"import relpos_tasks.vision.{name}" for name in modules)
    check = f"{wanted}; import sys; sys.exit('lightning' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
