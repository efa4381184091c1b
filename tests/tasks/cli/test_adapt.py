"""`relpos adapt ...` as it is typed, on small saved models."""

from __future__ import annotations

import json
import re

import pytest
import transformers
from transformers import BertConfig, BertModel

from tests.adapters.models import BY_NAME


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A function that saves the small model of a case: its folder."""
    transformers.logging.disable_progress_bar()

    def save(name):
        folder = tmp_path_factory.mktemp("models") / "saved"
        BY_NAME[name].model().save_pretrained(folder)
        return folder

    return save


def test_the_report_alone(relpos, saved):
    status, out, err = relpos("adapt", saved("wav2vec2_bert relative_key"))
    assert (status, err) == (0, "")
    assert out.splitlines() == [
        "adapted: 2",
        "  encoder.layers.{0..1}.self_attn  2  Shaw keys",
        "left as they were: 0",
    ]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("wav2vec2_bert relative_key", "40 frames of features"),
        ("deberta_v3", "40 tokens"),
        ("t5", "40 tokens"),
        ("parakeet", "40 frames of features"),
    ],
)
def test_a_check_measures_and_writes_nothing(relpos, saved, name, words):
    folder = saved(name)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    status, out, err = relpos("adapt", folder, "--check", "--length", 40, "--window", 3, 3)
    assert (status, err) == (0, "")
    assert f"one forward pass of {words}:" in out
    for line in (
        r"original  [\d.e-]+ s, \d+ MiB",
        r"adapted   [\d.e-]+ s, \d+ MiB",
        r"[\d.]+ times as fast; outputs differ by \d\.\de-0[678]",
        r"windowed  [\d.e-]+ s, \d+ MiB",
        r"the window changes the outputs by \d\.\de[+-]0[012]",
    ):
        assert re.search(line, out), line
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def refused(relpos, *arguments):
    status, out, err = relpos("adapt", *arguments)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    return err


def test_bad_folders_are_one_line(relpos, tmp_path, saved):
    assert "must be a folder with a config.json, got" in refused(relpos, tmp_path / "none")
    config = tmp_path / "config.json"
    config.write_text("[")
    assert "must be a model's configuration, got" in refused(relpos, tmp_path)
    config.write_text("[1]")
    assert "must be a model's configuration, got" in refused(relpos, tmp_path)
    for wrong in (["NoSuchModel"], ["pipeline"], ["T5Config"], {"a": 1}, [3], 3):
        config.write_text(json.dumps({"architectures": wrong}))
        assert "must name an architecture of transformers" in refused(relpos, tmp_path)
    for none in ("{}", '{"model_type": "no_such"}', '{"model_type": 3}'):
        config.write_text(none)
        assert "got (none)" in refused(relpos, tmp_path)
    folder = saved("t5")
    config = folder / "config.json"
    whole = json.loads(config.read_text())
    for change in (
        {"d_model": "x"},
        {"d_model": 33},
        {"dtype": "float99"},
        {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}},
    ):
        config.write_text(json.dumps(whole | change))
        assert "must hold a saved T5ForConditionalGeneration whose" in refused(relpos, folder)
    config.write_text(json.dumps(whole | {"d_kv": whole["d_kv"] + 1}))
    misfit = r"SelfAttention\.[a-z]+\.weight of \(\d+, \d+\), where it says \(\d+, \d+\)"
    assert re.search(misfit, refused(relpos, folder))
    config.write_text(json.dumps(whole))
    (folder / "model.safetensors").write_bytes(b"cut")
    assert "must hold a saved T5ForConditionalGeneration whose" in refused(relpos, folder)
    (folder / "model.safetensors").unlink()
    assert "must hold a saved T5ForConditionalGeneration whose" in refused(relpos, folder)


def test_weights_that_are_not_there_are_named_and_adapters_refused(relpos, tmp_path, saved):
    folder = saved("t5 without a decoder")
    path = folder / "config.json"
    said = json.loads(path.read_text())
    path.write_text(json.dumps(said | {"architectures": ["T5ForTokenClassification"]}))
    lacking = "lacks weights of T5ForTokenClassification, which are random here: 2, the first cl"
    with pytest.warns(UserWarning, match=lacking):
        status, out, _ = relpos("adapt", folder)
    assert status == 0
    assert "adapted: 2" in out
    (folder / "adapter_config.json").write_text("{}")
    assert "with an adapter of PEFT: merge_and_unload() and" in refused(relpos, folder)
    path.unlink()
    assert "with an adapter of PEFT: merge_and_unload() and" in refused(relpos, folder)


def test_other_models_and_options_without_a_check_are_refused(relpos, tmp_path, saved):
    BertModel(
        BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
    ).save_pretrained(tmp_path)
    assert "got a BertModel with none" in refused(relpos, tmp_path)
    folder = saved("t5")
    assert "--length: must come with --check" in refused(relpos, folder, "--length", 9)
    assert "--window: must come with --check" in refused(relpos, folder, "--window", 1, 1)
    assert "adapt: window" in refused(relpos, folder, "--check", "--window", -1, 1)
    assert "--length" in refused(relpos, folder, "--check", "--length", 0)


def test_without_a_model_the_help_is_shown(relpos):
    status, out, _ = relpos("adapt")
    assert status == 0
    assert "MODEL_FOLDER" in out


def test_a_check_goes_no_further_than_learned_positions(relpos, tmp_path):
    transformers.MPNetModel(BY_NAME["mpnet"].model().config).save_pretrained(tmp_path)
    said = refused(relpos, tmp_path, "--check", "--length", 100_000)
    assert "--length: must be at most " in said
    assert "for MPNetModel, which has no position for more tokens, got 100000" in said


def test_a_part_that_transformers_does_not_show_is_found_by_its_type(relpos, saved):
    status, out, _ = relpos("adapt", saved("DeepseekOcr2SamVisionConfig eager"))
    assert status == 0
    assert "adapted: 2" in out


def test_a_configuration_that_names_no_class_is_of_the_model_without_a_head(relpos, tmp_path):
    model = transformers.DebertaV2Model(BY_NAME["deberta_v3"].model().config)
    model.save_pretrained(tmp_path / "saved")
    path = tmp_path / "saved" / "config.json"
    said = json.loads(path.read_text())
    del said["architectures"]
    path.write_text(json.dumps(said))
    status, out, _ = relpos("adapt", tmp_path / "saved")
    assert status == 0
    assert "adapted: 2" in out
