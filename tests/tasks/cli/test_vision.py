"""`relpos vision ...` as it is typed: what each command prints and writes, and what it refuses."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from relpos_tasks.cli.vision import MapPosition
from relpos_tasks.cli.vision_options import VisionPreset
from relpos_tasks.vision.canvas import TESTS
from relpos_tasks.vision.settings import PRESETS
from tests.tasks.vision.small import QUICK


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory):
    """The folder of a run of `relpos vision compare` in a process of its own, and the process."""
    runs = tmp_path_factory.mktemp("runs")
    done = subprocess.run(
        [sys.executable, "-m", "relpos", "vision", "compare", *QUICK, "--runs", str(runs)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return runs / "vision-tiny", done


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """A folder with pictures that can be read, and files that cannot."""
    folder = tmp_path_factory.mktemp("pictures")
    paper = np.full((12, 20), 255, np.uint8)
    paper[2:10, 3:6] = paper[2:10, 12:15] = 0
    Image.fromarray(paper).save(folder / "two.png")
    Image.fromarray(np.kron(paper, np.ones((40, 40), np.uint8))).save(folder / "large.png")
    Image.fromarray(np.full((9, 9), 90, np.uint8)).save(folder / "blank.png")
    (folder / "text.png").write_text("no picture")
    return folder


@pytest.mark.no_typecheck
def test_compare_prints_the_tables_and_the_report(run_folder):
    folder, done = run_folder
    lines = done.stdout.splitlines()
    for test in TESTS:
        assert f"held out, {test}: share of ink pixels labelled rightly" in lines
    for name in ("none", "absolute", "grid"):
        assert sum(line.startswith(f"  {name} ") for line in lines) == len(TESTS)
    assert lines[-1] == f"report: {folder / 'report.html'}"
    assert (folder / "report.html").is_file()
    assert "Warning" not in done.stderr


def test_evaluate_measures_as_compare_did(run_folder, relpos):
    folder, _ = run_folder
    measured = json.loads((folder / "metrics.json").read_text())["held_out"]["grid"]
    status, out, _ = relpos("vision", "evaluate", folder / "grid")
    assert status == 0
    assert out.splitlines()[0] == "held out, grid: share of ink pixels labelled rightly"
    for line, test in zip(out.splitlines()[1:], TESTS, strict=True):
        assert line.split() == [test, f"{measured[test]:.4f}"]


def test_what_settings_are_chosen_on_is_measured_on_request(run_folder, relpos):
    folder, _ = run_folder
    arguments = ["vision", "evaluate", folder / "grid"]
    held_out = relpos(*arguments)[1]
    status, out, _ = relpos(*arguments, "--valid")
    assert status == 0
    assert out.splitlines()[0].startswith("validation, grid: ")
    assert out.splitlines()[1:] != held_out.splitlines()[1:]


def test_train_leaves_a_checkpoint_and_prints_its_accuracy(relpos, tmp_path):
    given = ["--position", "convolution", "--preset", "botnet", "--steps", "1", "--batch", "1"]
    status, out, _ = relpos(
        "vision", "train", *given, "--runs", tmp_path, "--name", "one", "--accelerator", "cpu"
    )
    assert status == 0
    folder = tmp_path / "one" / "convolution"
    assert out.splitlines()[0].startswith("validation at step 1, share of ink pixels")
    assert out.splitlines()[-1] == f"checkpoint: {folder}"
    assert (folder / "model.safetensors").is_file()


def test_show_reads_a_picture_and_draws_its_labels(run_folder, pictures, relpos, tmp_path):
    folder, _ = run_folder
    for name, options in (("two", []), ("large", ["--digit-height", 320])):
        out = tmp_path / f"{name}.png"
        status, said, err = relpos(
            "vision", "show", folder / "grid", pictures / f"{name}.png", "--out", out, *options
        )
        assert (status, err) == (0, "")
        lines = said.splitlines()
        assert lines[0].endswith(", dark on light")
        assert lines[1].startswith("read: ")
        assert len(lines[1].split()) == 3
        assert all("of 24 ink pixels agree" in line for line in lines[2:4])
        assert "rows 2-9, columns 3-5" in lines[2]
        assert lines[4] == f"wrote {out}"
        with Image.open(out) as drawn:
            assert drawn.width > 500


def test_the_preset_says_what_is_compared_by_default(relpos, monkeypatch):
    asked = []

    def refused(settings, comparison, **_):
        asked.append(tuple(comparison.positions))
        raise ValueError("enough")

    monkeypatch.setattr("relpos_tasks.vision.compare.check_comparison", refused)
    for name in ("default", "botnet"):
        assert relpos("vision", "compare", f"--preset={name}")[::2] == (2, "relpos: enough\n")
    assert asked == [PRESETS[name].compared for name in ("default", "botnet")]


def test_positions_and_presets_are_those_of_the_library():
    assert [str(position) for position in MapPosition] == PRESETS["botnet"].positions
    assert [str(preset) for preset in VisionPreset] == list(PRESETS)


# {grid} stands for a trained model, {runs} for the folder of runs, {pictures} for that of pictures.
COMPARE, TRAIN = "vision compare", "vision train --position grid"
SHOW = "vision show {grid} {pictures}"

REFUSED = [
    ("vision evaluate nowhere", "nowhere: no such file or folder"),
    ("vision evaluate {grid} --canvases 0", "Invalid value for '--canvases'"),
    ("vision show nowhere {pictures}/two.png", "nowhere: no such file or folder"),
    (f"{SHOW}/no.png", "/no.png: No such file or directory"),
    (f"{SHOW}", ": Is a directory"),
    (f"{SHOW}/text.png", "/text.png: cannot be read as a picture: no picture that Pillow knows"),
    (f"{SHOW}/blank.png", "/blank.png: must show ink on paper, got a picture of one shade"),
    (f"{SHOW}/large.png", "got 800 x 480; say how high they are with --digit-height, or cut it"),
    (f"{SHOW}/two.png --digit-height 0", "Invalid value for '--digit-height'"),
    (f"{SHOW}/two.png --out a.jpg", "'--out': must end in .png or .svg, got 'a.jpg'"),
    (f"{SHOW}/two.png --out {{pictures}}/two.png", "--out: must be another file than the one that"),
    (f"{SHOW}/two.png --out {{pictures}}/two.png/a.png", "/a.png: cannot be written, "),
    ("vision train", "Missing option '--position'"),
    ("vision train --position shaw", "'shaw' is not one of 'none'"),
    ("vision train --position convolution", "position must be one of 'none', "),
    (f"{TRAIN} --batch 99999999999", "choose a smaller --batch"),
    (
        f"{TRAIN} --runs {{runs}} --preset tiny --name vision-tiny",
        "other settings (settings.training.batch was 2, now 8); choose another --name",
    ),
    (f"{COMPARE} --positions grid,shaw", "--positions: must be names among none, "),
    (f"{COMPARE} --positions convolution", "--positions: must be names among none, "),
    (f"{COMPARE} --positions grid,grid", "--positions: must name each scheme once"),
    (f"{COMPARE} --preset huge", "Invalid value for '--preset'"),
    (f"{COMPARE} --seeds 0", "Invalid value for '--seeds'"),
    (f"{COMPARE} --steps 0", "Invalid value for '--steps'"),
    (f"{COMPARE} --runs {{pictures}}/two.png", "report.html: cannot be written, "),
    (f"{COMPARE} --accelerator abacus", "--accelerator: must be one of auto, cpu, gpu, "),
    (f"{COMPARE} --data here", "No such option"),
]


@pytest.mark.parametrize(("command", "message"), REFUSED)
def test_bad_input_is_one_line_and_exit_2(
    command, message, run_folder, pictures, relpos, tmp_path, monkeypatch
):
    folder, _ = run_folder
    words = {"grid": folder / "grid", "runs": folder.parent, "pictures": pictures}
    monkeypatch.chdir(tmp_path)
    if command.startswith((COMPARE, "vision train")):
        # Options and folders are looked at before the data is.
        digits = "relpos_tasks.vision.digits.read_digits"
        monkeypatch.setattr(digits, lambda: pytest.fail("the data is read"))
    status, out, err = relpos(*(word.format(**words) for word in command.split(" ")))
    assert (status, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("relpos: ")
    assert message in line
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["", "compare", "train", "evaluate", "show"])
def test_every_command_has_help(relpos, command):
    status, out, _ = relpos("vision", *command.split(), "--help")
    assert status == 0
    assert "Usage: relpos vision" in out


@pytest.mark.parametrize("command", ["evaluate", "show"])
def test_the_example_of_a_checkpoint_is_a_folder_of_a_run(command, run_folder, relpos, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    (name,) = re.findall(r"RUNS/NAME/([\w-]+)", relpos("vision", command, "--help")[1])
    assert (run_folder[0] / name / "model.safetensors").is_file()


def test_tables_are_drawn_of_models_of_music(run_folder, relpos):
    model = run_folder[0] / "grid"
    status, out, err = relpos("plot", "tables", model)
    assert (status, out) == (2, "")
    message = "must be a checkpoint of the music task, got one of vision"
    assert err == f"relpos: {model}: {message}\n"
