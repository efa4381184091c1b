"""timm's models beside their adapted copies: other sizes, what is shared, what runs as before."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from relpos.adapters import Adapted, adapt, restore
from tests.apart import import_apart
from tests.factories import normal

from .models import BY_NAME
from .models.case import draw
from .models.timm_models import swin, vision_transformer
from .results import drawn_pair, original_and_adapted

pytestmark = [
    pytest.mark.no_typecheck,
    # Where it resizes tables.
    pytest.mark.filterwarnings("ignore:torch.searchsorted:UserWarning"),
    pytest.mark.filterwarnings("ignore:Using a non-tuple sequence:UserWarning"),
]

WINDOWS = {"swin_transformer": "SwinTransformer", "swin_transformer_v2": "SwinTransformerV2",
           "swin_transformer_v2_cr": "SwinTransformerV2Cr"}  # fmt: skip
SHARED = {"rel_pos_type": "bias", "class_token": True, "shared_rel_pos": True}


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11)


def relpos_vit(**settings: Any) -> Any:
    torch.manual_seed(0)
    model = vision_transformer(
        36, "vision_transformer_relpos", "VisionTransformerRelPos", **settings
    )
    draw(model)
    return model.double().eval().model


@pytest.mark.parametrize("file", WINDOWS)
@pytest.mark.parametrize("order", ["adapt, then resize", "resize, then adapt"])
def test_swin_takes_another_size(file: str, order: str):
    torch.manual_seed(0)
    theirs = swin(54, file, WINDOWS[file])
    draw(theirs)
    theirs, ours = theirs.double().eval(), swin(54, file, WINDOWS[file]).double().eval()
    ours.load_state_dict(theirs.state_dict())
    change = partial(type(theirs.model).set_input_size, img_size=(8, 12), window_size=(4, 4))
    change(theirs.model)
    for step in (adapt, lambda x: change(x.model))[:: 1 if order.startswith("adapt") else -1]:
        step(ours)
    images = normal(2, 3, 8, 12)
    assert_same(ours(images).last_hidden_state, theirs(images).last_hidden_state)


@pytest.mark.parametrize("settings", [{"rel_pos_type": "bias"}, {"rel_pos_type": "mlp"}, SHARED])
def test_a_vision_transformer_takes_another_size(settings: dict[str, Any]):
    theirs, ours = original_and_adapted(relpos_vit(**settings))
    for model in (theirs, ours):
        model.set_input_size(img_size=(5, 9))
    images = normal(2, 3, 5, 9)
    assert_same(ours(images), theirs(images))


@pytest.mark.parametrize("name", ["timm swin", "timm beit", "timm sam"])
def test_checkpoints_change_no_gradient(name: str):
    case = BY_NAME[name]
    model: Any = case.model(torch.float64).train()
    adapt(model)
    inputs = case.with_dtype(case.inputs(2, case.lengths[0], "none"), torch.float64)
    found = []
    for checkpointing in (False, True):
        model.model.set_grad_checkpointing(checkpointing)
        model.zero_grad()
        model(**inputs).last_hidden_state.square().sum().backward()
        found.append({name: p.grad for name, p in model.named_parameters()})
    torch.testing.assert_close(found[1], found[0], rtol=1e-11, atol=1e-11)


def test_features_on_the_way_are_the_originals():
    images = normal(2, 3, 6, 6)
    for settings in ({"rel_pos_type": "bias"}, SHARED):
        theirs, ours = original_and_adapted(relpos_vit(**settings))
        for x, y in zip(
            ours.forward_intermediates(images)[1], theirs.forward_intermediates(images)[1],
            strict=True,
        ):  # fmt: skip
            assert_same(x, y)


def test_swin_cr_trains_as_before_where_its_biases_have_dropout():
    model = swin(54, "swin_transformer_v2_cr", "SwinTransformerV2Cr")
    draw(model)
    attention: Any = model.model.stages[0].blocks[1].attn.double()
    x = normal(6, 9, 16)
    theirs, ours = original_and_adapted(attention.train())
    for own in (theirs, ours):
        own.meta_mlp.drop1.p = 0.5
    found = []
    for own in (theirs, ours):
        torch.manual_seed(1)
        found.append(own(x))
    assert torch.equal(*found)
    assert not torch.equal(theirs(x), theirs(x))
    assert_same(ours.eval()(x), theirs.eval()(x))


class Own(nn.Module):
    """Somebody's attention with timm's biases."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = import_apart("timm.layers").RelPosBias((3, 3), 2)

    def forward(self, scores: Tensor) -> Tensor:
        return (scores + self.bias.get_bias()).softmax(-1)


def test_biases_in_the_attention_of_others_stay_as_they_are():
    model = nn.ModuleList([relpos_vit(**SHARED), Own().double()])
    theirs, ours = original_and_adapted(model)
    report = adapt(model)
    assert [name for name, _ in report.left] == ["1.bias"]
    scores = normal(1, 2, 9, 9)
    assert torch.equal(ours[1](scores), theirs[1](scores))
    assert not isinstance(ours[1].bias, Adapted)


def test_with_biases_of_another_class_all_are_left():
    model = relpos_vit(**SHARED)
    model.blocks[1].attn.rel_pos = Own()
    report = adapt(model)
    assert not report.adapted
    assert "rel_pos must be one of RelPosBias, RelPosMlp, RelPosBiasTf, got a Own" in str(report)
    assert not any(isinstance(module, Adapted) for module in model.modules())


def test_what_is_shared_is_restored():
    model = relpos_vit(**SHARED)
    classes = [type(module) for module in model.modules()]
    adapt(model)
    assert isinstance(model.shared_rel_pos, Adapted)
    assert isinstance(model.get_submodule("shared_rel_pos"), Adapted)
    restore(model)
    assert [type(module) for module in model.modules()] == classes


def test_a_bias_for_each_pair_is_added_as_before():
    theirs, ours = original_and_adapted(relpos_vit(**SHARED).blocks[1].attn)
    x, bias = normal(2, 37, 16), normal(1, 2, 37, 37)
    assert torch.equal(ours(x, shared_rel_pos=bias), theirs(x, shared_rel_pos=bias))
    assert torch.equal(ours(x), theirs(x))


def test_beit_with_a_bias_of_all_layers_beside_its_own_runs_as_before():
    model = vision_transformer(
        36, "beit", "Beit", use_abs_pos_emb=False, use_rel_pos_bias=True,
        use_shared_rel_pos_bias=True,
    )  # fmt: skip
    theirs, ours = drawn_pair(model.double())
    images = normal(2, 3, 6, 6)
    assert_same(ours(images).last_hidden_state, theirs(images).last_hidden_state)


def test_attentions_without_relative_positions_are_left_without_a_word():
    for settings in ({"file": "beit", "name": "Beit", "use_rel_pos_bias": False},
                     {"file": "vision_transformer_sam", "name": "VisionTransformerSAM",
                      "use_rel_pos": False}):  # fmt: skip
        with pytest.raises(ValueError, match="with none"):
            adapt(vision_transformer(36, **settings))
