"""`relpos translation ...` as it is typed: what commands print and write, and what they refuse."""

import io
import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from relpos_tasks.cli.translation_options import TranslationPreset
from relpos_tasks.translation.settings import PRESETS
from tests.tasks.small import write_chords, write_melody
from tests.tasks.translation.sentences import pairs, write_folder, write_table
from tests.tasks.translation.small import QUICK


@pytest.fixture(scope="session")
def text_folder(tmp_path_factory):
    """A folder of parallel text."""
    text = pairs(120)
    folder = tmp_path_factory.mktemp("data") / "captions"
    return write_folder(folder, {"train": text[:100], "val": text[100:]})


def _compared(folder, *options):
    """A process of its own with `relpos translation compare`."""
    done = subprocess.run(
        [sys.executable, "-m", "relpos", "translation", "compare", *options, "--runs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="session")
def run_folder(text_folder, tmp_path_factory):
    """The folder of a run on text, and the process."""
    runs = tmp_path_factory.mktemp("runs")
    return runs / "translation-tiny", _compared(runs, *QUICK, "--data", str(text_folder))


@pytest.fixture(scope="session")
def harmony_folder(tmp_path_factory):
    """The folder of a training on chorales."""
    runs = tmp_path_factory.mktemp("runs")
    options = ["--chorales", "--positions", "shaw-2", *QUICK, "--batch", "2"]
    _compared(runs, *options)
    return runs / "harmony-tiny"


@pytest.mark.no_typecheck
def test_compare_prints_both_tables_and_the_report(run_folder):
    folder, done = run_folder
    lines = done.stdout.splitlines()
    assert "held out, nats per target token" in lines
    assert "held out, BLEU" in lines
    for name in ("sinusoidal", "shaw-16", "shaw-0"):
        assert sum(line.startswith(f"  {name} ") for line in lines) == 2
    assert lines[-1] == f"report: {folder / 'report.html'}"
    assert (folder / "report.html").is_file()
    assert "Warning" not in done.stderr


def test_evaluate_measures_as_compare_did(run_folder, text_folder, relpos):
    folder, _ = run_folder
    metrics = json.loads((folder / "metrics.json").read_text())
    # With the search of the preset, which is not that of the others.
    status, out, _ = relpos("translation", "evaluate", folder / "shaw-16", "--data", text_folder)
    assert status == 0
    title, nats, bleu, chrf = out.splitlines()
    assert title == "held out, nats per target token"
    measured = metrics["held_out"]["shaw-16"]
    assert nats.split() == ["shaw-16", f"{measured['nats']:.4f}"]
    assert bleu.startswith(f"BLEU {measured['bleu']:.1f} ({measured['bleu_low']:.1f} to ")
    signature = metrics["translations"]["signatures"]["bleu"]
    assert bleu.endswith(f" on 20 sentences with beam 2 and alpha 0.6, {signature}")
    assert chrf.startswith(f"chrF {measured['chrf']:.1f}, ")


def test_what_settings_are_chosen_on_is_measured_on_request(
    run_folder, harmony_folder, text_folder, relpos
):
    folder, _ = run_folder
    for model, data in (
        (folder / "shaw-0", ["--data", text_folder]),
        (harmony_folder / "shaw-2", []),
    ):
        *_, (_, watched) = json.loads((model.parent / "metrics.json").read_text())["curves"][
            model.name
        ]["valid"]
        status, out, _ = relpos("translation", "evaluate", model, *data, "--valid")
        assert status == 0
        assert out.splitlines()[0] == "validation, nats per target token"
        assert float(out.split()[6]) == pytest.approx(watched, abs=1e-4)


def test_sentences_are_translated_from_arguments_file_and_stdin(
    run_folder, relpos, tmp_path, monkeypatch
):
    model = run_folder[0] / "shaw-16"
    sentences = ["A man sleeps here.", "", "The dog waits."]
    status, out, _ = relpos("translation", "translate", model, *sentences)
    assert status == 0
    assert len(out.split("\n")) == 4
    assert out.split("\n")[1] == ""
    file = tmp_path / "in.txt"
    file.write_text("".join(f"{sentence}\r\n" for sentence in sentences))
    assert relpos("translation", "translate", model, "--file", file)[1] == out
    stdin = io.TextIOWrapper(io.BytesIO("\n".join(sentences).encode()))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert relpos("translation", "translate", model)[1] == out
    written = tmp_path / "out.txt"
    status, said, _ = relpos("translation", "translate", model, "--file", file, "--out", written)
    assert (status, said) == (0, f"wrote {written}\n")
    assert written.read_text() == out


def test_a_closed_standard_input_is_named(run_folder, relpos, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    status, out, err = relpos("translation", "translate", run_folder[0] / "shaw-16")
    assert (status, out) == (2, "")
    assert err == "relpos: standard input: must hold sentences, got none, it is closed\n"


def test_train_leaves_a_checkpoint_and_prints_its_nats(relpos, text_folder, tmp_path):
    status, out, _ = relpos(
        "translation", "train", "--position", "rotary", "--data", text_folder, *QUICK,
        "--source", "de", "--runs", tmp_path, "--name", "one",
    )  # fmt: skip
    assert status == 0
    folder = tmp_path / "one" / "rotary"
    valid, checkpoint = out.splitlines()
    assert valid.startswith("validation: ")
    assert valid.endswith(" nats per target token at step 2")
    assert checkpoint == f"checkpoint: {folder}"
    assert json.loads((folder / "model.json").read_text())["data"]["languages"] == ["de", "en"]


def test_what_is_said_of_three_languages_can_be_followed(relpos, text_folder, tmp_path):
    data = shutil.copytree(text_folder, tmp_path / "three")
    for part in ("train", "val"):
        shutil.copy(data / f"{part}.de.gz", data / f"{part}.fr.gz")
    train = "translation", "train", "--position", "none", "--data", data, *QUICK, "--runs", tmp_path
    status, _, err = relpos(*train)
    assert status == 2
    assert err.endswith("three: has en, de, fr: choose two of them by --source and --target\n")
    options = re.findall(r"--\w+", err)
    assert relpos(*train, options[0], "en", options[1], "fr")[0] == 0


def test_models_are_shared_and_the_report_that_is_replaced_is_named(
    run_folder, text_folder, relpos, tmp_path
):
    folder = shutil.copytree(run_folder[0], tmp_path / "translation-tiny")
    compare = "translation", "compare", *QUICK, "--runs", tmp_path, "--data"
    weights = (folder / "shaw-16" / "last.ckpt").stat().st_mtime_ns
    status, _, err = relpos(*compare, text_folder, "--positions", "shaw-16,shaw-2")
    assert status == 0
    (line,) = [line for line in err.splitlines() if "the report there is of sinusoidal, sh" in line]
    assert line.endswith("replaced by one of shaw-16, shaw-2 (1 seed): copy it first to keep it")
    assert (folder / "shaw-16" / "last.ckpt").stat().st_mtime_ns == weights
    assert list(json.loads((folder / "metrics.json").read_text())["held_out"]) == [
        "shaw-16", "shaw-2"
    ]  # fmt: skip
    other = write_table(tmp_path / "other.tsv", pairs(200))
    status, _, err = relpos(*compare, other, "--positions", "none,shaw-16")
    assert status == 2
    assert "shaw-16: holds a training on other data, captions (" in err
    assert err.endswith("; choose another --name, or delete that folder\n")
    # Nothing was trained before that was known.
    assert not (folder / "none").exists()


def test_the_length_test_trains_on_short_sentences_and_evaluates_alike(relpos, tmp_path):
    data = write_table(tmp_path / "pairs.tsv", pairs(400) + pairs(30, words=14))
    status, out, _ = relpos(
        "translation", "compare", "--length-test", "--data", data, *QUICK,
        "--positions", "none", "--runs", tmp_path,
    )  # fmt: skip
    assert status == 0
    folder = tmp_path / "translation-lengths-tiny"
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["translations"]["words"][-1] == "16-20"
    assert metrics["held_out"]["none"]["beyond_training"]["chrf"] >= 0
    status, out, err = relpos("translation", "evaluate", folder / "none", "--data", data)
    assert status == 0, err
    assert out.splitlines()[1].split()[1] == f"{metrics['held_out']['none']['nats']:.4f}"


def test_chorales_are_evaluated_and_melodies_harmonised(harmony_folder, relpos, tmp_path):
    metrics = json.loads((harmony_folder / "metrics.json").read_text())
    status, out, _ = relpos("translation", "evaluate", harmony_folder / "shaw-2")
    assert status == 0
    assert out.splitlines()[1].split() == [
        "shaw-2", f"{metrics['held_out']['shaw-2']['nats']:.4f}"
    ]  # fmt: skip
    melody = write_chords(tmp_path / "tune.mid", [(62, 60), (64,), (60,)])
    stem = tmp_path / "new"
    status, out, err = relpos(
        "translation", "harmonise", harmony_folder / "shaw-2", melody, "--out", stem
    )
    assert status == 0
    assert out.startswith(f"wrote {stem}.mid, {stem}.musicxml and {stem}.wav (")
    assert f"{melody}: 1 note is not sung: " in err
    assert sorted(file.name for file in tmp_path.glob("new.*")) == [
        "new.mid", "new.musicxml", "new.wav"
    ]  # fmt: skip


def test_presets_are_those_of_the_library():
    assert [str(preset) for preset in TranslationPreset] == list(PRESETS)


# {shaw} stands for a trained translator, {harmony} for a model of chorales, {text} for the text,
# {files} for a folder of other files, {runs} for the folder of runs.
COMPARE, TRAIN = "translation compare", "translation train --position shaw-4"
DATA = "--data {text}"

REFUSED = [
    (COMPARE, "--data: must name parallel text, which no package carries: a folder with train.en"),
    (f"{COMPARE} --data nowhere", "nowhere: no such file or folder; must be a folder with"),
    (f"{COMPARE} --data {{files}}/unequal", "must have equally many lines, got 3 and 2"),
    (f"{COMPARE} --data {{files}}/empty", "train.de: must hold sentences, got an empty file"),
    (f"{COMPARE} --data {{files}}/latin", "line 1 must be UTF-8, got the byte 0xe4"),
    (f"{COMPARE} --data {{files}}/alone", "must have two languages, got en alone"),
    (f"{COMPARE} {DATA} --chorales", "--data: is for text; leave it out with --chorales"),
    (f"{COMPARE} --source en --chorales", "--source: is for text"),
    (f"{COMPARE} --length-test --chorales", "--length-test: is for text"),
    (f"{COMPARE} --chorales --preset paper", "--preset: must be one of default, tiny with --chor"),
    (f"{COMPARE} {DATA} --source fr", "--source must be one of en, de, got 'fr'"),
    (f"{COMPARE} {DATA} --positions shaw,shaw-x", "--positions: must be names among sinusoidal, "),
    (f"{COMPARE} {DATA} --positions shaw-1,", "with commas, or all, got ''"),
    (f"{COMPARE} {DATA} --positions xpos", "shaw-K-values with commas, or all, got 'xpos'"),
    (f"{COMPARE} {DATA} --positions none --ablation", "--ablation: has positions of its own"),
    (f"{COMPARE} {DATA} --batch 9999999999999", "choose a smaller --batch"),
    (f"{COMPARE} {DATA} --runs {{files}}/unequal/train.en", "report.html: cannot be written, "),
    (f"{COMPARE} {DATA} --preset huge", "Invalid value for '--preset'"),
    ("translation train", "Missing option '--position'"),
    ("translation train --position bert", "--position: must be one of sinusoidal, "),
    (TRAIN, "--data: must name parallel text"),
    (
        f"translation train --position shaw-16 {DATA} --runs {{runs}} --preset tiny",
        "other settings (settings.training.batch was 64, now 1024); choose another --name",
    ),
    ("translation evaluate nowhere", "nowhere: no such file or folder"),
    (
        "translation evaluate {shaw}",
        "shaw-16 was trained, got none; give it as --data PATH/captions",
    ),
    ("translation evaluate {shaw} --data {files}/other.tsv", "was trained on the pairs of captio"),
    (f"translation evaluate {{harmony}} {DATA}", "--data: leave it out; "),
    ("translation translate nowhere hi", "nowhere: no such file or folder"),
    ("translation translate {harmony} hi", "must be a model of text, got chorales"),
    ("translation translate {shaw} hi --file a.txt", "--file: must not come with sentences"),
    ("translation translate {shaw} --file a.txt", "a.txt: No such file or directory"),
    ("translation translate {shaw} --file {files}/latin/train.de", "line 1 must be UTF-8"),
    ("translation translate {shaw} --file {files}/empty/train.de", "must hold sentences"),
    ("translation translate {shaw} hi --beam 0", "Invalid value for '--beam'"),
    *(
        (
            f"translation translate {{shaw}} hi --alpha {alpha}",
            f"'--alpha': must be a number in 0..10, got {float(alpha)}",
        )
        for alpha in ("-1", "1e9", "inf", "nan")
    ),
    (
        "translation translate {shaw} --file {files}/other.tsv --out {files}/other.tsv",
        "--out: must be another file than the one that is read, got ",
    ),
    ("translation translate {shaw} hi --out {files}/latin", "latin: cannot be written, "),
    ("translation harmonise {shaw} {files}/high.mid", "must be a model of chorales, got text"),
    (
        "translation harmonise {harmony} {files}/high.mid --out {files}/high",
        "--out: must be another file than the one that is read, got ",
    ),
    ("translation harmonise {harmony} no.mid", "no.mid: cannot be read: No such file"),
    ("translation harmonise {harmony} {files}/high.mid", "the melody must lie in "),
]


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """A folder of texts that cannot be used."""
    folder = tmp_path_factory.mktemp("files")
    texts = {
        "unequal": (b"a b\nc\nd\n", b"x\ny\n"),
        "empty": (b"a\n", b"\n"),
        "latin": (b"a\n", "schläft\n".encode("latin-1")),
        "alone": (b"a\n", None),
    }
    for name, sides in texts.items():
        (folder / name).mkdir()
        for language, raw in zip(("en", "de"), sides, strict=True):
            if raw is not None:
                (folder / name / f"train.{language}").write_bytes(raw)
    write_table(folder / "other.tsv", pairs(200))
    write_melody(folder / "high.mid", [125] * 4)
    return folder


@pytest.mark.parametrize(("command", "message"), REFUSED)
def test_bad_input_is_one_line_and_exit_2(
    command, message, run_folder, harmony_folder, text_folder, files, relpos, tmp_path, monkeypatch
):
    words = {
        "shaw": run_folder[0] / "shaw-16",
        "runs": run_folder[0].parent,
        "harmony": harmony_folder / "shaw-2",
        "text": text_folder,
        "files": files,
    }
    monkeypatch.chdir(tmp_path)
    status, out, err = relpos(*(word.format(**words) for word in command.split(" ")))
    assert (status, out) == (2, "")
    (line,) = [line for line in err.splitlines() if line.startswith("relpos: ")]
    assert message in line
    assert not list(tmp_path.rglob("*"))


@pytest.mark.parametrize("command", ["evaluate", "translate", "harmonise"])
def test_the_example_of_a_checkpoint_is_a_folder_of_a_run(command, run_folder, relpos, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    (name,) = re.findall(r"RUNS/NAME/([\w-]+)", relpos("translation", command, "--help")[1])
    assert (run_folder[0] / name / "model.safetensors").is_file()
