"""`examples/one_hour_of_speech.py` on small models with random weights, saved and loaded."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
import transformers
from tokenizers import Tokenizer, decoders
from tokenizers.models import WordLevel
from transformers import (
    ParakeetCTCConfig,
    ParakeetFeatureExtractor,
    ParakeetForCTC,
    ParakeetForTDT,
    ParakeetProcessor,
    ParakeetTDTConfig,
    ParakeetTokenizer,
)

from tests.adapters.models.case import draw
from tests.adapters.models.parakeet import ENCODER

pytestmark = [
    pytest.mark.no_typecheck,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Using the model-agnostic default `max_length`:UserWarning"),
]

SCRIPT = Path(__file__).parent.parent.parent / "examples" / "one_hour_of_speech.py"
WORDS = ["▁ba", "▁do", "ka", "▁mi", "ro", "▁su", "ti"]


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs the program here: `(status, stdout, stderr)`."""
    spec = importlib.util.spec_from_file_location("one_hour_of_speech", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def program(*arguments: Any) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", [SCRIPT.name, *map(str, arguments)])
        status = 0
        try:
            module.main()
        except SystemExit as stopped:
            status = stopped.code
        out, err = capsys.readouterr()
        return status, out, err

    return program


def processor(kind: str) -> ParakeetProcessor:
    vocabulary = {word: n for n, word in enumerate([*WORDS, "<pad>", "<blank>"])}
    backend = Tokenizer(WordLevel(vocabulary, unk_token="<pad>"))
    backend.decoder = decoders.Metaspace()
    tokenizer = ParakeetTokenizer(tokenizer_object=backend, pad_token="<pad>")
    if kind == "tdt":
        tokenizer.add_special_tokens({"additional_special_tokens": ["<blank>"]})
    extractor = ParakeetFeatureExtractor(feature_size=16)
    return ParakeetProcessor(extractor, tokenizer, decoder_type=kind)


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    """A saved model of each kind, and a minute of noise."""
    transformers.logging.disable_progress_bar()
    encoder = ENCODER | {"subsampling_factor": 8}
    configs = {
        "ctc": ParakeetCTCConfig(vocab_size=8, pad_token_id=7, encoder_config=encoder),
        "tdt": ParakeetTDTConfig(
            vocab_size=9, pad_token_id=7, blank_token_id=8, decoder_hidden_size=16,
            num_decoder_layers=1, encoder_config=encoder,
        ),
    }  # fmt: skip
    found = {}
    for kind, config in configs.items():
        torch.manual_seed(1)
        model = (ParakeetForCTC if kind == "ctc" else ParakeetForTDT)(config)
        draw(model)
        if kind == "tdt":
            # As in published ones: it starts with the blank, and durations are no tokens.
            model.generation_config.decoder_start_token_id = 8
            model.generation_config.suppress_tokens = list(range(9, 14))
        found[kind] = tmp_path_factory.mktemp(kind)
        model.save_pretrained(found[kind])
        processor(kind).save_pretrained(found[kind])
    return found


@pytest.fixture(scope="module")
def audio(tmp_path_factory) -> Path:
    """Twenty seconds in stereo at another rate than the model's."""
    path = tmp_path_factory.mktemp("audio") / "noise.flac"
    noise = np.random.default_rng(0).normal(size=(22_050 * 20, 2)) * 0.1
    soundfile.write(path, noise, 22_050)
    return path


@pytest.mark.parametrize("kind", ["ctc", "tdt"])
def test_text_with_times_comes_out(run, kind: str, folders: dict[str, Path], audio: Path):
    status, out, err = run(folders[kind], audio)
    assert status == 0, err
    assert "layers.{0..1}.self_attn" in err
    lines = out.splitlines()
    assert lines
    seconds = []
    for line in lines:
        (hours, minutes, rest, text) = re.fullmatch(
            r"\[(\d+):(\d\d):(\d\d\.\d)\] (.+)", line
        ).groups()
        assert set(re.findall(r"[a-z]{2}", text)) <= {word.strip("▁") for word in WORDS}
        seconds.append(3600 * int(hours) + 60 * int(minutes) + float(rest))
    assert seconds == sorted(seconds)
    assert 0 <= seconds[0] <= seconds[-1] <= 20
    if kind == "ctc":
        # The same words as transformers' own decoding, of the model as it was.
        import soxr

        samples, rate = soundfile.read(audio)
        given = processor(kind)(soxr.resample(samples.mean(1), rate, 16_000), sampling_rate=16_000)
        model = ParakeetForCTC.from_pretrained(folders[kind]).eval()
        (text,) = processor(kind).batch_decode(model.generate(**given), skip_special_tokens=True)
        assert " ".join(line.partition("] ")[2] for line in lines) == text


def test_the_proof_prints_and_keeps_its_figures(run, tmp_path: Path):
    kept = tmp_path / "proof.json"
    status, out, err = run("--frames", 600, "--layers", 2, "--width", 128, "--json", kept)
    assert status == 0, err
    assert "600 frames (0.01 hours) through 2 layers of width 128" in out
    figures = json.loads(kept.read_text())
    assert figures["difference"] < 1e-5
    assert figures["minutes"] > 0


def test_wrong_input_is_one_line_and_status_2(
    run, folders: dict[str, Path], audio: Path, tmp_path: Path
):
    other = tmp_path / "bert"
    config = transformers.BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
    transformers.BertModel(config).save_pretrained(other)
    text = tmp_path / "text.wav"
    text.write_text("no sound")
    empty = tmp_path / "empty.wav"
    soundfile.write(empty, np.zeros((0, 1)), 16_000)
    for arguments, words in (
        ((folders["ctc"],), "AUDIO: must be a file, got None"),
        ((folders["ctc"], tmp_path / "none.wav"), "AUDIO: must be a file"),
        ((folders["ctc"], tmp_path), "AUDIO: must be a file"),
        ((folders["ctc"], text), "Format not recognised"),
        ((folders["ctc"], empty), "AUDIO: must hold samples"),
        ((other, audio), "MODEL: must be a Parakeet model, got BertModel"),
        (("--width", 100), "--width: must be a multiple of 64, got 100"),
        (("--frames", 0), "--frames: must be at least 8, got 0"),
    ):
        status, out, err = run(*arguments)
        assert (status, out) == (2, ""), (arguments, err)
        assert words in err.splitlines()[-1]


def under_torchrun(*arguments: Any) -> str:
    """What the program prints on two processes."""
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", SCRIPT,
         *map(str, arguments)],
        capture_output=True, text=True, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.costly(1, of="several processes")
def test_two_processes_are_as_one(tmp_path: Path):
    kept = tmp_path / "proof.json"
    out = under_torchrun("--frames", 600, "--layers", 2, "--width", 128, "--json", kept)
    assert "600 frames (0.01 hours) through 2 layers of width 128" in out
    figures = json.loads(kept.read_text())
    assert figures["processes"] == 2
    assert figures["difference"] < 1e-5


@pytest.mark.parametrize("kind", ["ctc", "tdt"])
@pytest.mark.costly(1, of="several processes")
def test_two_processes_hear_what_one_hears(run, kind: str, folders: dict[str, Path], audio: Path):
    _, expected, _ = run(folders[kind], audio)
    assert under_torchrun(folders[kind], audio) == expected
