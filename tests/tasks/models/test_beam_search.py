"""Beam search: exact where it can be, greedy with one, the same alone and in a batch."""

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import relpos
from relpos_tasks.models import (
    BeamSearch,
    EncoderDecoder,
    EncoderDecoderConfig,
    Hypothesis,
    beam_search,
    beam_search_all,
)
from relpos_tasks.models.batched_search import by_length
from relpos_tasks.models.beam_search import source_and_50
from relpos_tasks.models.padding import padded

BEGIN, END = 1, 2


def built(vocabulary=11, position="shaw", *, seed=0, sharpness=1.0):
    """A random model; the sharper, the less alike its continuations."""
    torch.manual_seed(seed)
    config = EncoderDecoderConfig(
        vocabulary, vocabulary, tied=False, width=24, layers=2, heads=3, position=position
    )
    model = EncoderDecoder(config).double().eval()
    model.head.weight.data *= sharpness
    return model


def prompts(count):
    return torch.full((count, 1), BEGIN)


def sources(*shape, vocabulary=11, seed=0):
    return torch.randint(vocabulary, shape, generator=torch.Generator().manual_seed(seed))


def log_p(model, source, tokens, prompt=(BEGIN,)):
    """The log of P of the tokens, by one pass."""
    return log_ps(model, source, [tokens], prompt)[0]


def log_ps(model, source, targets, prompt=(BEGIN,)):
    """The same of several targets, all in one batch."""
    rows = padded([(*prompt, *tokens) for tokens in targets], 0)
    with torch.no_grad():
        logits = model(source.expand(len(rows), -1), rows[:, :-1])[:, len(prompt) - 1 :]
    each = logits.log_softmax(-1).gather(2, rows[:, len(prompt) :, None])[..., 0]
    lengths = torch.tensor([len(tokens) for tokens in targets])
    return (each * (torch.arange(each.shape[1]) < lengths[:, None])).sum(1).tolist()


def every_target(vocabulary, longest, *, ends=True):
    """All targets of at most so many tokens, the end included; without one all are as long."""
    if not ends:
        return list(product(range(vocabulary), repeat=longest))
    others = [token for token in range(vocabulary) if token != END]
    return [(*text, END) for n in range(longest) for text in product(others, repeat=n)]


def close(one: Hypothesis, other: Hypothesis):
    return one.tokens == other.tokens and one.score == pytest.approx(other.score, abs=1e-9)


@given(
    seed=st.integers(0, 1000),
    alpha=st.sampled_from([0.0, 0.6, 1.0, 2.0]),
    longest=st.integers(1, 4),
    n_best=st.sampled_from([1, 3]),
    ends=st.booleans(),
)
@settings(max_examples=15, deadline=None)
def test_a_beam_as_wide_as_all_targets_finds_the_best_of_all(seed, alpha, longest, n_best, ends):
    model = built(4, seed=seed, sharpness=8.0)
    source = sources(1, 5, vocabulary=4, seed=seed)
    how = BeamSearch(
        END if ends else None, beam=4**longest, alpha=alpha, n_best=n_best,
        max_length=lambda _: longest,
    )  # fmt: skip
    got = beam_search(model, source, prompts(1), how)[0]
    targets = every_target(4, longest, ends=ends)
    score = {
        tokens: found / ((5 + len(tokens)) / 6) ** alpha
        for tokens, found in zip(targets, log_ps(model, source[0], targets), strict=True)
    }
    best = sorted(score, key=lambda tokens: -score[tokens])[:n_best]
    assert [one.tokens for one in got] == [text[:-1] if ends else text for text in best]
    assert [one.score for one in got] == pytest.approx([score[text] for text in best], abs=1e-9)


def searched_by_lists(model, source, *, beam, alpha, longest):
    """Beam search as one would write it down: no cache, no batch, no early end."""
    rows, ended = [((), 0.0)], []
    for length in range(1, longest + 1):
        continued = []
        for tokens, total in rows:
            with torch.no_grad():
                logits = model(source[None], torch.tensor([[BEGIN, *tokens]]))[0, -1]
            for token, log_p in enumerate(logits.log_softmax(-1).tolist()):
                if length < longest or token == END:
                    continued.append(((*tokens, token), total + log_p))
        continued.sort(key=lambda one: -one[1])
        # What has ended keeps its place in the beam.
        kept = continued[: beam - len(ended)]
        ended += [(tokens, total) for tokens, total in kept if tokens[-1] == END]
        rows = [(tokens, total) for tokens, total in kept if tokens[-1] != END]
    scores = [(tokens[:-1], total / ((5 + len(tokens)) / 6) ** alpha) for tokens, total in ended]
    return sorted(scores, key=lambda one: -one[1])


@pytest.mark.no_typecheck
@given(
    seed=st.integers(0, 1000),
    beam=st.integers(2, 6),
    alpha=st.sampled_from([0.0, 0.6, 2.0]),
    longest=st.integers(1, 7),
    sharpness=st.sampled_from([1.0, 4.0, 8.0]),
)
@settings(max_examples=25, deadline=None)
def test_a_narrow_beam_keeps_what_a_search_by_lists_keeps(seed, beam, alpha, longest, sharpness):
    model = built(7, seed=seed, sharpness=sharpness)
    batch = sources(3, 5, vocabulary=7, seed=seed)
    how = BeamSearch(END, beam=beam, alpha=alpha, n_best=beam, max_length=lambda _: longest)
    for source, got in zip(batch, beam_search(model, batch, prompts(3), how), strict=True):
        expected = searched_by_lists(model, source, beam=beam, alpha=alpha, longest=longest)
        assert [one.tokens for one in got] == [tokens for tokens, _ in expected]
        assert [one.score for one in got] == pytest.approx([score for _, score in expected])


@pytest.mark.parametrize("alpha", [0.0, 0.6])
@pytest.mark.parametrize("sharpness", [1.0, 8.0])
def test_the_search_ends_early_without_losing_anything(alpha, sharpness):
    """With all hypotheses wanted it goes on until as many have ended."""
    model, source = built(sharpness=sharpness), sources(6, 9)
    one, all_ = (
        beam_search(
            model, source, prompts(6),
            BeamSearch(END, beam=5, alpha=alpha, n_best=n, max_length=lambda _: 12),
        )
        for n in (1, 5)
    )  # fmt: skip
    for best, found in zip(one, all_, strict=True):
        assert close(best[0], found[0])
        assert [each.score for each in found] == sorted((f.score for f in found), reverse=True)
        assert len({each.tokens for each in found}) == 5


def test_a_sentence_leaves_as_soon_as_nothing_better_can_come(monkeypatch):
    """An end that is nearly certain: without a penalty, one step decides."""
    model, rows = built(), []
    decode = model.decode

    def certain(chunk, memory, padding, *, cache):
        rows.append(len(chunk))
        logits = decode(chunk, memory, padding, cache=cache)
        logits[..., END] = 50.0
        return logits

    monkeypatch.setattr(model, "decode", certain)
    found = beam_search(model, sources(3, 5), prompts(3), BeamSearch(END, alpha=0.0))
    assert [[one.tokens for one in best] for best in found] == [[()]] * 3
    assert rows == [3]


@pytest.mark.parametrize("position", ["shaw", "absolute", "sinusoidal", "rotary", "none"])
def test_one_hypothesis_is_greedy(position):
    model, source = built(position=position, sharpness=4.0), sources(5, 9)
    found = beam_search(model, source, prompts(5), BeamSearch(END, beam=1, max_length=lambda _: 20))
    for one, (best,) in zip(source, found, strict=True):
        tokens = []
        for _ in range(19):
            with torch.no_grad():
                logits = model(one[None], torch.tensor([[BEGIN, *tokens]]))
            token = int(logits[0, -1].argmax())
            if token == END:
                break
            tokens.append(token)
        assert list(best.tokens) == tokens
        assert best.log_probability == pytest.approx(log_p(model, one, (*tokens, END)), abs=1e-9)


def test_scores_follow_the_length_penalty():
    model, source = built(), sources(2, 9)
    how = BeamSearch(END, alpha=0.7, n_best=4, max_length=lambda _: 7)
    for one, found in zip(source, beam_search(model, source, prompts(2), how), strict=True):
        for each in found:
            tokens = (*each.tokens, END)
            want = log_p(model, one, tokens)
            assert each.log_probability == pytest.approx(want, abs=1e-9)
            assert each.score == pytest.approx(want / ((5 + len(tokens)) / 6) ** 0.7, abs=1e-9)
    assert BeamSearch(END, alpha=0.0).length_penalty(99) == 1
    assert BeamSearch(END, alpha=3.0).length_penalty(1) == 1


def test_a_larger_penalty_exponent_prefers_longer_targets():
    model, source = built(), sources(8, 9)
    lengths = [
        sum(
            len(best[0].tokens)
            for best in beam_search(
                model, source, prompts(8),
                BeamSearch(END, beam=8, alpha=alpha, max_length=lambda _: 9),
            )
        )
        for alpha in (0.0, 3.0)
    ]  # fmt: skip
    assert lengths[0] < lengths[1]


def test_the_maximum_length_depends_on_each_source_and_counts_the_end():
    model = built(sharpness=0.1)
    model.head.weight.data[END] = 0
    source, padding = sources(2, 9), torch.arange(9) >= torch.tensor([[9], [4]])
    how = BeamSearch(END, alpha=9.0, beam=20, max_length=lambda n: n - 2)
    found = beam_search(model, source, prompts(2), how, source_padding=padding)
    assert [len(best[0].tokens) + 1 for best in found] == [7, 2]
    assert source_and_50(7) == 57


def test_without_an_end_token_all_have_the_maximum_length():
    model, source = built(), sources(3, 5)
    found = beam_search(model, source, prompts(3), BeamSearch(None, max_length=lambda n: 3 * n))
    for one, (best,) in zip(source, found, strict=True):
        assert len(best.tokens) == 15
        assert best.log_probability == pytest.approx(log_p(model, one, best.tokens), abs=1e-9)


def test_a_prompt_is_gone_on_with_and_not_returned():
    model, source = built(), sources(2, 5)
    prompt = torch.tensor([[BEGIN, 3, 4], [BEGIN, 5, 6]])
    found = beam_search(model, source, prompt, BeamSearch(END, max_length=lambda _: 6))
    for one, given_, (best,) in zip(source, prompt.tolist(), found, strict=True):
        want = log_p(model, one, (*best.tokens, END), prompt=given_)
        assert best.log_probability == pytest.approx(want, abs=1e-9)


@pytest.mark.parametrize("position", ["shaw", "sinusoidal", "t5"])
def test_sentences_in_a_batch_are_as_each_alone(position):
    model, lengths = built(position=position, sharpness=4.0), (9, 1, 4, 7, 9, 2)
    texts = [row[:n].tolist() for row, n in zip(sources(6, 9), lengths, strict=True)]
    how = BeamSearch(END, n_best=2, max_length=lambda n: n + 6)
    alone = [beam_search(model, torch.tensor([text]), prompts(1), how)[0] for text in texts]
    for tokens in (1, 60, 4096):
        done = []
        found = beam_search_all(model, texts, (BEGIN,), how, tokens=tokens, progress=done.append)
        assert all(
            close(a, b)
            for one, other in zip(found, alone, strict=True)
            for a, b in zip(one, other, strict=True)
        )
        assert done == sorted(done)
        assert done[-1] == 6
    assert [len(one) for one in found] == [2] * 6


def test_a_repeated_search_finds_the_same_to_the_bit():
    model, source = built().float(), sources(6, 9)
    how = BeamSearch(END, n_best=4)
    once, again = (beam_search(model, source, prompts(6), how) for _ in range(2))
    assert once == again


def test_of_equal_continuations_the_first_is_kept():
    model = built(5)
    model.head.weight.data.zero_()
    how = BeamSearch(None, beam=2, n_best=2, max_length=lambda _: 3)
    once, again = (beam_search(model, sources(1, 3, vocabulary=5), prompts(1), how) for _ in "ab")
    assert once == again
    assert len({one.tokens for one in once[0]}) == 2


def test_the_model_is_left_as_it_was():
    model = built().train()
    model.decoder[0].eval()
    beam_search(model, sources(1, 3), prompts(1), BeamSearch(END))
    assert model.training
    assert not model.decoder[0].training
    assert torch.is_grad_enabled()


def test_nothing_is_found_for_nothing():
    assert beam_search_all(built(), [], (BEGIN,), BeamSearch(END)) == []
    assert list(by_length([], tokens=9)) == []


def test_an_empty_source_has_a_target():
    (found,) = beam_search_all(built(), [[]], (BEGIN,), BeamSearch(END, max_length=lambda _: 3))
    assert len(found) == 1


@given(lengths=st.lists(st.integers(0, 40), max_size=30), tokens=st.integers(1, 100))
@settings(max_examples=40, deadline=None)
def test_batches_hold_every_sequence_once_and_few_tokens(lengths, tokens):
    batches = list(by_length(lengths, tokens=tokens))
    assert sorted(n for batch in batches for n in batch) == list(range(len(lengths)))
    for batch in batches:
        longest = max(lengths[n] for n in batch)
        assert len(batch) == 1 or len(batch) * longest <= tokens
    ordered = [lengths[n] for batch in batches for n in batch]
    assert ordered == sorted(lengths, reverse=True)


@pytest.mark.no_typecheck
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"beam": 0}, "beam must be an integer >= 1, got 0"),
        ({"n_best": 5}, "n_best must be at most beam=4, got 5"),
        ({"alpha": -0.1}, r"alpha must be a number in 0\.\.10, got -0.1"),
        ({"alpha": float("nan")}, r"alpha must be a number in 0\.\.10, got nan"),
        ({"alpha": 1e9}, r"alpha must be a number in 0\.\.10, got 1000000000.0"),
        ({"end": -1}, "end must be an integer >= 0, got -1"),
    ],
)
def test_bad_settings_are_named(changes, words):
    with pytest.raises(ValueError, match=f"BeamSearch: {words}"):
        BeamSearch(**{"end": END} | changes)


@pytest.mark.no_typecheck
def test_bad_arguments_are_named():
    model, how = built(), BeamSearch(END)
    for words, call in {
        "source must be .*, got": lambda: beam_search(model, sources(3), prompts(3), how),
        r"prompt must be \(b, p\) with b=2, got \(3, 1\)": lambda: beam_search(
            model, sources(2, 3), prompts(3), how
        ),
        r"source.shape\[1\] must be an integer >= 1, got 0": lambda: beam_search(
            model, sources(2, 0), prompts(2), how
        ),
        r"prompt.shape\[1\] must be an integer >= 1, got 0": lambda: beam_search(
            model, sources(2, 3), prompts(2)[:, :0], how
        ),
        r"source_padding must be \(b, j\) with b=2, j=3": lambda: beam_search(
            model, sources(2, 3), prompts(2), how, source_padding=torch.zeros(2, 2) > 0
        ),
        "end must be below target_vocabulary=11, got 11": lambda: beam_search(
            model, sources(2, 3), prompts(2), BeamSearch(11)
        ),
        "max_length must be an integer >= 1, got 0": lambda: beam_search(
            model, sources(2, 3), prompts(2), BeamSearch(END, max_length=lambda _: 0)
        ),
    }.items():
        with pytest.raises(ValueError, match=f"beam_search: {words}"):
            call()
    with pytest.raises(relpos.ShapeError):
        beam_search(model, sources(3), prompts(3), how)


def test_a_model_that_gives_no_numbers_is_named():
    model = built()
    model.head.weight.data.fill_(torch.nan)
    with pytest.raises(ValueError, match="logits must be finite, got others at step 1"):
        beam_search(model, sources(2, 3), prompts(2), BeamSearch(END))
