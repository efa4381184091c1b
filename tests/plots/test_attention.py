"""Attention maps show the weights with which a model reads, and their means by offset."""

import numpy as np
import pytest
import torch

import relpos
from relpos.plots import (
    attention_figure,
    decoder_weights,
    image_bytes,
    mean_by_offset,
    mean_distance,
)
from relpos_tasks.models import DecoderConfig, DecoderLM


def decoder(**options):
    torch.manual_seed(0)
    return DecoderLM(DecoderConfig(vocabulary=11, width=8, layers=2, heads=2, **options))


@pytest.mark.parametrize("position", ["huang", "shaw", "absolute", "none"])
def test_the_weights_are_those_with_which_the_model_reads(position):
    model = decoder(position=position, max_length=9, max_distance=3).eval()
    tokens = torch.randint(11, (9,))
    weights = decoder_weights(model, tokens)
    assert weights.shape == (2, 2, 9, 9)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 9))
    assert (weights[..., ~torch.ones(9, 9).tril().bool()] == 0).all()
    # By hand for the first layer.
    x = model.embedding(tokens[None])
    x = x if model.position is None else model.position(x)
    layer, y = model.blocks[0].attention, model.blocks[0].attention_norm(x)
    q, k, _ = layer._project(y, y, y, self_attention=True)
    terms = relpos.Terms() if layer.position is None else layer.position(q, k)[2]
    torch.testing.assert_close(weights[0], relpos.attention_weights(q, k, terms, causal=True)[0])


def test_looking_leaves_the_model_as_it_was():
    model, tokens = decoder(dropout=0.5), torch.arange(5)
    before = decoder_weights(model, tokens)
    assert model.training
    assert torch.equal(decoder_weights(model, tokens), before)
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_a_model_that_fails_keeps_no_hook():
    model = decoder()
    with pytest.raises(IndexError):
        decoder_weights(model, torch.tensor([99]))
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("size", [1, 2, 9, 33])
def test_the_mean_by_offset_is_that_of_the_diagonals(size):
    weights = torch.rand(2, size, size)
    means = mean_by_offset(weights)
    assert means.shape == (2, 2 * size - 1)
    for n, offset in enumerate(range(1 - size, size)):
        expected = weights.diagonal(offset, 1, 2).mean(-1)
        torch.testing.assert_close(means[:, n], expected)


def test_the_mean_distance_is_how_far_a_head_looks():
    back_by_two = torch.eye(6).roll(-2, 1)
    back_by_two[:2] = torch.eye(6)[:2]
    assert mean_distance(back_by_two).item() == pytest.approx(2 * 4 / 6)
    assert mean_distance(torch.eye(6)).item() == 0


def test_the_maps_are_the_weights_and_the_lines_their_means(weights):
    figure = attention_figure(weights, title="a piece", layers=[3, 5])
    parts = figure.subfigs
    assert [part.get_suptitle() for part in parts[::2]] == ["Layer 3: a piece", "Layer 5: a piece"]
    for layer, (maps, reach) in enumerate(zip(parts[::2], parts[1::2], strict=True)):
        panels = [axes for axes in maps.axes if axes.get_visible() and axes.images]
        panels = [axes for axes in panels if axes.get_title()]
        assert [axes.get_title() for axes in panels] == ["head 1", "head 2", "head 3"]
        for head, axes in enumerate(panels):
            shown = axes.images[0].get_array()
            np.testing.assert_array_equal(shown.mask, np.triu(np.ones((9, 9), bool), 1))
            np.testing.assert_allclose(shown.filled(0), weights[layer, head])
        lines = reach.axes[0].lines
        assert len(lines) == 3
        for head, line in enumerate(lines):
            np.testing.assert_array_equal(line.get_xdata(), np.arange(-8, 1))
            means = mean_by_offset(weights[layer, head])[:9]
            np.testing.assert_allclose(line.get_ydata(), means, rtol=1e-6)
            far = mean_distance(weights[layer, head])
            assert line.get_label() == f"head {head + 1}: {far:.0f} back"
        assert "looks back" in reach.axes[0].get_xlabel()


@pytest.mark.parametrize("heads", [1, 2, 4, 6])
def test_any_number_of_heads_has_a_figure(heads):
    figure = attention_figure(torch.eye(5).expand(1, heads, 5, 5))
    assert b"looks back" in image_bytes(figure, ".svg")


def test_layers_and_their_numbers_must_fit(weights):
    with pytest.raises(ValueError, match="attention_figure: layers must be one number for each"):
        attention_figure(weights, layers=[1])
    with pytest.raises(ValueError, match="attention_figure: layers must be"):
        attention_figure(weights[:0])
