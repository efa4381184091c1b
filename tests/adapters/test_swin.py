"""What only Swin and its kin have: shifted windows of several images, weights, whole pipelines."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    ClapAudioConfig,
    ClapAudioModel,
    Swin2SRConfig,
    Swin2SRForImageSuperResolution,
    SwinConfig,
    SwinForMaskedImageModeling,
    SwinModel,
    Swinv2Config,
    UperNetConfig,
    UperNetForSemanticSegmentation,
)
from transformers.models.donut.modeling_donut_swin import DonutSwinSelfAttention
from transformers.models.swin.modeling_swin import SwinAttention
from transformers.models.swinv2.modeling_swinv2 import Swinv2SelfAttention

from relpos.adapters import Adapted

from .models.swin import SIZES
from .results import assert_equal, drawn_pair, results_of

pytestmark = [
    pytest.mark.no_typecheck,
    pytest.mark.usefixtures("float64_stays_float64"),
]

MODULES = {
    "swin": lambda: SwinAttention(SwinConfig(**SIZES), 16, 2, 4),
    "donut": lambda: DonutSwinSelfAttention(SwinConfig(**SIZES), 16, 2, (3, 5)),
    "swinv2": lambda: Swinv2SelfAttention(Swinv2Config(**SIZES), 16, 2, 4),
    "swinv2, for another window": lambda: Swinv2SelfAttention(
        Swinv2Config(**SIZES), 16, 2, (3, 5), [4, 4]
    ),
}
every = pytest.mark.parametrize("name", MODULES)


def tokens(name: str) -> int:
    """Of a window of the module."""
    return 15 if "donut" in name or "another" in name else 16


@every
@pytest.mark.parametrize(
    ("windows", "of_an_image"), [(6, None), (6, 6), (6, 3), (6, 1), (1, 1)], ids=str
)
def test_windows_of_images_give_the_outputs_and_gradients_of_the_original(
    name: str, windows: int, of_an_image: int | None
):
    x = torch.randn(windows, tokens(name), 16, dtype=torch.float64)
    mask = None
    if of_an_image is not None:
        mask = torch.zeros(of_an_image, tokens(name), tokens(name), dtype=torch.float64)
        mask.masked_fill_(torch.rand_like(mask) > 0.6, -100.0)

    def results(module: Any) -> dict[str, Any]:
        leaf = x.clone().requires_grad_()
        output = module(leaf, mask)[0]
        (output * torch.linspace(-1, 1, output.numel()).view_as(output)).sum().backward()
        found = {name: p.grad for name, p in module.named_parameters()}
        return {"output": output.detach(), "x": leaf.grad} | found

    theirs, ours = drawn_pair(MODULES[name]())
    assert_equal(results(ours), results(theirs), 1e-12)


@every
def test_weights_are_those_of_the_original_when_asked_for(name: str):
    theirs, ours = drawn_pair(MODULES[name]())
    x = torch.randn(4, tokens(name), 16, dtype=torch.float64)
    mask = torch.zeros(2, tokens(name), tokens(name), dtype=torch.float64)
    mask[1, :, 3:] = -100.0
    got, expected = (
        module(x, mask, output_attentions=True)[1] for module in (ours, theirs)
    )  # fmt: skip
    torch.testing.assert_close(got, expected)
    assert all(part is None for part in ours(x, mask)[1:])


@every
def test_a_window_of_another_size_is_refused_as_before(name: str):
    theirs, ours = drawn_pair(MODULES[name]())
    x = torch.randn(2, 9, 16, dtype=torch.float64)
    with pytest.raises(RuntimeError) as expected:
        theirs(x)
    with pytest.raises(RuntimeError) as found:
        ours(x)
    assert str(found.value) == str(expected.value)


def test_swin_gives_weights_where_it_was_asked_for_them():
    theirs, ours = drawn_pair(SwinModel(SwinConfig(**SIZES, attn_implementation="eager")))
    pixels = torch.randn(2, 3, 9, 9, dtype=torch.float64)
    got, expected = (each(pixels, output_attentions=True).attentions for each in (ours, theirs))
    assert len(got) == len(expected) == 1
    torch.testing.assert_close(got, expected)


def image(height: int, width: int) -> dict[str, Any]:
    """Two of them."""
    return {"pixel_values": torch.randn(2, 3, height, width, dtype=torch.float64)}


def test_pieces_that_were_hidden_are_painted_as_before():
    sizes = SIZES | {"image_size": 8, "patch_size": 2, "encoder_stride": 2, "window_size": 2}
    theirs, ours = drawn_pair(SwinForMaskedImageModeling(SwinConfig(**sizes)))
    given = image(8, 8) | {"bool_masked_pos": torch.rand(2, 16) > 0.5}
    found = (results_of(each, given, "reconstruction") for each in (ours, theirs))
    assert_equal(*found, 1e-12)


def test_an_image_is_enlarged_as_before():
    sizes = SIZES | {"upscale": 2, "upsampler": "pixelshuffledirect"}
    theirs, ours = drawn_pair(Swin2SRForImageSuperResolution(Swin2SRConfig(**sizes)))
    given = image(9, 12)
    found = (results_of(each, given, "reconstruction") for each in (ours, theirs))
    assert_equal(*found, 1e-12)


def test_an_image_is_segmented_as_before():
    sizes = SIZES | {"depths": [2, 2], "num_heads": [2, 2], "image_size": 24, "patch_size": 2}
    backbone = SwinConfig(**sizes, out_features=["stage1", "stage2"])
    theirs, ours = drawn_pair(
        UperNetForSemanticSegmentation(
            UperNetConfig(
                backbone_config=backbone, hidden_size=8, pool_scales=[1, 2], num_labels=3,
                use_auxiliary_head=False,
            )
        )
    )  # fmt: skip
    given = image(24, 36)
    torch.testing.assert_close(ours(**given).logits, theirs(**given).logits, rtol=1e-9, atol=1e-9)
    attention = [x for x in ours.modules() if isinstance(x, Adapted) and x.scheme]
    assert len(attention) == 4


def test_sound_of_any_length_is_heard_as_before():
    config = ClapAudioConfig(
        spec_size=32, num_mel_bins=8, patch_size=4, patch_stride=[4, 4], window_size=3,
        patch_embeds_hidden_size=16, hidden_size=32, depths=[2, 2], num_attention_heads=[2, 2],
        enable_fusion=True,
    )  # fmt: skip
    theirs, ours = drawn_pair(ClapAudioModel(config))
    for frames in (128, 90):
        given = {
            "input_features": torch.randn(2, 4, frames, 8, dtype=torch.float64),
            "is_longer": torch.tensor([[True], [False]]),
        }
        got, expected = (each(**given).pooler_output for each in (ours, theirs))
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)
