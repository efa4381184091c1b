"""Enformer and Borzoi beside their adapted copies: features of distances, whole models."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from relpos.adapters import adapt, restore
from tests.apart import import_apart
from tests.factories import normal

from .models.case import draw
from .results import original_and_adapted

pytestmark = pytest.mark.no_typecheck


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)


def pair(module: nn.Module) -> tuple[Any, Any]:
    """A module with drawn parameters, and an adapted copy of it."""
    torch.manual_seed(0)
    draw(module)
    return original_and_adapted(module)


def enformer_attention(**settings: Any) -> Any:
    module = import_apart("enformer_pytorch.modeling_enformer")
    return module.Attention(48, num_rel_pos_features=24, heads=4, dim_key=8, **settings)


def borzoi_attention() -> Any:
    module = import_apart("borzoi_pytorch.pytorch_borzoi_transformer")
    return module.Attention(48, num_rel_pos_features=32, heads=4, dim_key=8, dim_value=12)


def test_gamma_densities_of_tensorflow():
    module = enformer_attention(use_tf_gamma=True)
    # As many features as are stored.
    module.num_rel_pos_features = 192
    module.to_rel_k = nn.Linear(192, 32, bias=False)
    theirs, ours = pair(module.double().eval())
    x = normal(1, 1536, 48)
    assert_same(ours(x), theirs(x))
    for attention in (theirs, ours):
        with pytest.raises(AssertionError, match="1536"):
            attention(normal(1, 9, 48))


def test_dropout_of_positions_draws_as_before():
    theirs, ours = pair(enformer_attention(pos_dropout=0.3).double().train())
    x, found = normal(2, 9, 48), []
    for attention in (theirs, ours):
        torch.manual_seed(1)
        found.append(attention(x))
    assert_same(found[1], found[0])
    assert not torch.allclose(ours(x), found[1])


@pytest.mark.filterwarnings("ignore:torch.utils.checkpoint.checkpoint_sequential:UserWarning")
def test_a_whole_enformer_reads_dna_as_before():
    model = import_apart("enformer_pytorch.modeling_enformer").Enformer(
        import_apart("enformer_pytorch.config_enformer").EnformerConfig(
            dim=48, depth=2, heads=4, attn_dim_key=8, num_downsamples=3, dim_divisible_by=8,
            output_heads={"human": 3, "mouse": 2}, target_length=20, use_checkpointing=True,
        )
    )  # fmt: skip
    theirs, ours = pair(model.double().eval())
    dna = nn.functional.one_hot(torch.randint(4, (2, 256)), 4).double()
    found = []
    for enformer in (theirs, ours):
        outputs = enformer(dna)
        outputs["human"].square().sum().backward()
        found.append([outputs["mouse"], enformer.transformer[0][0].fn[1].to_rel_k.weight.grad])
    for one, other in zip(*found, strict=True):
        assert_same(other, one)


def test_borzoi_has_the_features_of_every_length():
    theirs, ours = pair(borzoi_attention().eval())
    x, longer = torch.randn(2, 9, 48), torch.randn(2, 14, 48)
    torch.testing.assert_close(ours(x), theirs(x))
    assert theirs.positions is not None
    assert ours.positions is None
    expected = ours(longer)
    # It goes on with those of its first call.
    theirs.positions = None
    torch.testing.assert_close(expected, theirs(longer))
    assert not torch.allclose(theirs(x), ours(x), atol=1e-3)
    restore(ours)
    torch.testing.assert_close(ours(longer), expected)
    adapt(ours)
    assert vars(ours)["positions"].shape == (27, 32)
    torch.testing.assert_close(ours(longer), expected)
    assert ours(x).shape == x.shape


@pytest.mark.parametrize("build", [enformer_attention, borzoi_attention])
def test_in_16_bits_features_are_not_rounded_before_they_are_computed(build: Any):
    module = build().eval()
    draw(module)
    adapt(module)
    q = torch.randn(1, 4, 1200, 8)
    assert torch.equal(module.features(q.bfloat16()), module.features(q))
    x = torch.randn(1, 1200, 48)
    expected = module(x)
    difference = module.bfloat16()(x.bfloat16()).float() - expected
    assert float(difference.detach().abs().max()) < 0.05 * float(expected.detach().abs().max())


def test_borzoi_takes_the_features_that_it_holds():
    _, ours = pair(borzoi_attention().double().eval())
    x = normal(2, 9, 48)
    expected = ours(x)
    held = torch.randn(17, 32, dtype=torch.float64)
    ours.positions = held
    assert not torch.allclose(ours(x), expected)
    # On another device they are none of this call.
    ours.positions = held.to("meta")
    assert_same(ours(x), expected)


@pytest.mark.parametrize("build", [enformer_attention, borzoi_attention])
def test_another_function_of_features_is_seen_and_named(
    build: Any, monkeypatch: pytest.MonkeyPatch
):
    attention = build()
    monkeypatch.setattr(
        sys.modules[type(attention).__module__], "get_positional_embed", lambda seq_len, device: 0
    )
    ((_, reason),) = adapt(attention).left
    assert reason.startswith("get_positional_embed has the parameters seq_len, device here")


# Enformer's features are computed with the length as a number of Python's.
@pytest.mark.parametrize(("build", "length"), [(enformer_attention, 9), (borzoi_attention, 33)])
def test_programs_take_other_batches_and_borzois_other_lengths(build: Any, length: int):
    _, ours = pair(build().eval())
    dims = {0: torch.export.Dim("b")}
    if length != 9:
        dims[1] = torch.export.Dim("n", min=2, max=4096)
    program = torch.export.export(ours, (torch.randn(2, 9, 48),), dynamic_shapes=(dims,)).module()
    x = torch.randn(3, length, 48)
    torch.testing.assert_close(program(x), ours(x))


@pytest.mark.parametrize("build", [enformer_attention, borzoi_attention])
def test_a_window_makes_them_local(build: Any):
    module = build().double().eval()
    draw(module)
    adapt(module, window=(2, 1))
    x = normal(1, 9, 48).requires_grad_()
    if build is borzoi_attention:
        module.positions = torch.randn(17, 32, dtype=torch.float64)
    module(x)[0, 4].sum().backward()
    assert x.grad is not None
    assert (x.grad[0].abs().sum(-1) > 0).nonzero().flatten().tolist() == [2, 3, 4, 5]
