"""What only BEiT and its kin have: a class token's biases, images of any size, masks, pipelines."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from transformers import (
    BeitConfig,
    BeitForMaskedImageModeling,
    BeitForSemanticSegmentation,
    BeitModel,
    Data2VecVisionConfig,
    Data2VecVisionForImageClassification,
    Data2VecVisionModel,
    DPTConfig,
    DPTForDepthEstimation,
    ZoeDepthConfig,
    ZoeDepthForDepthEstimation,
)

from relpos.adapters import Adapted, adapt
from relpos.adapters.adaptations.image_bias import ImageBias

from .models.beit import SIZES
from .results import assert_equal, drawn_pair, results_of

pytestmark = [
    pytest.mark.no_typecheck,
    pytest.mark.usefixtures("float64_stays_float64"),
]

OWN: dict[str, Any] = {"use_relative_position_bias": True}
SHARED: dict[str, Any] = {"use_shared_relative_position_bias": True}
EAGER: dict[str, Any] = {"attn_implementation": "eager"}
LABELS: dict[str, Any] = {"num_labels": 3}
biases = pytest.mark.parametrize(
    "settings", [OWN, SHARED, OWN | SHARED], ids=["own", "shared", "both"]
)
models = pytest.mark.parametrize(
    ("config", "model"),
    [(BeitConfig, BeitModel), (Data2VecVisionConfig, Data2VecVisionModel)],
    ids=["beit", "data2vec"],
)
implementations = pytest.mark.parametrize("implementation", ["eager", "sdpa"])


@models
@biases
@implementations
@pytest.mark.parametrize("made_for", [6, (4, 7)], ids=str)
@pytest.mark.costly(4)
def test_images_of_any_size_give_the_outputs_and_gradients_of_the_original(
    config: Any, model: Any, settings: Any, implementation: str, made_for: Any
):
    sizes = SIZES | settings | {"image_size": made_for, "attn_implementation": implementation}
    for height, width in ((4, 7), (6, 6), (3, 11), (1, 1), (1, 9)):
        theirs, ours = drawn_pair(model(config(**sizes)))
        given = {"pixel_values": torch.randn(2, 3, height, width, dtype=torch.float64)}
        expected = results_of(theirs, given, "last_hidden_state")
        assert_equal(results_of(ours, given, "last_hidden_state"), expected, 1e-12)


@models
@pytest.mark.parametrize("index", [-3, -2, -1], ids=["for patches", "of patches", "for itself"])
def test_each_bias_of_the_class_token_matters(config: Any, model: Any, index: int):
    _, ours = drawn_pair(model(config(**SIZES, **OWN)))
    given = {"pixel_values": torch.randn(1, 3, 3, 5, dtype=torch.float64)}
    before = ours(**given).last_hidden_state
    for name, parameter in ours.named_parameters():
        if name.endswith("bias_table"):
            parameter.data[index] += 1
    assert (ours(**given).last_hidden_state - before).abs().max() > 1e-3


@models
@implementations
def test_weights_are_those_of_the_original_when_asked_for(
    config: Any, model: Any, implementation: str
):
    theirs, ours = drawn_pair(model(config(**SIZES, **OWN, attn_implementation=implementation)))
    pixels = torch.randn(2, 3, 3, 5, dtype=torch.float64)
    found = ours(pixels, output_attentions=True).attentions
    theirs, _ = drawn_pair(model(config(**SIZES, **OWN, attn_implementation="eager")))
    expected = theirs(pixels, output_attentions=True).attentions
    assert [tuple(x.shape) for x in found] == [(2, 2, 16, 16)] * 2
    torch.testing.assert_close(found, expected)


@models
@biases
def test_stretched_positions_are_those_of_the_original(config: Any, model: Any, settings: Any):
    theirs, ours = drawn_pair(model(config(**SIZES, **settings)))
    pixels = torch.randn(2, 3, 5, 8, dtype=torch.float64)
    got, expected = (each(pixels, interpolate_pos_encoding=True) for each in (ours, theirs))
    torch.testing.assert_close(
        got.last_hidden_state, expected.last_hidden_state, rtol=1e-9, atol=1e-9
    )


def test_a_bias_stretched_to_other_tokens_is_the_originals():
    theirs, ours = drawn_pair(BeitModel(BeitConfig(**SIZES, **OWN)))
    module: Any = ours.layers[0].relative_position_bias
    found = module((3, 5), interpolate_pos_encoding=True, dim_size=20)
    assert found.shape == (1, 2, 20, 20)
    # Which its layer takes as the original does.
    x = torch.randn(2, 20, 16, dtype=torch.float64)
    arguments = {"interpolate_pos_encoding": True, "resolution": (3, 5)}
    got, expected = (each.layers[0](x, **arguments) for each in (ours, theirs))
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


@biases
@pytest.mark.parametrize("axes", [2, 4])
def test_masks_hide_patches_as_in_the_eager_original(settings: Any, axes: int):
    """Under SDPA the original adds True and False to the bias, as 1 and 0."""
    theirs, ours = drawn_pair(BeitModel(BeitConfig(**SIZES, **settings, **EAGER)))
    pixels = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    mask = torch.rand(2, 21) > 0.3
    mask[:, 0] = True
    if axes == 4:
        hidden = torch.finfo(torch.float64).min
        pairs = (torch.rand(2, 1, 21, 21) > 0.3) | torch.eye(21, dtype=torch.bool)
        mask = torch.zeros(2, 1, 21, 21, dtype=torch.float64).masked_fill(~pairs, hidden)
    got, expected = (each(pixels, attention_mask=mask) for each in (ours, theirs))
    plain = ours(pixels).last_hidden_state
    assert not torch.allclose(got.last_hidden_state, plain, rtol=1e-3)
    torch.testing.assert_close(
        got.last_hidden_state, expected.last_hidden_state, rtol=1e-9, atol=1e-9
    )


def test_boolean_masks_of_pairs_hide_them():
    theirs, ours = drawn_pair(BeitModel(BeitConfig(**SIZES, **OWN, **EAGER)))
    x = torch.randn(2, 21, 16, dtype=torch.float64)
    pairs = (torch.rand(2, 1, 21, 21) > 0.3) | torch.eye(21, dtype=torch.bool)
    additive = torch.zeros(2, 1, 21, 21, dtype=torch.float64).masked_fill(~pairs, -torch.inf)
    got = ours.layers[0](x, attention_mask=pairs, resolution=(4, 5))
    expected = theirs.layers[0](x, attention_mask=additive, resolution=(4, 5))
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


def test_without_one_of_its_modules_nothing_is_adapted():
    model = BeitModel(BeitConfig(**SIZES, **OWN))
    bias: Any = model.layers[1].relative_position_bias
    bias.forward = partial(bias.forward)
    report = adapt(model)
    assert not any(isinstance(module, Adapted) for module in model.modules())
    assert not report.adapted
    assert report.left


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        (OWN, "layers.1.attention"), (SHARED, "layers.1.attention"), (OWN, "layers.1"),
        (OWN | SHARED, "layers.1.relative_position_bias"), (SHARED, "shared_position_bias"),
    ],
    ids=["own", "shared", "layer", "bias of a layer", "bias of all"],
)  # fmt: skip
def test_beside_a_subclass_nothing_is_adapted(settings: Any, part: str):
    model = BeitModel(BeitConfig(**SIZES, **settings))
    module: Any = model.get_submodule(part)
    module.__class__ = type("Mine", (type(module),), {})
    report = adapt(model)
    assert not any(isinstance(each, Adapted) for each in model.modules())
    assert report.left
    model(torch.randn(1, 3, 4, 5))


def test_biases_add_up_with_masks():
    tables = torch.ones(1, 3, 3), torch.ones(3, 1)
    mask = torch.ones(1, 1, 1, 5)
    total = (ImageBias(*tables) + mask) + (ImageBias(*tables) + mask) + mask
    assert total.patches.eq(2).all()
    assert total.class_token.eq(2).all()
    assert total.mask.eq(3).all()


def test_patches_that_were_hidden_are_told_as_before():
    theirs, ours = drawn_pair(
        BeitForMaskedImageModeling(
            BeitConfig(**SIZES, **SHARED, vocab_size=20, use_mask_token=True)
        )
    )
    given = {
        "pixel_values": torch.randn(2, 3, 6, 6, dtype=torch.float64),
        "bool_masked_pos": torch.rand(2, 36) > 0.5,
    }
    assert_equal(results_of(ours, given, "logits"), results_of(theirs, given, "logits"), 1e-12)


def test_an_image_is_segmented_as_before():
    sizes = SIZES | OWN | LABELS | {"num_hidden_layers": 4, "image_size": 32, "patch_size": 4}
    config = BeitConfig(**sizes | {"out_indices": [1, 2, 3, 4], "pool_scales": [1, 2]})
    theirs, ours = drawn_pair(BeitForSemanticSegmentation(config))
    pixels = torch.randn(2, 3, 48, 32, dtype=torch.float64)
    torch.testing.assert_close(ours(pixels).logits, theirs(pixels).logits, rtol=1e-9, atol=1e-9)


def test_an_image_is_classified_as_before():
    config = Data2VecVisionConfig(**SIZES, **OWN, **LABELS)
    theirs, ours = drawn_pair(Data2VecVisionForImageClassification(config))
    given = {
        "pixel_values": torch.randn(2, 3, 6, 6, dtype=torch.float64),
        "labels": torch.tensor([0, 2]),
    }
    assert_equal(results_of(ours, given, "logits"), results_of(theirs, given, "logits"), 1e-12)


BACKBONE = SIZES | OWN | {
    "num_hidden_layers": 4, "image_size": 32, "patch_size": 8, "reshape_hidden_states": False,
    "out_features": ["stage1", "stage2", "stage3", "stage4"],
}  # fmt: skip
DEPTH: dict[str, Any] = {"neck_hidden_sizes": [8, 8, 8, 8], "fusion_hidden_size": 8}


@pytest.mark.parametrize(
    "build",
    [
        lambda: DPTForDepthEstimation(
            DPTConfig(backbone_config=BeitConfig(**BACKBONE), hidden_size=16, **DEPTH)
        ),
        lambda: ZoeDepthForDepthEstimation(
            ZoeDepthConfig(
                backbone_config=BeitConfig(**BACKBONE),
                bottleneck_features=8, num_relative_features=8, bin_embedding_dim=8,
                num_patch_transformer_layers=1, patch_transformer_hidden_size=8,
                patch_transformer_intermediate_size=16, patch_transformer_num_attention_heads=2,
                **DEPTH,
            )
        ),
    ],
    ids=["dpt", "zoedepth"],
)  # fmt: skip
def test_depth_is_estimated_as_before(build: Any):
    theirs, ours = drawn_pair(build())
    pixels = torch.randn(2, 3, 32, 48, dtype=torch.float64)
    got, expected = ours(pixels).predicted_depth, theirs(pixels).predicted_depth
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)
    assert sum(isinstance(module, Adapted) for module in ours.modules()) == 3 * 4
