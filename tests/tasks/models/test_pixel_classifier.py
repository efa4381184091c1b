"""`PixelClassifier`: equal starts, any size of image, configuration, checkpoints."""

import json

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from relpos.layers import GridAttention
from relpos_tasks.models.map_positions import MAP_POSITIONS
from relpos_tasks.models.pixel_classifier import (
    CONVOLUTION,
    PixelClassifier,
    PixelClassifierConfig,
)
from relpos_tasks.training.checkpoint import load, save_about, save_weights

ATTENTION = [("attention", position) for position in MAP_POSITIONS]
BOTTLENECK = [("bottleneck", position) for position in ("none", "grid", "absolute", CONVOLUTION)]
each_model = pytest.mark.parametrize(("block", "position"), ATTENTION + BOTTLENECK)


def built(position="grid", block="attention", *, seed=0, **changes):
    torch.manual_seed(seed)
    sizes = {"width": 32, "layers": 2, "heads": 2, "shape": (6, 7)}
    return PixelClassifier(
        PixelClassifierConfig(block=block, position=position, **sizes | changes)
    ).eval()


def picture(*shape, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


@each_model
def test_every_pixel_gets_logits_on_images_of_any_size(block, position):
    model = built(position, block)
    for shape in ((6, 7), (3, 11), (9, 9)):
        with torch.no_grad():
            logits = model(picture(2, *shape))
        assert logits.shape == (2, 10, *shape)
        assert logits.isfinite().all()


@each_model
def test_everything_but_the_positions_starts_with_the_same_numbers(block, position):
    plain = dict(built("none", block).named_parameters())
    found = dict(built(position, block).named_parameters())
    replaced = "attention" if position == CONVOLUTION else "position"
    shared = {name for name in plain if f".{replaced}." not in name}
    assert len(shared) > 10
    for name in shared:
        assert torch.equal(found[name], plain[name]), name
    own = {name for name in found if replaced in name and name not in plain}
    assert found.keys() == shared | own


@each_model
def test_training_reaches_every_parameter_and_starts_near_uniform(block, position):
    model = built(position, block).train()
    images = picture(3, 6, 7)
    # Bottlenecks begin as their shortcuts: their last norms are moved so that all is reached.
    for name, parameter in model.named_parameters():
        if name.endswith("expand.1.weight"):
            torch.nn.init.ones_(parameter)
    loss = cross_entropy(model(images), (10 * images).long())
    assert abs(loss.item() - torch.tensor(10.0).log().item()) < 0.5
    loss.backward()
    for name, parameter in model.named_parameters():
        # Softmax does not feel a bias that all keys share.
        if not name.endswith("in_proj.bias"):
            assert parameter.grad.abs().sum() > 0, name


def moved(image, down, across):
    return torch.roll(image, (down, across), (-2, -1))


def test_without_relative_logits_move_with_the_ink():
    model, image = built("none"), torch.zeros(1, 12, 12)
    image[0, 1:5, 1:4] = picture(4, 3)
    with torch.no_grad():
        got, want = model(moved(image, 6, 7)), moved(model(image), 6, 7)
    assert_close(got, want)


@pytest.mark.parametrize("position", ["absolute", "sinusoidal", "grid"])
def test_positions_tell_arrangements_apart(position):
    model, image = built(position), torch.zeros(1, 8, 8)
    image[0, 1, 1] = image[0, 1, 5] = image[0, 5, 1] = 1
    other = image.clone()
    other[0, 5, 1], other[0, 5, 5] = 0, 1
    with torch.no_grad():
        assert not torch.allclose(model(image)[0, :, 1, 1], model(other)[0, :, 1, 1])
        plain = built("none")
        assert_close(plain(image)[0, :, 1, 1], plain(other)[0, :, 1, 1])


def test_the_stem_does_not_see_the_edge_of_a_blank_image():
    model = built()
    with torch.no_grad():
        # Other numbers than those of before training, at which blank is 0.
        model.stem[1].bias.uniform_()
        rows = model.stem(torch.zeros(1, 1, 5, 4)).flatten(2)[0]
    assert_close(rows, rows[:, :1].expand(-1, 20))


def test_a_convolution_takes_the_place_of_attention():
    model = built(CONVOLUTION, "bottleneck")
    assert not [one for one in model.modules() if isinstance(one, GridAttention)]
    narrow = model.blocks[0].attention
    assert (narrow.in_channels, narrow.out_channels, narrow.kernel_size) == (8, 8, (3, 3))


@pytest.mark.no_typecheck
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"position": "rotary"}, "position must be one of 'none', .*, got 'rotary'"),
        ({"position": "convolution"}, "position must be one of .*, got 'convolution'"),
        ({"position": ["grid"]}, r"position must be one of .*, got \['grid'\]"),
        ({"block": "dense"}, "block must be one of 'attention', 'bottleneck', got 'dense'"),
        ({"width": 50, "heads": 3}, "width must be a multiple of heads = 3, got 50"),
        (
            {"width": 36, "heads": 2, "block": "bottleneck"},
            r"width must be a multiple of 4 \* heads = 8, got 36",
        ),
        ({"layers": 0}, "layers must be an integer >= 1, got 0"),
        ({"hidden": -1}, "hidden must be an integer >= 1, got -1"),
        ({"shape": (16,)}, "shape must be"),
        ({"shape": 16}, "shape must be"),
        ({"classes": 2.5}, "classes must be an integer"),
    ],
)
def test_what_is_out_of_range_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        PixelClassifierConfig(**fields)


def test_a_configuration_survives_json():
    config = PixelClassifierConfig(position="window", shape=(5, 9), hidden=7)
    assert PixelClassifierConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    with pytest.raises(ValueError, match=r"fields must be among classes, .*, got wdith"):
        PixelClassifierConfig.from_dict({"wdith": 3})


@pytest.mark.no_typecheck
def test_images_of_another_form_are_refused():
    with pytest.raises(ValueError, match=r"images must be \(b, m, n\), got \(1, 1, 6, 7\)"):
        built()(torch.zeros(1, 1, 6, 7))


@each_model
def test_a_checkpoint_gives_the_same_logits(block, position, tmp_path):
    model, images = built(position, block), picture(2, 6, 7)
    with torch.no_grad():
        # Running means of batch norms belong to a checkpoint.
        model.train()(images)
        want = model.eval()(images)
        save_weights(tmp_path, model)
        save_about(tmp_path, {"model": model.config.to_dict()})
        assert torch.equal(load(tmp_path, PixelClassifier).model(images), want)
