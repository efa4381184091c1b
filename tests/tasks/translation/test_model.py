"""A checkpoint of a translation model with its subwords and languages."""

import json
from dataclasses import replace

import pytest

from relpos_tasks.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from relpos_tasks.training.checkpoint import CheckpointError, save_about, save_weights
from relpos_tasks.translation import Pair, TextError, learn_subwords, read_source
from relpos_tasks.translation.model import check_source, load_translation
from relpos_tasks.translation.subwords import LONGEST_LINE
from tests.tasks.translation.sentences import pairs, write_folder, write_table
from tests.tasks.translation.small import small

# What says which pairs were held out.
SETTINGS = {"length_test": False, "long_sentences": None}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "captions"
    text = pairs(120)
    return write_folder(folder, {"train": text[:100], "val": text[100:]})


@pytest.fixture
def changed(data, tmp_path):
    """Makes a checkpoint whose `model.json` says something else of its data, or with None less."""
    source = read_source(data, vocabulary=300)

    def change(settings=SETTINGS, **fields):
        size = source.subwords.size
        config = EncoderDecoderConfig(size, size, width=8, layers=1, heads=2)
        kept = source.about() | fields
        kept = {name: value for name, value in kept.items() if value is not None}
        about = {"model": config.to_dict(), "data": kept, "settings": settings}
        save_about(tmp_path, about)
        save_weights(tmp_path, EncoderDecoder(config))
        return tmp_path

    return change


def test_subwords_and_languages_come_back_from_a_checkpoint(changed, data):
    source = read_source(data, vocabulary=300)
    trained = load_translation(changed())
    assert trained.vocabulary == source.subwords
    assert trained.languages == ("en", "de")
    assert trained.model.config.source_vocabulary == source.subwords.size
    check_source(trained, source, "runs/a")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"subwords": None}, "KeyError 'subwords'"),
        ({"subwords": {"size": 259, "merges": []}}, "data.subwords must be the model's 300 tokens"),
        ({"subwords": {"size": 300, "merges": ["a b"]}}, "size must be the 260 of the merges"),
        ({"languages": ["en"]}, r"data.languages must be two names, got \['en'\]"),
        ({"languages": "ende"}, "data.languages must be two names"),
        ({"digest": 3}, "data.digest must be text, got 3"),
        ({"name": None}, "KeyError 'name'"),
        ({"settings": {}}, "KeyError 'length_test'"),
        ({"settings": SETTINGS | {"length_test": 1}}, "length_test must be true or false, got 1"),
        ({"settings": SETTINGS | {"long_sentences": 0}}, "long_sentences must be an integer >= 1"),
    ],
    ids=str,
)
def test_what_model_json_says_against_the_model_is_refused(changed, fields, message):
    folder = changed(**fields)
    with pytest.raises(
        CheckpointError, match=rf"^{folder}: is not a checkpoint of the transl.*{message}"
    ):
        load_translation(folder)


def test_other_pairs_or_another_direction_are_refused(changed, data, tmp_path):
    trained = load_translation(changed())
    turned = read_source(data, source="de", vocabulary=300)
    message = (
        r"runs/a: was trained on the pairs of captions \(.*\), en to de, got captions \(.*\), "
        r"de to en; give --source en --target de"
    )
    with pytest.raises(CheckpointError, match=message):
        check_source(trained, turned, "runs/a")


def test_the_source_is_known_by_its_pairs_and_subwords_are_of_training_alone(data, tmp_path):
    one, two = read_source(data, vocabulary=300), read_source(data, vocabulary=280)
    assert one.digest == two.digest
    assert (one.subwords.size, two.subwords.size) == (300, 280)
    assert json.loads(json.dumps(one.about()))["split"].startswith("train 98 pairs; valid ")
    text = pairs(400) + pairs(30, words=14)
    by_length = read_source(write_table(tmp_path / "t.tsv", text), by_length=True, vocabulary=300)
    whole = read_source(tmp_path / "t.tsv", vocabulary=300)
    assert by_length.digest != whole.digest
    assert by_length.languages == ("source", "target")


def test_sentences_too_long_to_be_translated_are_left_out_before_anything_is_trained(tmp_path):
    text, long = pairs(120), " ".join(f"{n}" for n in range(600))
    odd = (Pair(f"x {long}", "kurz"), Pair("short", long), *text[100:])
    parts = {"train": text[:90], "val": (*text[90:100], Pair(long, "y")), "test": odd}
    folder = write_folder(tmp_path / "m", parts)
    source = read_source(folder, vocabulary=300)
    assert source.split.held_out == text[100:]
    assert source.split.valid == text[90:100]
    assert str(source.split).endswith("held out 20 pairs; too long to measure 3")
    # The pairs of a checkpoint are the same whatever is too long with its subwords.
    for subwords in (source.subwords, learn_subwords([long, long], size=4_000)):
        again = read_source(folder, subwords=subwords)
        assert (again.digest, again.subwords) == (source.digest, subwords)
    assert len(again.split.held_out) == 22
    alone = write_folder(tmp_path / "a", {"train": text[:90], "val": (Pair(long, "y"),)})
    with pytest.raises(TextError, match=r"a: must have a sentence of at most 1,000 subwords to wa"):
        read_source(alone, vocabulary=300)


def test_a_line_as_long_as_may_be_is_measured_and_translated_alike(tmp_path):
    subwords = learn_subwords(["x"], size=259)
    for length, kept in ((LONGEST_LINE - 1, True), (LONGEST_LINE, False)):
        folder = tmp_path / str(length)
        held_out = (Pair("x" * length, "y"), Pair("a", "b"))
        write_folder(folder, {"train": pairs(90), "val": held_out})
        split = read_source(folder, subwords=subwords).split
        assert (held_out[0] in split.held_out) is kept
        assert (len(subwords.encode("x" * length)) <= LONGEST_LINE) is kept


def test_training_pairs_that_are_all_too_long_are_named(data):
    source, settings = read_source(data, vocabulary=300), replace(small(), most_subwords=2)
    with pytest.raises(TextError, match="captions: must have pairs of at most 2 subwords to train"):
        source.data(settings)
