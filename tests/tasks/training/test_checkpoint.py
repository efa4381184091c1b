"""A model on disk: the same back, or one line that says what is wrong."""

import json

import pytest
import torch
from safetensors.torch import load as weights_of
from safetensors.torch import save as bytes_of

from relpos_tasks.machine import versions
from relpos_tasks.models.decoder import DecoderConfig, DecoderLM
from relpos_tasks.training.checkpoint import (
    ABOUT,
    WEIGHTS,
    CheckpointError,
    load,
    save_about,
    save_weights,
)
from relpos_tasks.training.settings import settings_differ


@pytest.fixture
def model():
    return DecoderLM(DecoderConfig(vocabulary=7, width=8, layers=1, heads=2, max_length=9))


@pytest.fixture
def folder(model, tmp_path):
    save_about(tmp_path, {"model": model.config.to_dict(), "versions": versions()})
    save_weights(tmp_path, model)
    return tmp_path


@pytest.mark.parametrize("name", [".", WEIGHTS])
def test_a_checkpoint_gives_the_same_model_back(model, folder, name):
    found = load(folder / name, DecoderLM)
    tokens = torch.arange(5)[None]
    assert not found.model.training
    torch.testing.assert_close(found.model(tokens), model.eval()(tokens), rtol=0, atol=0)
    assert found.about["versions"]["torch"]
    assert found.folder.samefile(folder)


def test_a_checkpoint_of_before_there_were_windows_sees_all_tokens(model, tmp_path):
    fields = model.config.to_dict()
    assert fields.pop("attention_window") is None
    save_about(tmp_path, {"model": fields, "versions": versions()})
    save_weights(tmp_path, model)
    assert load(tmp_path, DecoderLM).model.config == model.config
    assert settings_differ({"model": fields}, {"model": model.config.to_dict()}) is None


def test_only_whole_files_are_left(folder):
    assert sorted(file.name for file in folder.iterdir()) == [ABOUT, WEIGHTS]


def missing(folder):
    return folder / "nothing"


def without_weights(folder):
    (folder / WEIGHTS).unlink()
    return folder


def without_about(folder):
    (folder / ABOUT).unlink()
    return folder


def other_file(folder):
    (folder / "notes.txt").write_text("?")
    return folder / "notes.txt"


def broken_weights(folder):
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:100])
    return folder


def broken_about(folder):
    (folder / ABOUT).write_text('{"model": ')
    return folder


def about_a_list(folder):
    (folder / ABOUT).write_text("[1]")
    return folder


def nested_about(folder):
    (folder / ABOUT).write_text('{"model": ' + "[" * 100_000)
    return folder


def edited(**fields):
    def edit(folder):
        about = json.loads((folder / ABOUT).read_text())
        save_about(folder, {"model": about["model"] | fields})
        return folder

    return edit


def of_format(number):
    def write(folder):
        about = json.loads((folder / ABOUT).read_text())
        del about["format"]
        about |= {} if number is None else {"format": number}
        (folder / ABOUT).write_text(json.dumps(about))
        return folder

    return write


def not_finite(folder):
    model = load(folder, DecoderLM).model
    with torch.no_grad():
        model.head.weight[3, 2] = torch.nan
    save_weights(folder, model)
    return folder


def weights_in(dtype):
    def convert(folder):
        state = weights_of((folder / WEIGHTS).read_bytes())
        state = {name: tensor.to(dtype) for name, tensor in state.items()}
        (folder / WEIGHTS).write_bytes(bytes_of(state))
        return folder

    return convert


def too_large(folder):
    model = load(folder, DecoderLM).model.double()
    with torch.no_grad():
        model.head.weight[3, 2] = 1e300
    save_weights(folder, model)
    return folder


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_weights_in_another_precision_of_training_are_taken(folder, dtype):
    assert load(weights_in(dtype)(folder), DecoderLM).model.head.weight.dtype == torch.float32


def no_such_model(folder):
    save_about(folder, {"model": {"vocabulary": 7, "wdith": 8}})
    return folder


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (missing, "nothing: no such file or folder"),
        (without_weights, "is not a checkpoint, model.safetensors is missing"),
        (without_about, "is not a checkpoint, model.json is missing"),
        (other_file, "must be a folder with model.safetensors, or that file"),
        (broken_weights, "model.safetensors: not a safetensors file: "),
        (broken_about, "model.json: not JSON: "),
        (about_a_list, "model.json: must be an object with 'model', got "),
        (no_such_model, "model.json: describes no model: .*wdith"),
        (
            of_format(None),
            r"model.json: was written by an earlier relpos \(no format number, this one reads 3\); "
            "use that relpos, or train the model again$",
        ),
        (
            of_format(1),
            r"model.json: was written by an earlier relpos \(format 1, this one reads 3",
        ),
        (
            of_format(4),
            r"model.json: was written by a newer relpos \(format 4, this one reads 3\); ",
        ),
        (of_format("x"), r"model.json: was written by an earlier relpos \(format 'x', this one "),
        (nested_about, "model.json: not JSON: "),
        (
            edited(max_length=10),
            r"position.keys must be \(1, 10, 4\) by model.json, got \(1, 9, 4\)",
        ),
        (edited(position="none"), "position.keys must be absent by model.json, got "),
        # None of these is given memory for.
        (edited(max_length=10**12), r"position.keys must be \(1, 1000000000000, 4\) by model.json"),
        (edited(vocabulary=10**30), "model.json: describes no model: "),
        (edited(layers=10**12), "describes no model: layers must be those of model.safetensors"),
        (edited(width="8"), "model.json: describes no model: .*width"),
        (weights_in(torch.int64), "must be one of float32, float64, float16, bfloat16, got int64"),
        (weights_in(torch.bool), "model.safetensors: .* got bool"),
        (weights_in(torch.complex64), "model.safetensors: .* got complex64"),
        (weights_in(torch.float8_e4m3fn), "model.safetensors: .* got float8_e4m3fn"),
        (too_large, "model.safetensors: head.weight must be finite, got NaN or infinity"),
        (not_finite, "model.safetensors: head.weight must be finite, got NaN or infinity"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(folder, spoil, message):
    with pytest.raises(CheckpointError, match=message) as error:
        load(spoil(folder), DecoderLM)
    assert "\n" not in str(error.value)


def test_a_checkpoint_of_another_task_is_named(model, folder):
    about = {"task": "music", "model": model.config.to_dict()}
    save_about(folder, about)
    assert load(folder, DecoderLM, task="music").about["task"] == "music"
    with pytest.raises(
        CheckpointError, match="must be a checkpoint of the vision task, got one of music"
    ):
        load(folder, DecoderLM, task="vision")


def test_a_folder_of_checkpoints_names_them(folder):
    inside = folder / "run" / "huang"
    inside.mkdir(parents=True)
    (folder / WEIGHTS).rename(inside / WEIGHTS)
    with pytest.raises(CheckpointError, match="did you mean one of ") as error:
        load(inside.parent, DecoderLM)
    assert str(inside) in str(error.value)
