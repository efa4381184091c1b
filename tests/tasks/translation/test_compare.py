"""`compare`: the files and numbers that a run leaves."""

import json
from statistics import fmean

import pytest
from lightning.pytorch.utilities import rank_zero_only

from relpos_tasks.training.comparison import Comparison
from relpos_tasks.training.sequence_to_sequence import mean_nats
from relpos_tasks.training.settings import TrainingError
from relpos_tasks.translation.compare import check_comparison, compare
from relpos_tasks.translation.harmony_showcase import HarmonyShowcase
from relpos_tasks.translation.model import load_translation
from relpos_tasks.translation.text_showcase import TextShowcase
from relpos_tasks.translation.translate import translate
from tests.tasks.small import CPU
from tests.tasks.translation.small import COMPARISON, small, small_chorales

MODELS = [
    "shaw-1-keys",
    "shaw-1-keys-seed-4",
    "shaw-2",
    "shaw-2-seed-4",
    "sinusoidal",
    "sinusoidal-seed-4",
]
PAGE = ["machine.json", "metrics.json", "report.html"]
HARMONY = ["harmony.mid", "harmony.musicxml", "harmony.wav"]


def test_a_run_on_text_leaves_these_files_and_no_others(compared_text):
    folder, _ = compared_text
    assert sorted(file.name for file in folder.iterdir()) == sorted([*MODELS, *PAGE])
    assert not list(folder.rglob(".part-*"))


def test_a_run_on_chorales_leaves_a_harmony_too(compared_chorales):
    folder, _ = compared_chorales
    assert sorted(file.name for file in folder.iterdir()) == sorted([*MODELS, *PAGE, *HARMONY])


def test_metrics_have_the_promised_names(compared_text, text):
    folder, _ = compared_text
    metrics = json.loads((folder / "metrics.json").read_text())
    assert list(metrics["held_out"]) == list(COMPARISON.positions)
    for name, measured in metrics["held_out"].items():
        assert measured["nats"] == fmean(measured["nats_by_seed"])
        assert measured["bleu"] == fmean(measured["bleu_by_seed"])
        assert measured["bleu_low"] <= measured["bleu_high"]
        assert len(measured["bleu_by_seed"]) == 2
        assert ("difference" in measured) == (name != "sinusoidal")
    assert metrics["held_out"]["shaw-2"]["difference"]["from"] == "sinusoidal"
    found = metrics["translations"]
    assert found["sentences"] == len(text.split.held_out) == sum(found["sentences_by_words"])
    assert found["signatures"]["bleu"].startswith("nrefs:1|case:mixed|")
    for by_seed in found["bleu_by_words"].values():
        assert [len(one) for one in by_seed] == [len(found["words"])] * 2
    assert (metrics["steps"], metrics["seeds"]) == (4, [3, 4])
    assert metrics["settings"]["training"]["steps"] == metrics["steps"]
    assert metrics["data"]["digest"] == text.digest
    assert metrics["model"]["width"] == small().width
    assert metrics["seconds"] > 0


def test_metrics_of_chorales_have_nats_alone(compared_chorales):
    folder, _ = compared_chorales
    metrics = json.loads((folder / "metrics.json").read_text())
    for measured in metrics["held_out"].values():
        assert list(measured) == ["nats", "nats_by_seed"]
    assert "translations" not in metrics


@pytest.mark.parametrize("name", ["sinusoidal", "shaw-2", "shaw-1-keys-seed-4"])
def test_a_checkpoint_measures_and_translates_as_the_model_did(compared_text, text, name):
    folder, results = compared_text
    position, _, seed = name.partition("-seed-")
    n = 1 if seed else 0
    trained = load_translation(folder / name)
    nats = mean_nats(trained.model, text.held_out(small()), padding=text.padding)
    assert nats == results.held_out[position][n]
    sources = [pair.source for pair in text.split.held_out]
    found = translate(trained.model, trained.of_text(), sources, beam=2)
    assert found == results.translations.systems[position][n]


def test_a_checkpoint_of_chorales_measures_as_the_model_did(compared_chorales, chorales):
    folder, results = compared_chorales
    trained = load_translation(folder / "shaw-2")
    assert trained.of_chorales() == (chorales.vocabulary, 16)
    nats = mean_nats(trained.model, chorales.held_out(small_chorales()), padding=chorales.padding)
    assert nats == results.held_out["shaw-2"][0]


def test_a_finished_comparison_finds_the_same_again(compared_text, text):
    folder, results = compared_text
    again = compare(
        small(), COMPARISON, text, TextShowcase(), folder=folder, devices=CPU, say=lambda _: None
    )
    assert again is not None
    assert again.held_out == results.held_out
    assert again.translations.systems == results.translations.systems


def test_processes_of_other_devices_write_nothing(compared_text, text, monkeypatch):
    folder, _ = compared_text
    before = (folder / "metrics.json").read_bytes()
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    found = compare(
        small(), COMPARISON, text, TextShowcase(), folder=folder, devices=CPU, say=lambda _: None
    )
    assert found is None
    assert (folder / "metrics.json").read_bytes() == before


@pytest.mark.parametrize("name", [*PAGE, *HARMONY])
def test_what_is_in_a_files_way_is_named_before_training(tmp_path, name):
    (tmp_path / name).mkdir()
    with pytest.raises(ValueError, match=f"{name}: cannot be written, "):
        check_comparison(
            small_chorales(), COMPARISON, HarmonyShowcase(), folder=tmp_path, devices=CPU
        )


def test_a_step_that_does_not_fit_the_memory_is_refused(tmp_path):
    settings, one = small(batch=10**12), Comparison(["none"])
    with pytest.raises(TrainingError, match="2,000,000,000,000 tokens must fit the memory"):
        check_comparison(settings, one, TextShowcase(), folder=tmp_path, devices=CPU)
    with pytest.raises(ValueError, match="position: must be one of"):
        check_comparison(
            small(), Comparison(["xpos"]), TextShowcase(), folder=tmp_path, devices=CPU
        )


def test_seeds_share_data_but_not_numbers(compared_text):
    _, results = compared_text
    for nats in results.held_out.values():
        assert nats[0] != nats[1]
