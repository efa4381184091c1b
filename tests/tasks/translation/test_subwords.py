"""Subwords: exact for any text, the same each time, read back from JSON."""

import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relpos_tasks.translation import Subwords, learn_subwords
from relpos_tasks.translation.subwords import BEGIN, END, PADDING
from tests.tasks.translation.sentences import pairs

TEXTS = [text for pair in pairs(40) for text in pair]
LEARNED = learn_subwords(TEXTS, size=400)
# Anything that UTF-8 can write.
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@given(st.lists(ANY_TEXT | st.sampled_from(TEXTS), max_size=4))
def test_encoded_and_decoded_is_the_text_itself(texts):
    encoded = LEARNED.encode_all(texts)
    assert [LEARNED.decode(ids) for ids in encoded] == texts
    assert all(END < index < LEARNED.size for ids in encoded for index in ids)
    assert encoded == [LEARNED.encode(text) for text in texts]


@pytest.mark.parametrize(
    "text", ["", " ", "  a  ", "\u2028\x85", "a\tb\r\n", "<pad></s>", "\x00", "👩‍👩", "u\u0308"]
)
def test_odd_texts_come_back_too(text):
    assert LEARNED.decode(LEARNED.encode(text)) == text


def test_what_is_not_text_is_passed_over_or_refused():
    ids = LEARNED.encode("Ein Mann")
    assert LEARNED.decode([BEGIN, *ids, END, PADDING, PADDING]) == "Ein Mann"
    with pytest.raises(ValueError, match=r"must be Unicode without lone surrogates, got '"):
        LEARNED.encode("\udc80")


def test_a_word_is_the_same_subword_wherever_it_stands():
    ids = LEARNED.encode("Mann Mann")
    assert ids[: len(ids) // 2] == ids[len(ids) // 2 :]
    assert LEARNED.pieces([BEGIN, *LEARNED.encode("Ein Mann!"), END, PADDING]) == [
        "<begin>", "▁Ein", "▁Mann", "!", "<end>", "<pad>",
    ]  # fmt: skip


def test_the_merges_do_not_depend_on_order_or_threads():
    expected = LEARNED.about()
    assert learn_subwords(reversed(TEXTS), size=400).about() == expected
    program = (
        "import json\n"
        "from tests.tasks.translation.test_subwords import LEARNED\n"
        "print(json.dumps(LEARNED.about()))"
    )
    for parallel in ("true", "false"):
        environment = os.environ | {"TOKENIZERS_PARALLELISM": parallel, "PYTHONHASHSEED": "7"}
        found = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, check=True
        )
        assert json.loads(found.stdout) == expected


def test_what_is_no_word_teaches_nothing_and_can_still_be_encoded():
    """The time of a word grows with the square of its length: of this one it would be minutes."""
    junk = "xy" * 200_000
    found = learn_subwords([*TEXTS, junk, f"Ein {junk} Mann"], size=400)
    assert found.about() == learn_subwords([*TEXTS, " ", "Ein   Mann"], size=400).about()
    assert found.decode(found.encode(junk[:3000])) == junk[:3000]


def test_more_merges_begin_with_the_fewer_and_small_texts_have_small_vocabularies():
    assert (
        learn_subwords(TEXTS, size=300).merges
        == LEARNED.merges[: len(learn_subwords(TEXTS, size=300).merges)]
    )
    assert LEARNED.size == 400
    assert learn_subwords(["ab"], size=4000).size == 259
    assert learn_subwords([], size=259).decode(learn_subwords([], size=259).encode("é")) == "é"


def test_subwords_come_back_from_json():
    read = Subwords.from_about(json.loads(json.dumps(LEARNED.about())))
    assert read == LEARNED
    assert read != learn_subwords(TEXTS, size=300)
    assert read.encode_all(TEXTS) == LEARNED.encode_all(TEXTS)


BROKEN = {
    "no object": ([], r"must be an object with 'merges', got \[\]"),
    "no merges": ({"size": 259}, "must be an object with 'merges'"),
    "another size": ({"size": 9, "merges": ["a b"]}, "size must be the 260 of the merges, got 9"),
    "one part": ({"size": 260, "merges": ["a b", "ab"]}, r"merges\[1\] must be two known subwords"),
    "unknown": ({"size": 260, "merges": ["a bc"]}, r"merges\[0\] must be .* got 'a bc'"),
    "a number": ({"size": 260, "merges": [7]}, r"merges\[0\] must be two known .* got '7'"),
}


@pytest.mark.no_typecheck
@pytest.mark.parametrize(("about", "message"), BROKEN.values(), ids=BROKEN)
def test_broken_subwords_are_refused_in_words(about, message):
    with pytest.raises(ValueError, match=f"Subwords: {message}"):
        Subwords.from_about(about)


def test_a_vocabulary_must_have_room_for_all_bytes():
    with pytest.raises(ValueError, match=r"size must be at least 259, .* got 258"):
        learn_subwords(TEXTS, size=258)
