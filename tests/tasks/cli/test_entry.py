"""The `relpos` command as it is typed: what it prints, writes, refuses, and how it stops."""

import os
import re
import signal
import subprocess
import sys
import time
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
import torch

from relpos_tasks.music.melody import read_melody
from relpos_tasks.music.piece import Piece, strikes_of
from relpos_tasks.music.sound import midi_of
from tests.tasks.small import disk_with

ROOT = Path(__file__).parents[3]
FAST = [
    "--preset",
    "tiny",
    "--steps",
    "2",
    "--batch",
    "2",
    "--window",
    "16",
    "--accelerator",
    "cpu",
]


@pytest.fixture(scope="module")
def run_folder(grid, tmp_path_factory):
    """A run of `relpos music compare`, and what it printed."""
    runs = tmp_path_factory.mktemp("runs")
    given = ["--bars", "1", "--data", grid, "--runs", runs]
    done = subprocess.run(
        [sys.executable, "-m", "relpos", "music", "compare", *FAST, *given],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return runs / "literature-tiny", done


def test_compare_prints_the_table_and_the_report(run_folder):
    folder, done = run_folder
    assert "held out, nats per token" in done.stdout
    for name in ("huang", "absolute", "counting: + voice above"):
        assert name in done.stdout
    assert done.stdout.splitlines()[-1] == f"report: {folder / 'report.html'}"
    assert (folder / "report.html").is_file()
    assert "Warning" not in done.stderr


def test_evaluate_measures_as_compare_did(run_folder, grid, relpos):
    folder, done = run_folder
    status, out, _ = relpos("music", "evaluate", folder / "huang", "--data", grid, "--lengths")
    assert status == 0
    (measured,) = (line.split()[-1] for line in done.stdout.splitlines() if "huang  " in line)
    assert f"huang, 16 tokens {measured}" in " ".join(out.split())
    assert "64 tokens" in out


def test_generate_writes_three_files(run_folder, relpos, tmp_path):
    folder, _ = run_folder
    out = tmp_path / "new" / "tune"
    status, said, _ = relpos("music", "generate", folder / "huang", "--bars", 1, "--out", out)
    assert status == 0
    assert said == f"wrote {out}.mid, {out}.musicxml and {out}.wav (4 quarters)\n"
    assert sorted(file.name for file in out.parent.iterdir()) == [
        "tune.mid",
        "tune.musicxml",
        "tune.wav",
    ]


def test_a_name_that_is_no_text_is_escaped_where_it_is_written(run_folder, relpos, tmp_path):
    folder, _ = run_folder
    out = tmp_path / "a\x01\udcff"
    status, said, err = relpos("music", "generate", folder / "huang", "--bars", 1, "--out", out)
    assert (status, err) == (0, "")
    assert f"{tmp_path}/a\x01\\udcff.wav" in said
    assert ET.parse(f"{out}.musicxml").findtext("work/work-title") == "a??"


def melody_file(path, pitches):
    column = np.array(pitches, np.int16)[:, None]
    all_voices = np.concatenate([column, np.full((len(column), 3), -1, np.int16)], axis=1)
    path.write_bytes(midi_of(Piece("tune", all_voices, strikes_of(all_voices))))
    return path


def test_generate_keeps_a_melody(run_folder, relpos, tmp_path):
    folder, _ = run_folder
    pitches = [67] * 4 + [69] * 4 + [71] * 2 + [69] * 2 + [67] * 8
    tune = melody_file(tmp_path / "tune.mid", pitches)
    weights = folder / "huang" / "model.safetensors"
    assert relpos("music", "generate", weights, "--melody", tune, "--out", tmp_path / "new")[0] == 0
    assert read_melody(tmp_path / "new.mid").pitches.tolist() == pitches


def test_plot_draws_what_compare_trained(run_folder, grid, relpos, tmp_path):
    folder, _ = run_folder
    tables, maps = tmp_path / "tables.svg", tmp_path / "maps.png"
    assert relpos("plot", "tables", folder / "absolute", "--out", tables)[0] == 0
    assert relpos("plot", "attention", folder / "huang", "--data", grid, "--out", maps)[0] == 0
    assert sorted(tmp_path.iterdir()) == [maps, tables]


def test_train_goes_on_with_its_own_run(grid, relpos, tmp_path):
    command = ["music", "train", "--position", "none", "--data", grid, "--runs", tmp_path, *FAST]
    status, out, _ = relpos(*command)
    assert (status, out.splitlines()[-1]) == (
        0,
        f"checkpoint: {tmp_path / 'literature-tiny' / 'none'}",
    )
    assert relpos(*command)[:2] == (0, out)
    status, _, err = relpos(*command, "--seed", "1")
    assert status == 2
    assert "other settings (settings.training.seed was 0, now 1); choose another --name" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["music", "evaluate", "nowhere"], "nowhere: no such file or folder"),
        (["music", "generate", "nowhere", "--out", "new"], "nowhere: no such file or folder"),
        (["plot", "tables", "."], ".: is not a checkpoint, model.safetensors is missing"),
        (
            ["music", "generate", "{huang}", "--bars", "0"],
            "Invalid value for '--bars'",
        ),
        (["music", "generate", "{huang}", "--bars", "many"], "Invalid value for '--bars'"),
        (
            ["music", "generate", "{huang}", "--temperature", "-1"],
            "Invalid value for '--temperature'",
        ),
        (["music", "generate", "{huang}", "--temperature", "nan"], "temperature"),
        (
            ["music", "generate", "{huang}", "--top-p", "0"],
            "top_p must be in 0 < top_p <= 1, got 0.0",
        ),
        (["music", "generate", "{huang}", "--seed", "-1"], "Invalid value for '--seed'"),
        (["music", "generate", "{huang}", "--seed", "4294967296"], "Invalid value for '--seed'"),
        (["music", "compare", "--seed", "99999999999999999999"], "Invalid value for '--seed'"),
        (
            ["music", "generate", "{huang}", "--melody", "no.mid"],
            "no.mid: cannot be read: No such file",
        ),
        (
            ["music", "generate", "{huang}", "--melody", "{grid}"],
            "must be a MIDI or a MusicXML file",
        ),
        (["music", "generate", "{huang}", "--melody", "{high}"], "the melody must lie in "),
        (
            ["music", "generate", "{huang}", "--out", "{grid}/new"],
            "/new.musicxml: cannot be written, ",
        ),
        (
            ["music", "generate", "{huang}", "--out", "."],
            ".: must be the files' name without ending",
        ),
        (
            ["music", "generate", "{huang}", "--out", "{huang}"],
            "huang: is a folder, not a file's name",
        ),
        (["music", "evaluate", "{huang}"], "was trained on the pieces of jsb.json"),
        (
            ["music", "evaluate", "{huang}", "--data", "{grid}", "--window", "12"],
            "Invalid value for '--window'",
        ),
        (["music", "train", "--position", "rotary"], "'rotary' is not one of 'huang'"),
        (["music", "train"], "Missing option '--position'"),
        (
            ["music", "compare", "--data", "no.json"],
            "no.json: cannot be read: No such file or directory",
        ),
        (["music", "compare", "--data", "{high}"], ": not JSON: "),
        (["music", "compare", "--steps", "0"], "Invalid value for '--steps'"),
        (["music", "compare", "--steps", str(10**19)], "Invalid value for '--steps'"),
        (
            ["music", "compare", "--window", "8888888888888888"],
            "a step of 8 sequences of 8,888,888,888,888,888 tokens must fit the memory of ",
        ),
        (
            ["music", "train", "--position", "none", "--batch", "99999999999"],
            "choose a smaller --batch or --window",
        ),
        (["music", "compare", "--bars", "10000000"], "--bars: must be in 1..256, got 10000000"),
        (
            ["music", "generate", "{huang}", "--bars", "10000000"],
            "--bars: must be in 1..256, got 10000000",
        ),
        (["music", "compare", "--runs", "{grid}"], "report.html: cannot be written, "),
        (["music", "compare", "--accelerator", "tpu"], "Requirement 'torch_xla"),
        (
            ["music", "compare", "--accelerator", "cpu", "--devices", "99999"],
            "--devices: must be at most the ",
        ),
        (
            ["music", "compare", "--accelerator", "cpu", "--devices", "--5"],
            "--devices: must be how",
        ),
        (
            [
                "music",
                "train",
                "--position",
                "huang",
                "--runs",
                "{runs}",
                "--preset",
                "tiny",
                "--name",
                "literature-tiny",
            ],
            "other settings (settings.training.batch was 2, now 8); choose another --name",
        ),
        (
            ["music", "evaluate", "{huang}", "--data", "{grid}", "--window", "288"],
            "--window: must be at most 280, the longest held-out piece, got 288",
        ),
        (["music", "compare", "--data", "/dev/zero"], "/dev/zero: cannot be read: not an ordinary"),
        (
            ["music", "generate", "{huang}", "--melody", "/dev/zero"],
            "/dev/zero: cannot be read: not an ordinary file",
        ),
        (["music", "compare", "--window", "20"], "'--window': must be a multiple of 8, got 20"),
        (["music", "compare", "--preset", "huge"], "Invalid value for '--preset'"),
        (["music", "compare", "--name", "a/b"], "--name: must be a folder's name without slashes"),
        (["music", "compare", "--name", ".."], "--name: must be a folder's name without slashes"),
        (["music", "compare", "--name", "a\nb"], "--name: must be printable and at most 255 bytes"),
        (
            ["music", "compare", "--name", "x" * 256],
            "--name: must be printable and at most 255 bytes",
        ),
        (
            ["music", "train", "--position", "none", "--name", "."],
            "--name: must be a folder's name",
        ),
        (["music", "compare", "--accelerator", "abacus"], "abacus"),
        (["music", "compare", "--accelerator", "gpu"], "No supported gpu backend found"),
        (["music", "compare", "--devices", "none"], "devices"),
        (["music", "compare", "--precision", "12"], "Precision '12' is invalid"),
        (["music", "compare", "--colour"], "No such option"),
        (["sing"], "No such command 'sing'"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line_and_exit_2(
    arguments, message, run_folder, grid, relpos, tmp_path, monkeypatch
):
    folder, _ = run_folder
    high = melody_file(tmp_path / "high.mid", [100] * 4)
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    given = [
        text.format(huang=folder / "huang", runs=folder.parent, grid=grid, high=high)
        for text in arguments
    ]
    if arguments[1:2] in (["compare"], ["train"]):
        # Options and folders are looked at before the data is.
        chorales = "relpos_tasks.music.source.chorales"
        monkeypatch.setattr(chorales, lambda **_: pytest.fail("the data is read"))
    status, out, err = relpos(*given)
    assert (status, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("relpos: ")
    assert message in line
    assert not list(empty.rglob("*"))


HIDDEN = """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hide())
sys.argv = ["relpos", *{arguments!r}]
"""
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def packages_of(extra):
    """The names of the packages that an extra lists, without relpos itself."""
    names = {re.split(r"[<>=\[; ]", needed)[0] for needed in EXTRAS[extra]}
    return sorted(names - {"relpos"})


@pytest.mark.parametrize(
    "start",
    [
        "from relpos_tasks.cli import main; main()",
        "import runpy; runpy.run_module('relpos', run_name='__main__')",
    ],
    ids=["relpos", "python -m relpos"],
)
@pytest.mark.parametrize(
    ("arguments", "hidden", "package", "extra"),
    [
        ([], "all", "typer", "train"),
        (["--help"], "all", "typer", "train"),
        (["plot", "shear"], "all", "typer", "train"),
        (["music", "compare"], "all", "typer", "music"),
        (["plot", "shear"], ["matplotlib"], "matplotlib", "train"),
        (["music", "generate", "nowhere"], ["music21"], "music21", "music"),
    ],
)
def test_without_an_extra_one_line_names_it(arguments, hidden, package, extra, start, tmp_path):
    # NumPy is for relpos itself as well, whose import is not what is tried here.
    everything = {*packages_of("music"), *packages_of("train")} - {"numpy"}
    names = everything if hidden == "all" else hidden
    done = subprocess.run(
        [sys.executable, "-c", HIDDEN.format(hidden=names, arguments=arguments) + start],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    said = f'relpos: {package} is not installed; run: pip install "relpos[{extra}]"\n'
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("extra", ["music", "train"])
def test_every_package_of_an_extra_is_known_to_the_command(extra, monkeypatch, relpos):
    for package in packages_of(extra):

        def refuse(arguments, name=package):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

        monkeypatch.setattr("relpos_tasks.cli.app.run", refuse)
        said = f'relpos: {package} is not installed; run: pip install "relpos[{extra}]"\n'
        assert relpos("plot") == (2, "", said)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["music", "generate", "{huang}", "--bars", "1", "--out", "{out}/tune"], "tune.musicxml"),
        (["plot", "shear", "--out", "{out}/shear.svg"], "shear.svg"),
    ],
)
def test_a_full_disk_is_one_line_that_names_the_file(run_folder, relpos, tmp_path, command, name):
    folder, _ = run_folder
    given = [text.format(huang=folder / "huang", out=tmp_path) for text in command]
    with disk_with(100):
        status, out, err = relpos(*given)
    assert (status, out, err) == (2, "", f"relpos: {tmp_path / name}: File too large\n")
    assert not list(tmp_path.iterdir())


def test_too_little_memory_is_one_line(monkeypatch, relpos):
    def starve(arguments):
        raise MemoryError

    monkeypatch.setattr("relpos_tasks.cli.app.run", starve)
    assert relpos("plot", "shear")[::2] == (2, "relpos: not enough memory; ask for less at once\n")


def test_the_seed_of_generate_speaks_of_what_it_draws(relpos, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    said = relpos("music", "generate", "--help")[1]
    assert "the same seed gives the same chorale" in said
    assert "data order" not in said


def test_lightnings_own_words_for_a_missing_extra_are_understood(monkeypatch, relpos):
    def refuse(arguments):
        raise ModuleNotFoundError("Neither `tensorboard` nor `tensorboardX` is available.")

    monkeypatch.setattr("relpos_tasks.cli.app.run", refuse)
    assert "tensorboard is not installed; run: pip install" in relpos("music", "train")[2]


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ({}, "1000"),
        ({"GOMP_SPINCOUNT": "7"}, "7"),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, None),
    ],
    ids=["by itself", "spins of the user", "policy of the user"],
)
def test_threads_spin_for_a_short_time_unless_the_user_says_otherwise(
    given, used, monkeypatch, relpos
):
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        # Set first, so that whatever was there before the test comes back after it.
        monkeypatch.setenv(name, "")
        del os.environ[name]
    os.environ.update(given)
    seen = []
    monkeypatch.setattr(
        "relpos_tasks.cli.app.run", lambda _: seen.append(os.environ.get("GOMP_SPINCOUNT")) or 0
    )
    relpos("plot")
    assert seen == [used]


def test_openmp_is_told_how_to_wait_before_torch_is_imported():
    check = "import relpos_tasks.cli.entry, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_without_a_command_there_is_help(relpos):
    status, out, err = relpos()
    assert (status, err) == (0, "")
    assert "music" in out


def test_our_own_missing_module_is_a_bug_and_not_an_extra(monkeypatch, relpos):
    monkeypatch.setitem(sys.modules, "relpos_tasks.cli.app", None)
    with pytest.raises(ModuleNotFoundError, match=r"relpos_tasks\.cli\.app"):
        relpos()


@pytest.mark.parametrize(
    "command",
    ["", "music", "music compare", "music train", "music evaluate", "music generate", "plot"],
)
def test_help_explains_every_option(relpos, command):
    status, out, _ = relpos(*command.split(), "--help")
    assert status == 0
    assert "Usage: relpos" in out


def test_a_stopped_training_says_so_and_leaves_a_whole_checkpoint(grid, tmp_path):
    steps = ["--preset", "tiny", "--steps", "100000", "--batch", "1", "--window", "8"]
    command = [sys.executable, "-m", "relpos", "music", "train", "--position", "none", *steps]
    command += ["--accelerator", "cpu", "--data", str(grid), "--runs", str(tmp_path)]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    ) as process:
        resume = tmp_path / "literature-tiny" / "none" / "last.ckpt"
        begun = time.monotonic()
        while not resume.exists() and time.monotonic() < begun + 60:
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 143
    lines = [line for line in err.splitlines() if not line.startswith(("pieces: ", "none: step"))]
    assert lines == ["relpos: stopped; the same command goes on from the last checkpoint"]
    assert torch.load(resume, weights_only=True)["global_step"] >= 50
    assert not list(Path(tmp_path).rglob(".part-*"))
