"""An adapted Parakeet encoder of which each rank has some frames, against one process."""

from __future__ import annotations

import pytest
import torch
import transformers
from torch import distributed, nn

from relpos.adapters import adapt
from relpos.adapters.adaptations import parakeet
from relpos.distributed import ContextParallel
from relpos.distributed.context_parallel.neighbours import with_neighbours
from relpos.distributed.ranks.group import resolve_group
from tests.distributed.cut import relative_error, world


def encoder() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.ParakeetEncoderConfig(
        hidden_size=32, num_attention_heads=4, intermediate_size=48, num_mel_bins=16,
        subsampling_conv_channels=8, num_hidden_layers=2,
    )  # fmt: skip
    made = transformers.ParakeetEncoder(config).eval().double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    adapt(made)
    return made


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("frames", [40, 67])
@pytest.mark.parametrize("method", ["heads", "gather", "ring"])
@pytest.mark.costly(6)
def test_an_encoder_is_as_in_one_process(two, method: str, frames: int, masked: bool):
    two.run(_check, method, frames, masked)


def leaves(model: nn.Module) -> list[nn.Parameter]:
    """The parameters of the layers."""
    return list(model.layers.parameters())  # type: ignore[union-attr]


def _check(rank, size, method, frames, masked) -> None:
    model = encoder()
    draw = torch.Generator().manual_seed(1)
    features = torch.randn(2, 8 * frames - 3, 16, generator=draw).double()
    mask = None
    if masked:
        mask = torch.arange(features.shape[1]) < torch.tensor([[features.shape[1]], [8 * 21 + 5]])
    expected = model(features, mask)
    seen = slice(None) if mask is None else expected.attention_mask.bool()
    gradients = torch.autograd.grad(expected.last_hidden_state[seen].square().sum(), leaves(model))
    style = ContextParallel(layout="contiguous", method=method)  # type: ignore[arg-type]
    style.apply_to(model, world())
    for _ in range(2):
        found = model(features, mask)
        assert found.last_hidden_state.shape == expected.last_hidden_state.shape
        one, other = (x.last_hidden_state[seen] for x in (expected, found))
        assert relative_error(other, one) <= 1e-12
        # Every rank has the whole output, and takes 1 / P of its loss.
        loss = found.last_hidden_state[seen].square().sum() / size
        for x, whole in zip(torch.autograd.grad(loss, leaves(model)), gradients, strict=True):
            total = x.contiguous().clone()
            distributed.all_reduce(total)
            assert relative_error(total, whole) <= 1e-11
        if mask is not None:
            assert torch.equal(found.attention_mask, expected.attention_mask)
    style.remove_from(model)
    assert torch.equal(model(features, mask).last_hidden_state, expected.last_hidden_state)


@pytest.mark.parametrize("method", ["auto", "heads", "gather", "ring"])
@pytest.mark.costly(2)
def test_a_long_input_goes_through_the_heads_in_parts(two, three, method: str):
    for pool in (two, three):
        pool.run(_check_long, method)


def _check_long(rank, size, method) -> None:
    model = encoder()
    features = torch.randn(1, 320, 16, generator=torch.Generator().manual_seed(1)).double()
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        expected = model(features).last_hidden_state
        patch.setattr(parakeet, "_LONG_TABLE", 30)
        style = ContextParallel(layout="contiguous", method=method)
        style.apply_to(model, world())
        found = model(features).last_hidden_state
        style.remove_from(model)
        again = model(features).last_hidden_state
    assert relative_error(found, expected) <= 1e-12
    assert relative_error(again, expected) <= 1e-12


def test_what_else_an_encoder_gives_is_whole_too(two):
    two.run(_check_other_outputs)


def _check_other_outputs(rank, size) -> None:
    model = encoder()
    features = torch.randn(1, 320, 16, generator=torch.Generator().manual_seed(1)).double()
    expected = model(features, output_hidden_states=True, return_dict=False)
    ContextParallel(layout="contiguous").apply_to(model, world())
    found = model(features, output_hidden_states=True, return_dict=False)
    assert isinstance(found, tuple)
    for one, other in zip(expected, found, strict=True):
        for x, y in zip(one, other, strict=True):
            assert relative_error(y, x) <= 1e-12


def test_neighbours_and_their_gradients(four):
    four.run(_check_neighbours)


def _check_neighbours(rank, size) -> None:
    ranks = resolve_group("test", world())
    x = torch.arange(24.0).view(1, 12, 2).requires_grad_()
    own = x.detach()[:, 3 * rank : 3 * rank + 3].requires_grad_()
    found, before = with_neighbours(own, ranks, 2)
    first, end = max(3 * rank - 2, 0), min(3 * rank + 5, 12)
    assert torch.equal(found, x[:, first:end])
    assert before == 3 * rank - first
    weights = torch.arange(1.0, 1 + found.numel()).view(found.shape)
    (found * weights).sum().backward()
    total = sum(
        (x[:, max(3 * r - 2, 0) : min(3 * r + 5, 12)]
         * torch.arange(1.0, 1 + 2 * (min(3 * r + 5, 12) - max(3 * r - 2, 0))).view(1, -1, 2)).sum()
        for r in range(size)
    )  # fmt: skip
    (expected,) = torch.autograd.grad(total, x)  # type: ignore[arg-type]
    assert torch.equal(own.grad, expected[:, 3 * rank : 3 * rank + 3])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="x must have at least 4 tokens on each rank, got 3"):
        with_neighbours(own, ranks, 4)


def test_what_is_refused_says_so(two):
    two.run(_refused)


def _refused(rank, size) -> None:
    model = encoder()
    with pytest.raises(ValueError, match="layout must be 'contiguous' for Parakeet, whose"):
        ContextParallel().apply_to(model, world())
    assert not any("attend_elsewhere" in vars(part) for part in model.modules())
    ContextParallel(layout="contiguous").apply_to(model, world())
    with pytest.raises(ValueError, match="must give every rank 4 frames at least, as many as Para"):
        model(torch.zeros(1, 8 * 7, 16).double())
    model.train()
    with pytest.raises(ValueError, match="Parakeet must be in evaluation mode: its batch norm"):
        model(torch.zeros(1, 320, 16).double())
