"""The program that compares `attn_implementation="relpos"` with models' own, and its section."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch
import transformers as hf
from torch import Tensor

from benchmarks import attn_implementation as program
from benchmarks.measure import adapted, implementation_sweep, model_parts
from benchmarks.measure.implementation_sweep import KINDS, measure_sweep
from benchmarks.report.implementation_section import implementation_section, sweep_table
from benchmarks.workloads.adapted import WITHOUT_RELATIVE, AdaptedModel, find_model
from benchmarks.workloads.small_models import NotSmallError, small_model
from relpos.adapters import attn_implementation

pytestmark = pytest.mark.no_typecheck


def small(layers: int) -> hf.PreTrainedModel:
    config = hf.Gemma2Config(
        vocab_size=1000, hidden_size=32, intermediate_size=48, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, use_cache=False,
    )  # fmt: skip
    return hf.Gemma2Model(config)


SMALL = AdaptedModel(
    "", "small", small, find_model("Gemma 2 2B, softcap").inputs, "tokens",
    (8, 16), (), "layers.1", "self_attn", {},
)  # fmt: skip


def row(outcome: str, name: str = "llama", kind: str = "causal") -> dict[str, str]:
    more = {"texts": "equal"} if outcome == "agrees" else {}
    return {"model": name, "class": name.title(), "kind": kind, "outcome": outcome} | more


def test_a_model_is_timed_beside_the_implementation_that_is_right():
    rows = adapted.measure_time(SMALL, seconds=0.01)
    assert {(row["length"], row["part"], row["pass"]) for row in rows} == {
        (length, part, label)
        for length in (8, 16)
        for part in ("attention", "layer")
        for label in ("forward", "forward+backward")
    }
    assert {row["best"] for row in rows} == {"eager"}
    assert all(0 < row["error"] < 1e-5 for row in rows)


@pytest.mark.parametrize("model", WITHOUT_RELATIVE, ids=lambda model: model.name)
def test_the_layers_that_are_timed_are_those_of_their_names(model):
    with torch.device("meta"):
        layer = model.build(2).get_submodule(model.layer)
    attention = layer.get_submodule(model.attention)
    slides = any(
        getattr(module, name, None) not in (None, False)
        for module in (layer, attention)
        for name in ("sliding_window", "is_sliding")
    )
    assert slides == ("window" in model.name)


def test_the_program_writes_where_it_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(model_parts, "PARTS", {"time": lambda model: [{"model": model.name}]})
    out = tmp_path / "out.json"
    name = "BERT base"
    for _ in range(2):
        monkeypatch.setattr(
            "sys.argv", ["program", "--models", name, "--parts", "time", "--out", str(out)]
        )
        program.main()
    found = json.loads(out.read_text())
    assert found["time"] == [{"model": name}]
    assert set(found["processors"]) == set(found["commits"]) == {f"{name}: time"}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--models", "GPT-9"], "invalid choice: 'GPT-9'"),
        (["--sweep", "films"], "invalid choice: 'films'"),
        (["--out", "."], "--out: must be a file, got the folder"),
    ],
)
def test_wrong_options_are_refused(given, words, refusal):
    assert words in refusal(program, given)


@pytest.mark.costly(2, of="programs that measure")
def test_the_sweep_finds_models_that_agree_and_says_of_others_why():
    outcomes = {
        name: measure_sweep(kind, [name])[0]
        for kind, name in (
            ("causal", "llama"), ("causal", "bloom"), ("causal", "mamba"), ("images", "resnet"),
            ("masked", "bert"), ("images", "vit"), ("encoder and decoder", "bart"),
            ("speech", "wav2vec2"), ("speech to text", "whisper"), ("images and texts", "clip"),
            ("texts about images", "llava"), ("texts about images", "inkling_mm_model"),
        )
    }  # fmt: skip
    agrees = {name for name, found in outcomes.items() if found["outcome"] == "agrees"}
    assert agrees == {"llama", "bert", "vit", "bart", "wav2vec2", "whisper", "clip", "llava"}
    assert outcomes["bloom"]["outcome"] == "no interface"
    assert outcomes["mamba"]["outcome"] == outcomes["resnet"]["outcome"] == "no attention"
    assert outcomes["inkling_mm_model"]["outcome"] == "not made"
    assert "must have at most" in outcomes["inkling_mm_model"]["reason"]
    assert outcomes["bart"]["texts"] == outcomes["llava"]["texts"] == "equal"
    assert "texts" not in outcomes["whisper"]
    assert outcomes["llava"]["images"] == "compared"
    assert outcomes["llava"]["padding"]
    assert not outcomes["whisper"]["padding"]


def test_the_sweep_finds_models_that_differ_or_fail(monkeypatch: pytest.MonkeyPatch):
    original = attn_implementation.attention_function

    def other(*args, **kwargs) -> tuple[Tensor, Tensor | None]:
        output, weights = original(*args, **kwargs)
        return 1.1 * output, weights

    monkeypatch.setattr(implementation_sweep.attn_implementation, "attention_function", other)
    (row,) = measure_sweep("causal", ["llama"])
    assert row["outcome"] == "differs"
    assert row["difference"] > implementation_sweep.AGREES

    def failing(*args, **kwargs) -> None:
        raise ValueError("no such mask")

    monkeypatch.setattr(implementation_sweep.attn_implementation, "attention_function", failing)
    (row,) = measure_sweep("causal", ["llama"])
    assert (row["outcome"], row["reason"]) == ("fails", "ValueError: no such mask")


@pytest.mark.parametrize("factor", [1.1, float("nan")])
def test_the_sweep_finds_images_that_differ(factor: float, monkeypatch: pytest.MonkeyPatch):
    original = attn_implementation.attention_function

    def other(module: torch.nn.Module, *args, **kwargs) -> tuple[Tensor, Tensor | None]:
        output, weights = original(module, *args, **kwargs)
        return (factor if "CLIP" in type(module).__name__ else 1) * output, weights

    monkeypatch.setattr(implementation_sweep.attn_implementation, "attention_function", other)
    (row,) = measure_sweep("texts about images", ["llava"])
    assert (row["outcome"], row["texts"]) == ("differs", "equal")


def test_a_model_that_takes_too_long_fails_and_leaves_the_implementation_as_it_was(monkeypatch):
    def slow(*args, **kwargs) -> None:
        time.sleep(5)

    monkeypatch.setattr(implementation_sweep, "_SECONDS", 1)
    monkeypatch.setattr(implementation_sweep, "small_model", slow)
    (row,) = measure_sweep("causal", ["llama"])
    assert (row["outcome"], row["reason"]) == (
        "fails", "TimeIsOverError: must end within 1 seconds",
    )  # fmt: skip
    registered = hf.AttentionInterface()["relpos"]
    assert registered is attn_implementation.attention_function


def test_a_model_that_runs_at_no_size_is_not_made():
    def fails(model: hf.PreTrainedModel) -> None:
        raise ValueError("never runs")

    with pytest.raises(NotSmallError, match="ValueError: never runs"):
        small_model(hf.BertConfig, hf.BertForMaskedLM, fails)


def test_the_section_counts_what_agrees():
    none = {"texts": "ValueError: none"}
    sweep = [
        row("agrees"), row("agrees", "bart") | {"padding": True} | none,
        row("fails", "git"), row("no interface", "xlm"), row("not made", kind="images"),
        row("agrees", kind="images"), row("agrees", "bart", "speech") | none,
    ]  # fmt: skip
    machine = {"processor": "One", "capability": "AVX2", "threads": 2, "torch": "2", "commit": "a"}
    result = {
        "machine": machine, "time": [], "memory": [], "sweep": sweep,
        "commits": {"BERT base: time": "a", "sweep: causal": "b"},
        "processors": {"BERT base: time": {"processor": "One", "capability": "AVX2"}},
    }  # fmt: skip
    section = implementation_section(result)
    words = " ".join(section.split())
    assert "2 of the 3 classes that ran agree" in words
    assert "the 1 that take a mask of padding" in words
    assert "of 1 that generate texts from texts, 1 generate the same" in words
    assert "commit b" in words
    assert "| agree | bart, llama | 2 |" in sweep_table(result)
    assert "| fail | git | 1 |" in section


def test_the_kinds_are_those_of_the_committed_sweep():
    result = json.loads(program.RESULTS.joinpath("attn_implementation.json").read_text())
    assert {row["kind"] for row in result["sweep"]} == set(KINDS)
