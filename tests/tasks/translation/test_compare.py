"""`compare`: the files and numbers that a run leaves."""

import json
import shutil
from dataclasses import replace
from statistics import fmean

import pytest
from lightning.pytorch.utilities import rank_zero_only

from relpos_tasks.training.checkpoint import CheckpointError
from relpos_tasks.training.comparison import Comparison
from relpos_tasks.training.sequence_to_sequence import mean_nats
from relpos_tasks.training.settings import TrainingError
from relpos_tasks.translation.compare import check_comparison, compare
from relpos_tasks.translation.harmony_showcase import HarmonyShowcase
from relpos_tasks.translation.model import load_translation
from relpos_tasks.translation.text_showcase import TextShowcase
from relpos_tasks.translation.train import train_position
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
    assert found["search"] == {"beam": 2, "alpha": 0.6}
    for name in ("shaw-2", "shaw-1-keys"):
        bleu = [metrics["held_out"][one]["bleu_by_seed"] for one in (name, "sinusoidal")]
        expected = [one - other for one, other in zip(*bleu, strict=True)]
        assert metrics["held_out"][name]["difference_by_seed"] == expected


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
    beam, alpha = trained.search()
    found = translate(trained.model, trained.of_text(), sources, beam=beam, alpha=alpha)
    assert (beam, alpha, trained.search(3, 0.0)) == (2, 0.6, (3, 0.0))
    assert found == results.translations.systems[position][n]


def test_a_checkpoint_of_chorales_measures_as_the_model_did(compared_chorales, chorales):
    folder, results = compared_chorales
    trained = load_translation(folder / "shaw-2")
    assert trained.of_chorales() == (chorales.vocabulary, 16)
    nats = mean_nats(trained.model, chorales.held_out(small_chorales()), padding=chorales.padding)
    assert nats == results.held_out["shaw-2"][0]


def test_the_search_is_kept_beside_the_settings_and_stops_no_run_from_going_on(
    compared_text, text, tmp_path
):
    folder = tmp_path / "run"
    shutil.copytree(compared_text[0], folder)
    one = Comparison(["shaw-2"], seed=3)
    model = folder / "shaw-2"
    kept = json.loads((model / "model.json").read_text())
    assert kept.pop("search") == {"beam": 2, "alpha": 0.6}
    # As a run of before it was kept.
    (model / "model.json").write_text(json.dumps(kept))
    assert load_translation(model).search() == (4, 0.6)
    greedy = replace(small(), beam=1)
    check_comparison(greedy, one, TextShowcase(), folder=folder, devices=CPU)
    compare(greedy, one, text, TextShowcase(), folder=folder, devices=CPU, say=lambda _: None)
    assert load_translation(model).search() == (1, 0.6)
    assert json.loads((folder / "metrics.json").read_text())["translations"]["search"]["beam"] == 1
    (model / "model.json").write_text(json.dumps(kept | {"search": {"beam": 0}}))
    with pytest.raises(CheckpointError, match="beam must be"):
        load_translation(model)


def test_other_pairs_are_refused_before_anything_is_trained(compared_text, text):
    folder, _ = compared_text
    other = replace(text, name="other", digest="12")
    message = r"data, captions \(\w+\), got other \(12\); choose another --name"
    with pytest.raises(TrainingError, match=message):
        train_position("shaw-2", small(), other, folder=folder / "shaw-2", devices=CPU)
    # A scheme that is not there yet comes first.
    more = Comparison(["rotary", *COMPARISON.positions], seed=3)
    with pytest.raises(TrainingError, match=message):
        compare(small(), more, other, TextShowcase(), folder=folder, devices=CPU)
    assert not (folder / "rotary").exists()


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
