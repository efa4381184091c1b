"""torchvision's Swin beside its adapted copy: maps of any size, videos, torch.fx."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.apart import import_apart
from tests.factories import normal

from .models.torchvision_models import Features, swin, video
from .results import drawn_pair

pytestmark = pytest.mark.no_typecheck


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def pair(model: Features) -> tuple[Any, Any]:
    return drawn_pair(model.double().eval())


# Windows are of 3 x 3, larger than some of these.
@pytest.mark.parametrize("size", [(2, 2), (2, 7), (3, 3), (3, 8), (4, 4), (9, 6)])
@pytest.mark.parametrize("version", ["", "V2"])
def test_maps_of_any_size(version: str, size: tuple[int, int]):
    theirs, ours = pair(swin(version))
    images = normal(2, 3, *size)
    assert_same(ours(images).last_hidden_state, theirs(images).last_hidden_state)


# Windows of two frames of 3 x 3.
@pytest.mark.parametrize("size", [(1, 6, 6), (2, 3, 3), (3, 4, 7), (4, 6, 9)])
def test_videos_of_any_size(size: tuple[int, int, int]):
    theirs, ours = pair(video())
    frames = normal(2, 3, *size)
    assert_same(ours(frames).last_hidden_state, theirs(frames).last_hidden_state)


def test_a_video_lower_than_a_window_runs_as_before():
    theirs, ours = pair(video())
    frames = normal(2, 3, 4, 2, 9)
    assert torch.equal(ours(frames).last_hidden_state, theirs(frames).last_hidden_state)


def test_a_bias_of_keys_is_not_added():
    theirs, ours = pair(swin("V2"))
    assert ours.layers[1][0].attn.qkv.bias.chunk(3)[1].abs().min() > 0
    images = normal(2, 3, 6, 6)
    assert_same(ours(images).last_hidden_state, theirs(images).last_hidden_state)


def test_dropout_of_outputs_draws_as_before():
    theirs, ours = pair(swin())
    for model in (theirs, ours):
        for attention in (block.attn for block in model.train().layers[1]):
            attention.dropout = 0.3
    images, found = normal(2, 3, 6, 6), []
    for model in (theirs, ours):
        torch.manual_seed(1)
        found.append(model(images).last_hidden_state)
    assert_same(found[1], found[0])


def test_features_can_be_extracted_with_attentions_as_leaves():
    extract = import_apart("torchvision.models.feature_extraction").create_feature_extractor
    theirs, ours = pair(swin())
    images, found = normal(2, 3, 6, 6), []
    for model in (theirs, ours):
        leaves = [type(model.layers[1][0].attn)]
        part = extract(model.layers, ["1.1.norm2"], tracer_kwargs={"leaf_modules": leaves})
        found.append(part(images)["1.1.norm2"])
    assert_same(found[1], found[0])


@pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("model", [swin, video])
def test_adapted_models_can_be_traced(model: Any):
    _, ours = pair(model())
    sizes = (3, 6, 6) if model is video else (6, 6)
    images = normal(2, 3, *sizes)
    traced = torch.jit.trace(ours.layers, images, check_trace=False)
    more = normal(5, 3, *sizes)
    assert_same(traced(more), ours.layers(more))
