"""timm's models beside their adapted copies: other sizes, what is shared, what runs as before."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import peft
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


class Tripled:
    """What somebody makes of timm's biases."""

    def get_bias(self) -> Tensor:
        return 3 * super().get_bias()  # type: ignore[misc]


@pytest.mark.parametrize("kind", ["another class", "a subclass", "another forward"])
@pytest.mark.parametrize("settings", [{"rel_pos_type": "bias"}, SHARED])
def test_with_other_biases_all_are_left(kind: str, settings: dict[str, Any]):
    model = relpos_vit(**settings)
    holder, name = (model, "shared_rel_pos") if settings is SHARED else (
        model.blocks[1].attn, "rel_pos"
    )  # fmt: skip
    bias = getattr(holder, name)
    if kind == "another class":
        setattr(holder, name, Own())
    elif kind == "a subclass":
        bias.__class__ = type("Mine", (Tripled, type(bias)), {})
    else:
        bias.forward = partial(type(bias).forward, bias)
    report = adapt(model)
    assert not report.adapted
    reason = "its forward was replaced" if kind == "another forward" else (
        "it must be one of RelPosBias, RelPosMlp, RelPosBiasTf"
    )  # fmt: skip
    assert reason in " ".join(why for _, why in report.left)
    assert not any(isinstance(module, Adapted) for module in model.modules())


def test_a_bias_may_be_of_two_attentions():
    model = relpos_vit(rel_pos_type="bias")
    model.blocks[1].attn.rel_pos = model.blocks[0].attn.rel_pos
    theirs, ours = original_and_adapted(model)
    images = normal(2, 3, 6, 6)
    assert_same(ours(images), theirs(images))
    restore(ours)
    assert not any(isinstance(module, Adapted) for module in ours.modules())
    assert torch.equal(ours(images), theirs(images))


def test_tables_of_a_bottleneck_of_another_class_are_left():
    attention = import_apart("timm.layers.bottleneck_attn").BottleneckAttn(
        8, 8, (3, 5), num_heads=2
    )
    tables = attention.pos_embed
    tables.__class__ = type("Mine", (type(tables),), {})
    assert [why for _, why in adapt(attention).left] == [
        "pos_embed, a Mine: it must be a PosEmbedRel"
    ]


def test_a_bottleneck_takes_maps_of_its_size_alone():
    attention = import_apart("timm.layers.bottleneck_attn").BottleneckAttn(
        8, 8, (3, 5), num_heads=2
    )
    theirs, ours = original_and_adapted(attention)
    for model in (theirs, ours):
        assert model(torch.randn(2, 8, 3, 5)).is_contiguous()
        with pytest.raises(AssertionError):
            model(torch.randn(2, 8, 5, 3))


@pytest.mark.parametrize("head_first", [True, False])
@pytest.mark.parametrize("name", ["Attention2d", "AttentionCl"])
def test_heads_lie_before_or_behind_queries_keys_and_values(name: str, head_first: bool):
    bias = partial(import_apart("timm.layers").RelPosBias, window_size=(3, 5))
    cls = getattr(import_apart("timm.models.maxxvit"), name)
    attention = cls(16, 16, dim_head=8, head_first=head_first, rel_pos_cls=bias)
    draw(attention)
    theirs, ours = original_and_adapted(attention.double().eval())
    x = normal(2, 16, 3, 5) if name == "Attention2d" else normal(2, 3, 5, 16)
    assert_same(ours(x), theirs(x))
    with pytest.raises(ValueError, match="with none"):
        adapt(cls(16, 16, dim_head=8))


def test_gc_vit_of_an_older_timm_is_left(monkeypatch: pytest.MonkeyPatch):
    cls = import_apart("timm.models.gcvit").WindowAttentionGlobal
    attention = cls(16, 2, (3, 3))

    def forward(self: Any, x: Tensor, q_global: Tensor | None = None) -> None: ...

    forward.__module__ = cls.__module__
    monkeypatch.setattr(cls, "forward", forward)
    assert "another order than 1.0.31" in str(adapt(attention))


BY_BATCH = (
    "timm swin", "timm swin v2", "timm swin cr", "timm beit", "timm relpos vit, learned",
    "timm relpos vit, one bias for all layers", "timm sam", "timm maxvit", "timm gcvit",
    "timm bottleneck", "torchvision swin", "torchvision video swin", "torchvision maxvit",
    "segment_anything", "speechbrain",
)  # fmt: skip


class Output(nn.Module):
    """The output alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x).last_hidden_state


@pytest.mark.parametrize("name", BY_BATCH)
@pytest.mark.costly(2)
def test_a_program_serves_any_batch(name: str):
    case = BY_NAME[name]
    model = case.model()
    adapt(model)
    (two,), (five,) = (case.inputs(n, case.lengths[0], "none").values() for n in (2, 5))
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(Output(model), (two,), dynamic_shapes=({0: batch},))
    torch.testing.assert_close(program.module()(five), model(five).last_hidden_state)


@pytest.mark.parametrize("name", ["timm swin", "timm swin v2", "timm beit", "torchvision swin",
                                  "torchvision swin v2"])  # fmt: skip
def test_lora_of_queries_keys_and_values_acts_as_if_it_were_merged(name: str):
    case = BY_NAME[name]
    model: Any = case.model(torch.float64)
    lora = peft.LoraConfig(target_modules=["qkv"], r=2, init_lora_weights=False)
    inputs = case.with_dtype(case.inputs(2, case.lengths[0], "none"), torch.float64)
    before = case.call(model, inputs)[0]
    wrapped = peft.get_peft_model(model, lora).double().eval()
    merged = copy.deepcopy(wrapped).merge_and_unload()
    adapt(wrapped)
    expected = case.call(merged, inputs)[0]
    assert not torch.allclose(expected, before)
    assert_same(case.call(wrapped.get_base_model(), inputs)[0], expected)


def test_what_is_shared_is_restored():
    model = relpos_vit(**SHARED)
    classes = [type(module) for module in model.modules()]
    scores = normal(1, 2, 37, 37)
    expected = model.shared_rel_pos(scores)
    adapt(model)
    assert_same(model.shared_rel_pos(scores), expected)
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
    sam = import_apart("segment_anything.modeling.image_encoder").ImageEncoderViT
    with pytest.raises(ValueError, match="with none"):
        adapt(sam(img_size=9, patch_size=1, embed_dim=8, depth=1, num_heads=2, use_rel_pos=False))
