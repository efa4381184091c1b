"""Rotary frequencies are those of transformers' `ROPE_INIT_FUNCTIONS`, from a config of any age."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.testing import assert_close
from transformers import Gemma3TextConfig, GPTJConfig, LlamaConfig, Phi3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding

from relpos.positions import Rotary

LENGTH = {"original_max_position_embeddings": 4096}
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
FACTORS = {
    "short_factor": [1 + c / 64 for c in range(64)],
    "long_factor": [2.0 + c / 2 for c in range(64)],
}
CASES = {
    "linear": [{"factor": 4.0}, {"factor": 2.5, "partial_rotary_factor": 0.5}],
    "dynamic": [{"factor": 4.0}, {"factor": 2.5, "partial_rotary_factor": 0.25}],
    "yarn": [
        {"factor": 4.0, **LENGTH},
        {"factor": 40.0, "truncate": False, **LENGTH},
        {"factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.707, **LENGTH},
        {"factor": 16.0, "beta_fast": 8.0, "beta_slow": 2.0, "attention_factor": 1.25, **LENGTH},
        {"factor": 4.0, "partial_rotary_factor": 0.5, **LENGTH},
        # A text so short that no pair turns often in it.
        {"factor": 4.0, "original_max_position_embeddings": 6},
        {"factor": None, "original_max_position_embeddings": 2048},
    ],
    "llama3": [{"factor": 8.0, **LLAMA3, **LENGTH}, {"factor": 32.0, **LLAMA3}],
    "longrope": [
        {**FACTORS, **LENGTH},
        {**FACTORS, "factor": 32.0, **LENGTH},
        {**FACTORS, "attention_factor": 1.25, "original_max_position_embeddings": 100},
    ],
    "proportional": [{"partial_rotary_factor": 0.25}, {"factor": 2.0}],
}


def config(rope_type, theta=10000.0, **more):
    parameters = {"rope_type": rope_type, "rope_theta": theta, **more}
    return LlamaConfig(
        hidden_size=512, num_attention_heads=4, max_position_embeddings=8192,
        rope_parameters=parameters,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("rope_type", "more"), [(name, more) for name, several in CASES.items() for more in several]
)
@pytest.mark.parametrize("theta", [10000.0, 500000.0])
@pytest.mark.parametrize("length", [100, 8192, 20000])
def test_frequencies_and_attention_factors_are_theirs(rope_type, more, theta, length):
    model = config(rope_type, theta, **more)
    theirs, factor = ROPE_INIT_FUNCTIONS[rope_type](model, seq_len=length)
    ours = Rotary.from_config(model)
    # They compute in float32, whose logarithm of a base of this size has this error in its power.
    bound = {"rtol": 4e-6, "atol": 0}
    assert_close(ours.inv_freq(length), theirs.double(), **bound)
    assert ours.attention_factor == pytest.approx(factor)


def test_plain_frequencies_are_theirs():
    theirs = LlamaRotaryEmbedding(config("default", 500000.0)).inv_freq
    ours = Rotary.from_config(config("default", 500000.0))
    assert_close(ours.inv_freq(), theirs.double(), rtol=4e-6, atol=0)


def test_every_scaling_is_known_here():
    assert set(ROPE_INIT_FUNCTIONS) == set(CASES)


def test_a_config_of_transformers_4_is_read():
    """`rope_theta` and `partial_rotary_factor` lie beside `rope_scaling`."""
    old = SimpleNamespace(
        hidden_size=512, num_attention_heads=4, max_position_embeddings=8192, rope_theta=5e5,
        rope_scaling={"type": "linear", "factor": 2.0}, partial_rotary_factor=0.5,
    )  # fmt: skip
    position = Rotary.from_config(old)
    assert (position.head_dim, position.rotary_dim, position.theta) == (128, 64, 5e5)
    assert (position.scaling.rope_type, position.scaling.factor) == ("linear", 2.0)
    old.rope_scaling = None
    assert Rotary.from_config(old).scaling.rope_type == "default"


def test_a_layers_own_length_comes_before_that_beside_the_layers():
    lengths = {"full": 4096, "sliding": None}
    longrope = {"rope_type": "longrope", "short_factor": [1.0] * 64, "long_factor": [2.0] * 64}
    phi = SimpleNamespace(
        head_dim=128, max_position_embeddings=8192, original_max_position_embeddings=2048,
        rope_parameters={
            name: longrope | {"original_max_position_embeddings": length}
            for name, length in lengths.items()
        },
    )  # fmt: skip
    found = {name: Rotary.from_config(phi, layer_type=name).scaling for name in lengths}
    assert found["full"].original_max_position_embeddings == 4096
    assert found["sliding"].original_max_position_embeddings == 2048


def test_layers_of_different_kinds_are_told_apart():
    gemma = Gemma3TextConfig(
        head_dim=64,
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        },
    )
    names = ("sliding_attention", "full_attention")
    sliding, full = (Rotary.from_config(gemma, layer_type=name) for name in names)
    assert (sliding.theta, sliding.scaling.rope_type) == (1e4, "default")
    assert (full.theta, full.scaling.factor) == (1e6, 8.0)
    with pytest.raises(ValueError, match=r"Rotary.from_config: layer_type must be one of .* None"):
        Rotary.from_config(gemma)


def test_gpt_j_has_a_width_of_its_own():
    position = Rotary.from_config(GPTJConfig(n_embd=64, n_head=4, rotary_dim=8), interleaved=True)
    assert (position.head_dim, position.rotary_dim, position.interleaved) == (16, 8, True)


def test_a_config_is_left_as_it_was():
    llama = config("llama3", factor=8.0, **LLAMA3, **LENGTH)
    before = llama.to_dict()
    Rotary.from_config(llama)
    assert llama.to_dict() == before


def test_a_scaling_that_is_not_known_is_refused():
    old = SimpleNamespace(head_dim=64, rope_scaling={"rope_type": "newest"})
    with pytest.raises(ValueError, match=r"Rotary: .*'rope_type'\] must be one of .* 'newest'"):
        Rotary.from_config(old)


def test_phi_3_counts_from_the_length_beside_its_dictionary():
    phi = Phi3Config(
        hidden_size=512, num_attention_heads=4, max_position_embeddings=8192, pad_token_id=0,
        original_max_position_embeddings=2048, rope_parameters={
            "rope_type": "longrope", "rope_theta": 1e4, **FACTORS,
        },
    )  # fmt: skip
    theirs = Phi3RotaryEmbedding(phi)
    ours = Rotary.from_config(phi)
    for length in (2048, 2049):
        x = torch.ones(1, 1, length, 128, dtype=torch.float64)
        cos, sin = theirs(x.float(), torch.arange(length)[None])
        turned = ours(x, x)[0][0, 0]
        assert_close(turned[:, :64], (cos - sin)[0, :, :64].double(), rtol=0, atol=1e-3)


def test_angles_at_100000_are_nearer_to_the_truth_than_theirs():
    theirs = LlamaRotaryEmbedding(config("default"))
    cos, _ = theirs(torch.zeros(1), torch.tensor([[100_000]]))
    right = (100_000 * Rotary(128).inv_freq()).cos()
    turned, _, _ = Rotary(128)(*[torch.ones(1, 1, 1, 128)] * 2, query_start=100_000)
    ours = (turned[0, 0, 0, :64] + turned[0, 0, 0, 64:]) / 2
    assert 1e3 * (ours - right).abs().max() < (cos[0, 0, :64] - right).abs().max()
