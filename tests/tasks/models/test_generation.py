"""`sample`: greedy and drawn tokens, temperature, top-p, constraints."""

import pytest
import torch
from torch.testing import assert_close

import relpos
from relpos_tasks.models import DecoderConfig, DecoderLM, sample

PROMPT = torch.tensor([[1, 2, 3], [4, 5, 6]])


def built(position="huang", **options):
    torch.manual_seed(0)
    sizes = {"width": 24, "layers": 2, "heads": 3, "max_length": 9}
    return DecoderLM(DecoderConfig(13, position=position, **sizes, **options))


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("position", ["huang", "shaw", "absolute", "sinusoidal", "none"])
def test_greedy_tokens_are_those_of_full_passes(position, window):
    model = built(position, attention_window=window).double()
    got = sample(model, PROMPT, 20, temperature=0.0)
    want = PROMPT
    with torch.no_grad():
        for _ in range(20):
            token = model.eval()(want)[:, -1].argmax(-1, keepdim=True)
            want = torch.cat((want, token), 1)
    assert torch.equal(got, want)


def test_the_prompt_comes_first_and_a_seed_repeats():
    model = built()
    got = sample(model, PROMPT, 20, generator=seeded())
    assert got.shape == (2, 23)
    assert torch.equal(got[:, :3], PROMPT)
    assert torch.equal(got, sample(model, PROMPT, 20, generator=seeded()))
    assert not torch.equal(got, sample(model, PROMPT, 20, generator=seeded(1)))
    assert torch.equal(sample(model, PROMPT, 0), PROMPT)


def fixed(*probabilities):
    """A constraint that puts these probabilities in place of the model's."""
    logits = torch.tensor(probabilities).log()
    return lambda _, given: logits.expand(given.shape[0], -1)


def frequencies(**arguments):
    prompt = torch.zeros(20_000, 1, dtype=torch.int64)
    constrain = fixed(0.5, 0.25, 0.15, 0.1)
    drawn = sample(built(), prompt, 1, generator=seeded(), constrain=constrain, **arguments)[:, 1]
    return drawn.bincount(minlength=4) / len(drawn)


@pytest.mark.parametrize(
    ("arguments", "want"),
    [
        ({}, [0.5, 0.25, 0.15, 0.1]),
        ({"temperature": 0.5}, [0.25, 0.0625, 0.0225, 0.01]),
        ({"top_p": 0.8}, [0.5, 0.25, 0.15, 0.0]),
        ({"top_p": 0.7}, [0.5, 0.25, 0.0, 0.0]),
        ({"top_p": 0.01}, [1.0, 0.0, 0.0, 0.0]),
    ],
)
def test_tokens_come_as_often_as_asked(arguments, want):
    want = torch.tensor(want) / sum(want)
    # Five standard deviations of a frequency over 20000 draws.
    assert_close(frequencies(**arguments), want, rtol=0, atol=5 * 0.5 / 20_000**0.5)


def test_a_constraint_sees_all_tokens_so_far_and_decides():
    seen = []

    def constrain(tokens, logits):
        step = tokens.shape[1] - PROMPT.shape[1]
        assert torch.equal(tokens[:, : PROMPT.shape[1]], PROMPT)
        seen.append((step, tuple(logits.shape)))
        return logits.masked_fill(torch.arange(13) != step, -torch.inf)

    got = sample(built(), PROMPT, 5, constrain=constrain)
    assert seen == [(step, (2, 13)) for step in range(5)]
    assert torch.equal(got[:, 3:], torch.arange(5).expand(2, -1))


def test_the_model_is_left_as_it_was():
    model = built().train()
    model.blocks[0].eval()
    sample(model, PROMPT, 2)
    assert model.training
    assert not model.blocks[0].training

    def stop(tokens, logits):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sample(model, PROMPT, 2, constrain=stop)
    assert model.training


def test_gradients_are_not_recorded_and_the_switch_is_left_alone():
    got = sample(built(), PROMPT, 2)
    assert not got.requires_grad
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("top_p", [1e-46, 1e-300])
def test_the_limit_of_a_small_nucleus_is_the_likeliest_token(top_p):
    model = built()
    got = sample(model, PROMPT, 5, top_p=top_p, generator=seeded())
    assert torch.equal(got, sample(model, PROMPT, 5, temperature=0.0))


@pytest.mark.parametrize("temperature", [1e-39, 1e-300, 5e-324])
def test_the_limit_of_small_temperatures_is_the_likeliest_token(temperature):
    model = built()
    got = sample(model, PROMPT, 5, temperature=temperature, generator=seeded())
    assert torch.equal(got, sample(model, PROMPT, 5, temperature=0.0))


def test_the_limit_of_large_temperatures_draws_alike_from_what_is_not_forbidden():
    constrain = fixed(0.9, 0.1, 0.0, 0.0)
    prompt = torch.zeros(20_000, 1, dtype=torch.int64)
    options = {"temperature": 1e308, "constrain": constrain, "generator": seeded()}
    drawn = sample(built(), prompt, 1, **options)[:, 1]
    shares = drawn.bincount(minlength=4) / len(drawn)
    assert_close(shares, torch.tensor([0.5, 0.5, 0, 0]), rtol=0, atol=5 * 0.5 / 20_000**0.5)


@pytest.mark.no_typecheck
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"temperature": -0.1}, "temperature must be a number >= 0, got -0.1"),
        ({"temperature": float("nan")}, "temperature must be a number >= 0, got nan"),
        ({"top_p": 0.0}, "top_p must be in 0 < top_p <= 1, got 0.0"),
        ({"top_p": 1.5}, "top_p must be in 0 < top_p <= 1, got 1.5"),
        ({"steps": -1}, "steps must be >= 0, got -1"),
    ],
)
def test_bad_settings_are_named(arguments, words):
    with pytest.raises(ValueError, match=f"sample: {words}"):
        sample(built(), PROMPT, **{"steps": 1} | arguments)


@pytest.mark.no_typecheck
@pytest.mark.parametrize("shape", [(3,), (2, 0)])
def test_an_empty_or_flat_prompt_is_named(shape):
    with pytest.raises(relpos.ShapeError, match=r"prompt must be \(b, i\) with i >= 1, got"):
        sample(built(), torch.zeros(shape, dtype=torch.int64), 1)


def test_forbidding_every_token_is_an_error():
    with pytest.raises(ValueError, match="finite for a token of every sequence, got none at step"):
        sample(built(), PROMPT, 1, constrain=lambda _, logits: logits - torch.inf)
