"""Sentences never straddle the split, in whatever order the pairs are read."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relpos_tasks.translation import Pair, TextError, Texts, split_by_length, split_texts
from relpos_tasks.translation import split as split_module
from relpos_tasks.translation.pairs import connected_groups, fraction_of, same_sentence
from relpos_tasks.translation.split import words
from tests.tasks.translation.sentences import pairs

# Few sentences, so that many pairs are connected.
FEW = st.lists(
    st.builds(Pair, st.sampled_from("ABCDEFGH"), st.sampled_from(["a", "b", "c", "A", "e.", "e"])),
    min_size=1,
    max_size=30,
)


def texts_of(train, **parts):
    return Texts("made up", ("en", "de"), tuple(train), **parts)


def sentences(part, side):
    return {same_sentence(pair[side]) for pair in part}


@given(FEW)
def test_groups_share_no_sentence_and_hold_every_pair(its_pairs):
    groups = connected_groups(its_pairs)
    assert sorted(pair for group in groups for pair in group) == sorted(its_pairs)
    for side in (0, 1):
        seen = [sentence for group in groups for sentence in sentences(group, side)]
        assert len(seen) == len(set(seen))


@given(FEW)
def test_a_group_is_connected(its_pairs):
    for group in connected_groups(its_pairs):
        reached, left = [group[0]], group[1:]
        while found := [
            pair
            for pair in left
            if same_sentence(pair.source) in sentences(reached, 0)
            or same_sentence(pair.target) in sentences(reached, 1)
        ]:
            reached += found
            left = [pair for pair in left if pair not in found]
        assert not left


@given(FEW, st.randoms(use_true_random=False))
def test_groups_and_their_hash_do_not_depend_on_the_order(its_pairs, rng):
    def described(given_pairs):
        return {(frozenset(group), fraction_of(group)) for group in connected_groups(given_pairs)}

    shuffled = list(its_pairs)
    rng.shuffle(shuffled)
    assert described(shuffled) == described(its_pairs)
    assert all(0 <= fraction < 1 for _, fraction in described(its_pairs))


def test_the_same_word_in_both_languages_connects_nothing():
    assert len(connected_groups([Pair("Alarm", "x"), Pair("y", "Alarm")])) == 2
    assert len(connected_groups([Pair("?!", "x"), Pair("...", "y")])) == 2


def test_a_file_of_pairs_is_split_by_groups_in_any_order():
    whole = pairs(600) + tuple(
        Pair(pair.source.upper(), f"{pair.target} So!") for pair in pairs(600)
    )
    split = split_texts(texts_of(whole))
    shuffled = list(whole)
    random.Random(0).shuffle(shuffled)
    again = split_texts(texts_of(shuffled))
    for part in ("train", "valid"):
        assert set(getattr(split, part)) == set(getattr(again, part))
    assert sentences(split.held_out, 0) == sentences(again.held_out, 0)
    parts = split.train, split.valid, split.held_out
    for side in (0, 1):
        found = [sentences(part, side) for part in parts]
        assert sum(map(len, found)) == len(set().union(*found))
    # A fiftieth of the groups of two, of which a source is held out once.
    assert [len(part) for part in parts] == [1162, 14, 12]
    assert str(split) == "train 1,162 pairs; valid 14 pairs; held out 12 pairs"
    assert split.train == tuple(pair for pair in whole if pair in set(split.train))


def test_what_is_cut_is_capped_by_whole_groups_and_the_rest_is_trained_on(monkeypatch):
    whole = pairs(900) + tuple(Pair(pair.source, f"{pair.target} So!") for pair in pairs(900))
    free = split_texts(texts_of(whole))
    assert len(free.valid) > 2 * 5
    monkeypatch.setattr(split_module, "MOST_SET_ASIDE", 5)
    capped = split_texts(texts_of(whole))
    # Groups of two: two of them fit, of which a source is held out once.
    assert (len(capped.valid), len(capped.held_out)) == (4, 2)
    assert set(capped.valid) < set(free.valid)
    assert set(capped.held_out) < set(free.held_out)
    assert set(capped.train) > set(free.train)
    assert len(capped.train) == len(whole) - 2 * 4
    for side in (0, 1):
        trained = sentences(capped.train, side)
        assert trained.isdisjoint(sentences((*capped.valid, *capped.held_out), side))
    shuffled = list(whole)
    random.Random(1).shuffle(shuffled)
    assert set(split_texts(texts_of(shuffled)).valid) == set(capped.valid)
    monkeypatch.setattr(split_module, "MOST_SET_ASIDE", 2 * len(free.valid))
    assert split_texts(texts_of(whole)).digest == free.digest


def test_the_length_test_and_what_a_folder_sets_aside_are_not_capped(monkeypatch):
    texts = texts_of(pairs(900) + pairs(60, words=14))
    expected = split_by_length(texts).digest
    watched, held_out = pairs(20)[:9], pairs(20)[9:]
    given = texts_of(pairs(40)[20:], valid=watched, held_out=held_out)
    monkeypatch.setattr(split_module, "MOST_SET_ASIDE", 2)
    assert split_by_length(texts).digest == expected
    split = split_texts(given)
    assert (split.valid, split.held_out) == (watched, held_out)


def test_what_a_folder_sets_aside_is_kept_and_never_trained_on():
    train, held_out = pairs(300), (Pair("A Man SLEEPS, loudly, 0 times", "anders"), Pair("x", "y"))
    bridge = Pair("another source", train[0].target)
    split = split_texts(texts_of((*train, bridge), held_out=held_out))
    assert split.held_out == held_out
    assert split.left_out == 2
    assert str(split).endswith("held out 2 pairs; left out 2")
    assert set(split.train) | set(split.valid) == set(train[1:])
    watched = split_texts(texts_of(train, valid=train[:1], held_out=held_out))
    assert (watched.valid, watched.train) == (train[:1], train[1:])


def test_the_length_test_trains_on_short_sentences_that_no_long_one_is_connected_with():
    short, medium, long = pairs(400), pairs(20, words=9), pairs(60, words=14)
    tied = Pair(short[0].source, long[0].target + " Ja!")
    split = split_by_length(texts_of((*short, *medium, *long, tied)))
    assert max(words(pair.target) for pair in (*split.train, *split.valid)) <= 10
    measured = [pair for pair in split.held_out if words(pair.target) > 12]
    assert set(measured) == set(long)
    assert {words(pair.target) for pair in split.held_out} > {words(long[0].target)}
    for side in (0, 1):
        trained = sentences((*split.train, *split.valid), side)
        assert trained.isdisjoint(sentences(split.held_out, side))
    total = len(split.train) + len(split.valid) + len(split.held_out) + split.left_out
    assert total == len(short) + len(medium) + len(long) + 1
    fewer = split_by_length(texts_of((*short, *long)), largest=7)
    assert sum(words(pair.target) > 12 for pair in fewer.held_out) == 7


def test_a_long_sentence_whose_group_is_trained_on_is_not_measured():
    short, long = pairs(400), pairs(2, words=14)
    trained = split_texts(texts_of(short)).train[0]
    tied = Pair(trained.source, long[0].target)
    split = split_by_length(texts_of((*short, tied, long[1])))
    assert tied not in split.held_out
    assert long[1] in split.held_out


def test_a_part_without_pairs_is_refused_in_words():
    with pytest.raises(TextError, match=r"made up: every part of the split must have a pair, got "):
        split_texts(texts_of(pairs(3)))
    with pytest.raises(TextError, match=r"must have sentences of more than 12 words, got none"):
        split_by_length(texts_of(pairs(100)))


def test_the_digest_is_of_the_pairs_and_their_parts():
    one = split_texts(texts_of(pairs(300)))
    assert one.digest == split_texts(texts_of(pairs(300))).digest
    others = (
        replace(one, train=one.train[1:]),
        replace(one, train=one.train[:-1], valid=(one.train[-1], *one.valid)),
        replace(one, held_out=one.held_out[::-1]),
        replace(one, valid=tuple(Pair(*pair[::-1]) for pair in one.valid)),
    )
    assert len({one.digest, *(other.digest for other in others)}) == 5


def test_marks_of_a_script_belong_to_the_sentence():
    assert same_sentence("कि?") != same_sentence("की?")
    assert same_sentence("कि?") == same_sentence("कि!")
    # Of an emoji as of punctuation.
    assert same_sentence("Ja \u2764\ufe0f!") == same_sentence("Ja \u2764") == same_sentence("ja")


def test_pairs_without_one_sentence_are_counted_in_the_split():
    texts = texts_of([Pair(f"word {n}", f"Wort {n}") for n in range(400)])
    assert "empty" not in str(split_texts(texts))
    assert str(split_texts(replace(texts, empty=3))).endswith("; empty 3")
    long = [Pair(f"long {n}", " ".join(["Wort"] * 13) + f" {n}") for n in range(400)]
    texts = replace(texts_of([*texts.train, *long]), empty=3)
    assert str(split_by_length(texts)).endswith("; empty 3")
