"""Scaled rotary frequencies: each formula pair by pair, and dictionaries that do not say enough."""

from math import ceil, floor, log, pi, sqrt

import pytest
import torch
from torch.testing import assert_close

from relpos.positions import Rotary

WIDTH, TRAINED = 32, 256


def of(rope_type, **more):
    return {"rope_type": rope_type, **more}


LENGTH = {"original_max_position_embeddings": TRAINED}
LLAMA3 = of("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, **LENGTH)


def plain(theta=1e4, width=WIDTH):
    return [theta ** (-2 * c / width) for c in range(width // 2)]


def frequencies(scaling, **arguments):
    return Rotary(WIDTH, scaling=scaling, **arguments).inv_freq(1000).tolist()


def test_linear_divides_by_the_factor():
    assert frequencies(of("linear", factor=4.0)) == pytest.approx([w / 4 for w in plain()])


def test_the_old_name_of_the_type_is_read_too():
    assert frequencies({"type": "linear", "factor": 4.0}) == frequencies(of("linear", factor=4.0))


@pytest.mark.parametrize("length", [1, TRAINED, TRAINED + 1, 1000])
def test_dynamic_raises_the_base_with_the_length(length):
    position = Rotary(WIDTH, scaling=of("dynamic", factor=4.0, **LENGTH))
    grown = 4.0 * max(length, TRAINED) / TRAINED - 3
    want = plain(1e4 * grown ** (WIDTH / (WIDTH - 2)))
    assert position.inv_freq(length).tolist() == pytest.approx(want)


def test_yarn_keeps_fast_pairs_and_interpolates_slow_ones():
    got = frequencies(of("yarn", factor=4.0, **LENGTH))

    def pair_of(turns):
        # The pair whose wave is so many times as long as the texts of training.
        return WIDTH / 2 * log(TRAINED / (2 * pi * turns), 1e4)

    low, high = floor(pair_of(32)), ceil(pair_of(1))
    for c, w in enumerate(plain()):
        share = min(max((c - max(low, 0)) / (high - max(low, 0)), 0), 1)
        assert got[c] == pytest.approx((1 - share) * w + share * w / 4), c
    assert got[0] == 1
    assert got[-1] == pytest.approx(plain()[-1] / 4)


@pytest.mark.parametrize(
    ("more", "want"),
    [
        ({}, 0.1 * log(4) + 1),
        ({"attention_factor": 1.5}, 1.5),
        ({"mscale": 1.0, "mscale_all_dim": 0.5}, (0.1 * log(4) + 1) / (0.05 * log(4) + 1)),
        ({"factor": 0.5}, 1.0),
    ],
)
def test_yarn_has_an_attention_factor_on_both_sides(more, want):
    position = Rotary(WIDTH, scaling=of("yarn", **{"factor": 4.0, **LENGTH, **more}))
    assert position.attention_factor == pytest.approx(want)
    q = torch.randn(1, 1, 5, WIDTH, dtype=torch.float64)
    turned_q, turned_k, _ = position(q, q)
    for turned in (turned_q, turned_k):
        assert_close(turned.norm(dim=-1), want * q.norm(dim=-1))


def test_other_scalings_have_no_attention_factor():
    assert Rotary(WIDTH, scaling=LLAMA3).attention_factor == 1


SHORT, LONG = [1 + c / 10 for c in range(16)], [2.0 + c for c in range(16)]
LONGROPE = of("longrope", short_factor=SHORT, long_factor=LONG, factor=8.0, **LENGTH)


@pytest.mark.parametrize(
    ("length", "factors"),
    [(1, SHORT), (TRAINED, SHORT), (TRAINED + 1, LONG), (2**40, LONG)],
)
def test_longrope_divides_each_pair_by_the_factors_of_the_length(length, factors):
    got = Rotary(WIDTH, scaling=LONGROPE).inv_freq(length).tolist()
    assert got == pytest.approx([w / f for w, f in zip(plain(), factors, strict=True)])


def test_all_tokens_of_a_call_have_the_factors_of_its_length():
    """Also in a step of decoding, whose keys come from a cache that holds them unturned."""
    position = Rotary(WIDTH, scaling=LONGROPE)
    assert not position.shift_invariant
    q = torch.randn(1, 1, TRAINED + 1, WIDTH, dtype=torch.float64)
    whole_q, whole_k, _ = position(q, q)
    step_q, step_k, _ = position(q[:, :, -1:], q)
    assert_close(step_q, whole_q[:, :, -1:])
    assert_close(step_k, whole_k)
    wide = {"dtype": torch.float64}
    angle = torch.arange(TRAINED + 1)[:, None] * torch.tensor(plain(), **wide)
    angle = angle / torch.tensor(LONG, **wide)
    x, y = q.chunk(2, -1)
    by_hand = torch.cat((x * angle.cos() - y * angle.sin(), y * angle.cos() + x * angle.sin()), -1)
    assert_close(whole_q, position.attention_factor * by_hand)


@pytest.mark.parametrize(
    ("more", "want"),
    [
        ({}, sqrt(1 + log(8) / log(TRAINED))),
        ({"factor": 0.5}, 1.0),
        ({"attention_factor": 1.25}, 1.25),
    ],
)
def test_longrope_has_an_attention_factor(more, want):
    position = Rotary(WIDTH, scaling={**LONGROPE, **more})
    assert position.attention_factor == pytest.approx(want)


def test_llama3_keeps_short_waves_and_divides_long_ones():
    for c, (got, w) in enumerate(zip(frequencies(LLAMA3), plain(), strict=True)):
        wave = 2 * pi / w
        if wave < TRAINED / 4:
            want = w
        elif wave > TRAINED / 1:
            want = w / 8
        else:
            smooth = (TRAINED / wave - 1) / (4 - 1)
            want = (1 - smooth) * w / 8 + smooth * w
        assert got == pytest.approx(want), c


def test_proportional_turns_the_first_pairs_of_the_whole_head():
    got = frequencies(of("proportional", factor=2.0, partial_rotary_factor=0.25))
    assert got[:4] == pytest.approx([w / 2 for w in plain()[:4]])
    assert got[4:] == [0] * 12
    position = Rotary(WIDTH, scaling=of("proportional", partial_rotary_factor=0.25))
    q = torch.randn(1, 1, 5, WIDTH)
    turned = position(q, q)[0] != q
    assert turned[0, 0, 1:].all(0).tolist() == ([True] * 4 + [False] * 12) * 2


def test_what_the_dictionary_lacks_is_taken_from_the_longest_text():
    short = of("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)
    assert frequencies(short, max_position_embeddings=TRAINED) == frequencies(LLAMA3)
    # What the dictionary has comes first, but dynamic scaling counts from the longest text.
    assert frequencies(LLAMA3, max_position_embeddings=99) == frequencies(LLAMA3)
    dynamic = of("dynamic", factor=4.0)
    assert frequencies(dynamic, max_position_embeddings=TRAINED) == frequencies(
        {**dynamic, **LENGTH}
    )


def test_the_length_and_the_factor_of_longrope_may_be_those_of_the_longest_text():
    short = {**LONGROPE, "original_max_position_embeddings": None, "factor": None}
    position = Rotary(WIDTH, scaling=short, max_position_embeddings=TRAINED)
    assert position.inv_freq(TRAINED + 1).tolist() == frequencies(LONGROPE)
    assert position.attention_factor == 1


def test_the_factor_of_yarn_may_be_that_of_the_lengths():
    got = frequencies(of("yarn", factor=None, **LENGTH), max_position_embeddings=4 * TRAINED)
    assert got == frequencies(of("yarn", factor=4.0, **LENGTH))


@pytest.mark.parametrize(
    ("scaling", "named"),
    [
        (of("ntk"), r"\['rope_type'\] must be one of default, linear, .* got 'ntk'"),
        (
            {**LONGROPE, "original_max_position_embeddings": 1},
            r"\['original_max_position_embeddings'\] must be at least 2 with longrope, got 1",
        ),
        ({**LONGROPE, "long_factor": None}, "of type 'longrope' must have .* got no long_factor"),
        ({**LONGROPE, "long_factor": LONG[1:]}, r"\['long_factor'\] .* of the 16 pairs, got 15"),
        ({**LONGROPE, "short_factor": 2.0}, r"\['short_factor'\] must be a list of .* got 2.0"),
        ({**LONGROPE, "short_factor": b"1" * 16}, r"\['short_factor'\] must be a list of "),
        (
            {**LONGROPE, "short_factor": [1.0, 0.0] * 8},
            r"\['short_factor'\]\[1\] must be a positive number, got 0.0",
        ),
        ({**LONGROPE, "long_factor": [10**400] * 16}, r"\['long_factor'\]\[0\] must be a positive"),
        (of("linear"), "of type 'linear' must have factor, got no factor"),
        (of("linear", factor=2.0, beta=1), "of type 'linear' must have factor, got beta"),
        (of("yarn", factor=2.0), "of type 'yarn' must have .* and may have .* got no original_max"),
        (of("linear", factor=-1.0), r"\['factor'\] must be a positive number, got -1.0"),
        (of("linear", factor="2"), r"\['factor'\] must be a positive number, got '2'"),
        (of("yarn", factor=2.0, truncate=1, **LENGTH), r"\['truncate'\] must be True or False"),
        (
            of("dynamic", factor=2.0, original_max_position_embeddings=1.5),
            r"\['original_max_position_embeddings'\] must be an integer >= 1, got 1.5",
        ),
        (of(["yarn"]), r"\['rope_type'\] must be one of .* got \['yarn'\]"),
        (
            of("llama3", factor=2.0, low_freq_factor=4.0, high_freq_factor=4.0, **LENGTH),
            r"\['high_freq_factor'\] must be more than scaling\['low_freq_factor'\]=4, got 4",
        ),
        (
            of("yarn", factor=2.0, beta_fast=1.0, beta_slow=32.0, **LENGTH),
            r"\['beta_fast'\] must be more than scaling\['beta_slow'\]=32, got 1",
        ),
        (
            of("yarn", factor=2.0, beta_slow=64.0, **LENGTH),
            r"\['beta_fast'\] must be more than scaling\['beta_slow'\]=64, got 32",
        ),
        *(
            (
                of("default", partial_rotary_factor=share),
                r"\['partial_rotary_factor'\] must be a number in 0 < share <= 1, got ",
            )
            for share in ("0.5", float("nan"), float("inf"), 0, 2.0)
        ),
    ],
)
def test_what_a_dictionary_lacks_or_should_not_have_is_named(scaling, named):
    with pytest.raises(ValueError, match=rf"Rotary: scaling ?{named}"):
        Rotary(WIDTH, scaling=scaling)


@pytest.mark.no_typecheck
@pytest.mark.parametrize("scaling", ["yarn", ["yarn"], []])
def test_a_scaling_that_is_no_dictionary_is_named(scaling):
    with pytest.raises(TypeError, match="Rotary: scaling must be a dictionary or None, got "):
        Rotary(WIDTH, scaling=scaling)


@pytest.mark.parametrize("length", [0, "64"])
def test_the_length_that_a_factor_of_yarn_is_made_of_is_checked(length):
    scaling = of("yarn", original_max_position_embeddings=length)
    with pytest.raises(ValueError, match="must be an integer >= 1, got "):
        Rotary(WIDTH, scaling=scaling, max_position_embeddings=TRAINED)
