"""`relpos` with what cannot be done: one line that says what must be, exit code 2, no file."""

import pytest

from tests.tasks.small import write_melody

# {huang} stands for a trained model, {runs} for the folder of runs, {grid} for the pieces that it
# was trained beside, {high} for a melody that is too high, {long} for one that is too long.
GENERATE, EVALUATE = "music generate {huang}", "music evaluate {huang}"
TRAIN, COMPARE = "music train --position none", "music compare"

REFUSED = [
    ("music evaluate nowhere", "nowhere: no such file or folder"),
    (EVALUATE, "was trained on the pieces of jsb.json"),
    (f"{EVALUATE} --data {{grid}} --window 12", "Invalid value for '--window'"),
    (
        f"{EVALUATE} --data {{grid}} --window 288",
        "--window: must be at most 280, the longest of these pieces, got 288",
    ),
    ("music generate nowhere --out new", "nowhere: no such file or folder"),
    (f"{GENERATE} --bars 0", "Invalid value for '--bars'"),
    (f"{GENERATE} --bars many", "Invalid value for '--bars'"),
    (f"{GENERATE} --bars 10000000", "--bars: must be in 1..256, got 10000000"),
    (f"{GENERATE} --seed -1", "Invalid value for '--seed'"),
    (f"{GENERATE} --seed 4294967296", "Invalid value for '--seed'"),
    (f"{GENERATE} --melody no.mid", "no.mid: cannot be read: No such file"),
    (f"{GENERATE} --melody {{grid}}", "must be a MIDI or a MusicXML file"),
    (f"{GENERATE} --melody {{high}}", "the melody must lie in "),
    (f"{GENERATE} --melody {{high}} --bars 3", "--bars: must not come with --melody"),
    (
        f"{GENERATE} --melody {{long}}",
        "long.mid: the melody must be at most 4096 sixteenths long, got 4097",
    ),
    (f"{GENERATE} --melody {{high}} --out {{high}}", "--out: must be another file than the one "),
    (f"{GENERATE} --melody /dev/zero", "/dev/zero: cannot be read: not an ordinary file"),
    (f"{GENERATE} --out {{grid}}/new", "/new.musicxml: cannot be written, "),
    (f"{GENERATE} --out .", ".: must be the files' name without ending"),
    (f"{GENERATE} --out {{huang}}", "huang: is a folder, not a file's name"),
    ("music train", "Missing option '--position'"),
    ("music train --position bert", "'bert' is not one of 'huang'"),
    (f"{COMPARE} --positions shaw,bert", "--positions: must be names among huang, shaw, "),
    (
        f"{COMPARE} --positions shaw,shaw",
        "--positions: must name each scheme once, got 'shaw,shaw'",
    ),
    (f"{COMPARE} --positions ,", "--positions: must be names among huang, shaw, "),
    (f"{COMPARE} --seeds 0", "'--seeds'"),
    (f"{COMPARE} --seed 4294967295 --seeds 2", "seed must be in 0..4294967294, got 4294967295"),
    (f"{COMPARE} --max-distance 0", "'--max-distance'"),
    (
        f"{COMPARE} --positions t5,absolute --max-distance 8",
        "--max-distance: is for huang, shaw, deberta, relative-logits; must be given with one of "
        "them, got t5, absolute",
    ),
    (
        "music train --preset tiny --position huang --random-start",
        "--random-start: is for absolute, sinusoidal; must be given with one of them, got huang",
    ),
    (f"{TRAIN} --batch 99999999999", "choose a smaller --batch or --window"),
    (f"{TRAIN} --name .", "--name: must be a folder's name"),
    (
        "music train --position huang --runs {runs} --preset tiny --name literature-tiny",
        "other settings (settings.training.batch was 2, now 8); choose another --name",
    ),
    (f"{COMPARE} --data no.json", "no.json: cannot be read: No such file or directory"),
    (f"{COMPARE} --data {{high}}", "high.mid: must be a folder of MIDI files, got one of them"),
    (f"{COMPARE} --data /dev/zero", "/dev/zero: cannot be read: not an ordinary file"),
    (f"{COMPARE} --preset huge", "Invalid value for '--preset': 'huge' is not one of"),
    (
        f"{COMPARE} --steps 0",
        "Invalid value for '--steps': must be greater than or equal to 1, got",
    ),
    (f"{COMPARE} --steps 10000000000000000000", "Invalid value for '--steps'"),
    (f"{COMPARE} --window 20", "'--window': must be a multiple of 8, got 20"),
    (
        f"{COMPARE} --window 8888888888888888",
        "a step of 8 sequences of 8,888,888,888,888,888 tokens must fit the memory of ",
    ),
    (f"{COMPARE} --seed 99999999999999999999", "Invalid value for '--seed'"),
    (f"{COMPARE} --bars 10000000", "--bars: must be in 1..256, got 10000000"),
    (f"{COMPARE} --runs {{grid}}", "report.html: cannot be written, "),
    (f"{COMPARE} --name a/b", "--name: must be a folder's name without slashes"),
    (f"{COMPARE} --name ..", "--name: must be a folder's name without slashes"),
    (f"{COMPARE} --name a\x01b", "--name: must be printable and at most 255 bytes"),
    (f"{COMPARE} --name {'x' * 256}", "--name: must be printable and at most 255 bytes"),
    (f"{COMPARE} --accelerator abacus", "--accelerator: must be one of auto, cpu, gpu, "),
    (f"{COMPARE} --accelerator tpu", "--accelerator: must be one that this machine has (cpu"),
    (f"{COMPARE} --accelerator cpu --devices 99999", "--devices: must be at most the "),
    (f"{COMPARE} --accelerator cpu --devices --5", "--devices: must be how many"),
    (f"{COMPARE} --devices none", "--devices: must be how many"),
    (f"{COMPARE} --context-parallel 2", "--context-parallel: must divide the 1 devices, got 2"),
    (
        f"{COMPARE} --context-parallel 2 --random-start --positions absolute",
        "--random-start: must be left out with --context-parallel",
    ),
    (f"{COMPARE} --precision 12", "--precision: must be one of 32-true, "),
    (f"{COMPARE} --colour", "No such option"),
    (f"{COMPARE} --runs ru\udcff", "--runs: must be valid UTF-8, got"),
    ("plot tables .", ".: is not a checkpoint, model.safetensors is missing"),
    ("sing", "No such command 'sing'"),
]


@pytest.fixture
def refusal(compared_folder, grid, relpos, tmp_path, monkeypatch):
    """Runs a command in an empty folder, where it must leave no file: its one line on stderr."""
    folder, _ = compared_folder
    words = {
        "huang": folder / "huang",
        "runs": folder.parent,
        "grid": grid,
        "high": write_melody(tmp_path / "high.mid", [100] * 4),
        "long": write_melody(tmp_path / "long.mid", [67] * 4097),
    }
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)

    def run(command):
        if command.startswith(("music compare", "music train")):
            # Options and folders are looked at before the data is.
            chorales = "relpos_tasks.music.source.chorales"
            monkeypatch.setattr(chorales, lambda **_: pytest.fail("the data is read"))
        status, out, err = relpos(*(word.format(**words) for word in command.split(" ")))
        assert (status, out) == (2, "")
        (line,) = err.splitlines()
        assert line.startswith("relpos: ")
        assert not list(empty.rglob("*"))
        return line

    return run


@pytest.mark.parametrize(("command", "message"), REFUSED)
def test_bad_input_is_one_line_and_exit_2(command, message, refusal):
    assert message in refusal(command)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--temperature -1", "'--temperature': must be a number >= 0, got -1.0"),
        ("--temperature nan", "'--temperature': must be a number >= 0, got nan"),
        ("--temperature inf", "'--temperature': must be a number >= 0, got inf"),
        ("--top-p 0", "'--top-p': must be above 0 and at most 1, got 0.0"),
        ("--top-p 1.01", "'--top-p': must be above 0 and at most 1, got 1.01"),
        ("--top-p nan", "'--top-p': must be above 0 and at most 1, got nan"),
    ],
)
def test_an_option_of_sampling_is_named_before_the_checkpoint_is_looked_for(
    option, message, refusal
):
    assert f"Invalid value for {message}" in refusal(f"music generate nowhere {option}")


@pytest.mark.parametrize("task", ["music", "vision", "translation"])
def test_a_report_of_no_comparison_is_kept(task, refusal, tmp_path):
    own = tmp_path / "mine" / "report.html"
    own.parent.mkdir()
    own.write_text("mine")
    more = " --chorales" * (task == "translation")
    given = f"--preset tiny --runs {tmp_path} --name mine{more}"
    line = refusal(f"{task} compare {given}")
    assert f"{own}: must be of a comparison, beside its metrics.json, to be replaced" in line
    assert own.read_text() == "mine"
    assert [path.name for path in own.parent.iterdir()] == ["report.html"]


@pytest.mark.parametrize(
    ("command", "path"),
    [
        ("music compare --runs {place} --name new", "{place}/new/report.html"),
        ("music train --position none --runs {place} --name new", "{place}/new/none/model.json"),
        ("music generate nowhere --out {place}/new", "{place}/new.musicxml"),
        ("plot shear --out {place}/new.svg", "{place}/new.svg"),
        ("plot tables nowhere --out {place}/new.svg", "{place}/new.svg"),
        ("plot attention nowhere --out {place}/new.svg", "{place}/new.svg"),
    ],
    ids=lambda value: " ".join(value.split()[:2]),
)
@pytest.mark.parametrize("place", ["/proc/new", "{grid}", "{grid}/new"])
def test_a_folder_that_cannot_be_made_is_named_before_anything_is_read(
    command, path, place, refusal, grid
):
    line = refusal(command.replace("{place}", place))
    where = path.replace("{place}", place).replace("{grid}", str(grid))
    assert f"{where}: cannot be written, " in line
