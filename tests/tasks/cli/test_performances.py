"""`relpos music ...` on a folder of MIDI files, as it is typed; what cannot be done is one line."""

import os
import shutil
import subprocess
import sys
from contextlib import nullcontext

import numpy as np
import pytest

from relpos_tasks.cli.music_options import Preset
from relpos_tasks.music.performances.midi import LARGEST_FILE, midi_of, read_performance
from relpos_tasks.music.performances.settings import PRESETS
from relpos_tasks.music.settings import PRESETS as CHORALE_PRESETS
from tests.tasks.music.performances.played import midi_file, played, write_performances
from tests.tasks.small import QUICK

# A folder's broken file, which is told of where that is looked at.
pytestmark = pytest.mark.filterwarnings("ignore:left out")

NOTES = [(480 * n, 480, 60 + n, 64) for n in range(4)]


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A folder of performances, one of its files broken."""
    folder = write_performances(tmp_path_factory.mktemp("midi") / "concerts", 8)
    (folder / "broken.mid").write_bytes(b"no music")
    return folder


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """Where the notes of the folder are kept."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _own_cache(cache, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))


@pytest.fixture(scope="session")
def performed(folder, cache, tmp_path_factory):
    """The folder of a run of `relpos music compare` in a process of its own, and the process."""
    runs = tmp_path_factory.mktemp("runs")
    given = ["--seconds", "1", "--positions", "huang,absolute", "--data", folder, "--runs", runs]
    done = subprocess.run(
        [sys.executable, "-m", "relpos", "music", "compare", *QUICK, *given],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(cache)},
    )
    assert done.returncode == 0, done.stderr
    return runs / "performances-tiny", done


@pytest.mark.no_typecheck
def test_compare_writes_the_page_and_a_performance(performed, folder):
    run, done = performed
    assert "held out, nats per token" in done.stdout
    for name in ("huang", "absolute", "counting: + the third"):
        assert name in done.stdout
    assert done.stdout.splitlines()[-1] == f"report: {run / 'report.html'}"
    assert sorted(file.name for file in run.iterdir()) == [
        "absolute", "huang", "machine.json", "metrics.json", "performance.mid", "performance.wav",
        "report.html",
    ]  # fmt: skip
    lines = done.stderr.splitlines()
    assert f"relpos: left out: {folder}/broken.mid: must be a MIDI file, and begins like none" in (
        lines
    )
    page = (run / "report.html").read_text()
    assert "Piano roll of the performance" in page
    assert "chorale" not in page.lower()


def test_evaluate_measures_as_compare_did(performed, folder, relpos):
    run, done = performed
    status, out, _ = relpos("music", "evaluate", run / "huang", "--data", folder, "--lengths")
    assert status == 0
    (measured,) = (line.split()[-1] for line in done.stdout.splitlines() if "huang  " in line)
    assert f"huang, 16 tokens {measured}" in " ".join(out.split())
    assert "64 tokens" in out


def test_generate_begins_a_performance(performed, relpos, tmp_path):
    out = tmp_path / "new" / "tune"
    status, said, _ = relpos(
        "music", "generate", performed[0] / "huang", "--seconds", 2, "--out", out
    )
    assert status == 0
    assert said.startswith(f"wrote {out}.mid and {out}.wav (")
    assert sorted(file.name for file in out.parent.iterdir()) == ["tune.mid", "tune.wav"]
    assert read_performance(f"{out}.mid").seconds <= 2


def test_generate_goes_on_from_a_file(performed, relpos, tmp_path):
    prime = tmp_path / "prime.mid"
    prime.write_bytes(midi_of(played(np.random.default_rng(3), 20)))
    command = ["music", "generate", performed[0] / "huang", "--prime", prime, "--seconds", 1]
    status, said, _ = relpos(*command, "--out", tmp_path / "new")
    assert status == 0
    given, whole = read_performance(prime), read_performance(tmp_path / "new.mid")
    assert f"of which {given.seconds:.1f} seconds were given" in said
    begun = whole.starts < given.ends.max()
    np.testing.assert_array_equal(whole.pitches[begun], given.pitches)
    np.testing.assert_array_equal(whole.starts[begun], given.starts)


def test_the_same_seed_gives_the_same_performance(performed, relpos, tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        options = ["--seconds", 1, "--seed", seed, "--out", tmp_path / name]
        assert relpos("music", "generate", performed[0] / "huang", *options)[0] == 0
    one, same, other = ((tmp_path / f"{name}.mid").read_bytes() for name in "abc")
    assert one == same != other


def test_train_goes_on_with_its_own_run(folder, relpos, tmp_path):
    command = ["music", "train", "--position", "none", "--data", folder, "--runs", tmp_path, *QUICK]
    status, out, _ = relpos(*command)
    assert (status, out.splitlines()[-1]) == (
        0,
        f"checkpoint: {tmp_path / 'performances-tiny' / 'none'}",
    )
    assert relpos(*command)[:2] == (0, out)


def test_a_run_is_not_gone_on_with_on_other_music(performed, folder, relpos, tmp_path):
    other = write_performances(tmp_path / "other", 5, seed=1)
    run, _ = performed
    command = ["music", "train", "--position", "huang", "--data", other, "--runs", run.parent]
    status, _, err = relpos(*command, *QUICK)
    assert status == 2
    assert "holds a run with other settings (data.digest was " in err
    status, _, err = relpos("music", "evaluate", run / "huang", "--data", other)
    assert status == 2
    assert "was trained on the pieces of concerts (" in err
    assert "give it as --data PATH/concerts" in err


def test_plot_draws_what_was_trained(performed, folder, relpos, tmp_path):
    maps = tmp_path / "maps.svg"
    command = ["plot", "attention", performed[0] / "huang", "--data", folder, "--out", maps]
    assert relpos(*command)[0] == 0
    assert maps.is_file()


def test_every_preset_is_of_one_kind_of_music_or_both():
    assert set(Preset) == set(PRESETS) | set(CHORALE_PRESETS)


def empty(folder):
    """Nothing."""


def words(folder):
    for index in range(3):
        (folder / f"{index}.txt").write_text("words")


def words_called_midi(folder):
    for index in range(12):
        (folder / f"{index}.mid").write_text("words")


def no_notes(folder):
    (folder / "a.mid").write_bytes(midi_file([]))


def drums(folder):
    (folder / "a.mid").write_bytes(midi_file(NOTES, drums=True))


def type_2(folder):
    content = midi_file(NOTES)
    (folder / "a.mid").write_bytes(content[:8] + b"\0\2" + content[10:])


def huge(folder):
    with (folder / "a.mid").open("wb") as file:
        file.truncate(LARGEST_FILE + 1)


def copies(folder):
    write_performances(folder, 1)
    for name in "abc":
        shutil.copy(folder / "piece-00.mid", folder / f"{name}.mid")


@pytest.mark.parametrize(
    ("fill", "left_out", "message"),
    [
        (empty, [], "must hold MIDI files (.mid or .midi), got none"),
        (words, [], "must hold MIDI files (.mid or .midi), got none"),
        (
            words_called_midi,
            ["0.mid: must be a MIDI file", *[".mid: must be a MIDI"] * 7, "4 more of 12 files"],
            "holds no MIDI file that can be used, got 12 files",
        ),
        (no_notes, ["a.mid: holds no note that ends"], "holds no MIDI file that can be used"),
        (
            drums,
            ["a.mid: holds no note that ends but those of drums"],
            "holds no MIDI file that can be",
        ),
        (
            type_2,
            ["a.mid: must be of type 0 or 1 and count time in quarters, got type 2"],
            "holds no MIDI file",
        ),
        (huge, ["a.mid: must be at most 20,000,000 bytes"], "holds no MIDI file that can be used"),
        (copies, [], "must hold at least three different performances with notes"),
    ],
)
def test_a_folder_that_is_of_no_use_is_refused(relpos, tmp_path, fill, left_out, message):
    music = tmp_path / "music"
    music.mkdir()
    fill(music)
    runs = tmp_path / "runs"
    command = ["music", "train", "--position", "none", "--data", music, "--runs", runs, *QUICK]
    with pytest.warns(UserWarning, match="left out") if left_out else nullcontext([]) as warned:
        status, out, err = relpos(*command)
    assert (status, out) == (2, "")
    for line, expected in zip(warned, left_out, strict=True):
        assert expected in str(line.message)
    (line,) = err.splitlines()
    assert line.startswith(f"relpos: {music}: ")
    assert message in line
    assert not runs.exists()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            "compare --data {folder} --bars 2",
            "--bars: is for chorales; with a folder of MIDI files",
        ),
        (
            "compare --seconds 5",
            "--seconds: must come with --data FOLDER of MIDI files; try --bars",
        ),
        (
            "compare --data {folder} --seconds 0",
            "--seconds: must be in 0.01..900, got 0",
        ),
        (
            "compare --data {folder} --seconds 1e9",
            "--seconds: must be in 0.01..900, got",
        ),
        (
            "compare --data {folder} --seconds nan",
            "--seconds: must be in 0.01..900, got",
        ),
        (
            "compare --data {folder} --preset paper",
            "--preset: must be one of default, tiny, maestro for a folder of MIDI files, got paper",
        ),
        (
            "compare --preset maestro",
            "--preset: must be one of default, tiny, literature, paper for chorales",
        ),
        ("generate {huang} --bars 2", "--bars: is not for a model of performances, which "),
        ("generate {huang} --melody {prime}", "it takes --seconds and --prime"),
        ("generate {chorales} --prime {prime}", "--prime: is not for a model of chorales, which "),
        ("generate {chorales} --seconds 3", "it takes --bars and --melody"),
        ("generate {huang} --seconds 901", "--seconds: must be in 0.01..900, got 901"),
        ("generate {huang} --prime {prime} --out {prime}", "--out: must be another file than the "),
        ("compare --data no-folder --preset maestro", "no-folder: cannot be read: No such file"),
        ("compare --data no-folder --seconds 5", "no-folder: cannot be read: No such file"),
        ("generate {huang} --prime no.mid", "no.mid: cannot be read: No such file or directory"),
        ("generate {huang} --prime {folder}/broken.mid", "broken.mid: must be a MIDI file, and"),
        (
            "generate {huang} --prime {drums}",
            "drums.mid: holds no note that ends but those of drums",
        ),
        ("evaluate {huang} --data {folder} --window 99999992", "--window: must be at most "),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(
    command, message, performed, checkpoints, folder, relpos, tmp_path, monkeypatch
):
    (tmp_path / "prime.mid").write_bytes(midi_file(NOTES))
    (tmp_path / "drums.mid").write_bytes(midi_file(NOTES, drums=True))
    named = {
        "folder": folder,
        "huang": performed[0] / "huang",
        "chorales": checkpoints / "huang",
        "prime": tmp_path / "prime.mid",
        "drums": tmp_path / "drums.mid",
    }
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    status, out, err = relpos("music", *(word.format(**named) for word in command.split()))
    assert (status, out) == (2, "")
    assert message in err.splitlines()[-1]
    assert not list(empty.iterdir())
