"""Maps of what a model learned: where a pixel looks, what positions add by offset."""

import pytest
import torch
from torch.testing import assert_close

from relpos_tasks.models.pixel_classifier import PixelClassifier, PixelClassifierConfig
from relpos_tasks.vision.maps import added_by_offset, pixel_weights, similarity_of_places

SHAPE = (5, 6)


def built(position, block="attention"):
    torch.manual_seed(0)
    config = PixelClassifierConfig(
        width=16, layers=2, heads=2, block=block, position=position, shape=SHAPE
    )
    return PixelClassifier(config).eval()


def picture(seed=0):
    return torch.rand(SHAPE, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("position", ["none", "grid", "absolute", "axial-rotary", "continuous"])
def test_weights_are_those_that_attention_used(position):
    """A change of one pixel's value vector moves the output by its weight."""
    model, image, pixel = built(position), picture(), (2, 3)
    weights = pixel_weights(model, image, pixel)
    assert weights.shape == (2, 2, *SHAPE)
    assert_close(weights.sum((2, 3)), torch.ones(2, 2))
    layer = model.blocks[0].attention
    seen = []
    hook = layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        model(image[None])
        hook.remove()
        values = layer.in_proj(seen[0].flatten(2).mT).chunk(3, dim=-1)[2][0]
        heads = values.unflatten(-1, (2, 8)).transpose(0, 1)
        read = torch.einsum("hj,hjd->hd", weights[0].flatten(1), heads).flatten()
        assert_close(layer(seen[0])[0, :, 2, 3], layer.out_proj(read))


def test_a_convolution_has_no_weights():
    assert len(pixel_weights(built("convolution", "bottleneck"), picture(), (0, 0))) == 0


def test_a_window_bias_is_its_own_map():
    model = built("window")
    images = torch.stack([picture(n) for n in range(3)])
    added = added_by_offset(model, images, 0.01)
    assert added.shape == (2, 2, 9, 11)
    for layer, block in zip(added, model.blocks, strict=True):
        assert_close(layer, block.attention.position.joint_bias.detach().double())


def test_offsets_without_a_key_are_left_out():
    image = torch.zeros(1, *SHAPE)
    image[0, 0, 0] = 1
    added = added_by_offset(built("grid"), image, 0.5)
    assert added[:, :, 4:, 5:].isfinite().all()
    assert added[:, :, :4].isnan().all()
    assert added[:, :, :, :5].isnan().all()


@pytest.mark.parametrize("position", ["none", "absolute"])
def test_without_relative_in_attention_there_is_no_map(position):
    assert len(added_by_offset(built(position), picture()[None], 0.5)) == 0


def test_rows_of_places_are_compared_by_their_cosine():
    model = built("absolute")
    similarity = similarity_of_places(model, (1, 2))
    assert similarity.shape == SHAPE
    assert_close(similarity[1, 2], torch.tensor(1.0))
    rows = model.position.rows
    want = torch.cosine_similarity(rows[:, 1, 2], rows[:, 4, 0], dim=0)
    assert_close(similarity[4, 0], want.detach())
    assert similarity_of_places(built("grid"), (1, 2)) is None
