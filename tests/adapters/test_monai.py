"""MONAI's attentions beside their adapted copies: maps of any size, masks, stored weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from relpos.adapters import adapt
from tests.apart import import_apart
from tests.factories import normal

from .models.monai_models import Stage
from .results import drawn_pair

pytestmark = pytest.mark.no_typecheck

DECOMPOSED = {"rel_pos_embedding": "decomposed", "input_size": (3, 4)}


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)


def block(**settings: Any) -> Any:
    cls = import_apart("monai.networks.blocks.selfattention").SABlock
    return cls(**{"hidden_size": 16, "num_heads": 2, **DECOMPOSED, **settings})


# Windows of 3 x 3, and of two layers of them; smaller maps have one window, whatever its biases.
@pytest.mark.parametrize(
    "size",
    [(2, 2), (2, 7), (3, 3), (3, 8), (4, 4), (9, 6), (1, 6, 6), (2, 3, 3), (3, 4, 7), (4, 2, 9)],
)
def test_maps_of_any_size(size: tuple[int, ...]):
    theirs, ours = drawn_pair(Stage(len(size)).double().eval())
    maps = normal(2, 3, *size)
    assert_same(ours(maps).last_hidden_state, theirs(maps).last_hidden_state)


def test_relpos_attends_in_windows_of_whole_rows(monkeypatch: pytest.MonkeyPatch):
    module = import_apart("monai.networks.nets.swin_unetr")
    _, ours = drawn_pair(Stage(3).double().eval())

    def forward(self, x, mask):
        raise NotImplementedError

    monkeypatch.setattr(module.WindowAttention, "forward", forward)
    for size in [(2, 3, 3), (1, 6, 6), (3, 4, 7)]:
        ours(normal(2, 3, *size))
    with pytest.raises(NotImplementedError):
        ours(normal(2, 3, 4, 2, 9))


@pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_windows_are_traced_and_exported_for_any_number_of_them():
    _, ours = drawn_pair(Stage(3))
    attention = ours.stage.blocks[0].attn
    windows, mask, more = normal(4, 18, 16), normal(2, 18, 18), normal(6, 18, 16)
    expected = attention(more, mask)
    traced = torch.jit.trace(attention, (windows, mask), check_trace=False)
    assert_same(traced(more, mask), expected)
    sizes = ({0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}, None)
    program = torch.export.export(attention, (windows, None), dynamic_shapes=sizes).module()
    assert_same(program(more, None), attention(more, None))


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64])
def test_masks_of_windows_are_added_as_numbers(dtype: torch.dtype):
    theirs, ours = drawn_pair(Stage(3))
    x, mask = normal(4, 18, 16), torch.randint(2, (2, 18, 18)).to(dtype)
    theirs, ours = theirs.stage.blocks[0].attn, ours.stage.blocks[0].attn
    assert_same(ours(x, mask), theirs(x, mask))


def test_more_tokens_than_a_window_has_are_refused_as_before():
    for model in drawn_pair(Stage(3)):
        with pytest.raises(RuntimeError, match=r"shape '\[27, 27, -1\]' is invalid"):
            model.stage.blocks[0].attn(normal(2, 27, 16), None)


def test_a_whole_swin_unetr_segments_as_before():
    model = import_apart("monai.networks.nets.swin_unetr").SwinUNETR(
        in_channels=1, out_channels=2, feature_size=12, spatial_dims=2, use_v2=True
    )
    theirs, ours = drawn_pair(model.double().eval())
    # Stages of 48, 24, 12 and 6 tokens a side: the last is smaller than a window.
    image = normal(1, 1, 96, 96)
    assert_same(ours(image), theirs(image))


def test_what_its_flash_attention_gives():
    stage = Stage(2).double().eval()
    for layer in stage.stage.blocks:
        layer.attn.use_flash_attention = True
        layer.attn.attn_drop.p = 0.5  # of which it draws none
    theirs, ours = drawn_pair(stage)
    maps = normal(2, 3, 6, 9)
    with torch.no_grad():
        for model in (theirs.train(), ours.train()):
            assert torch.equal(model(maps).last_hidden_state, model(maps).last_hidden_state)
        assert_same(ours(maps).last_hidden_state, theirs(maps).last_hidden_state)
    assert not torch.equal(ours(maps).last_hidden_state, ours(maps).last_hidden_state)


def attention_of_windows() -> Any:
    attention = import_apart("monai.networks.nets.swin_unetr").WindowAttention
    return attention(16, 2, (3, 4), proj_drop=0.5)


def context_block() -> Any:
    cls = import_apart("monai.networks.blocks.crossattention").CrossAttentionBlock
    return cls(16, 2, **DECOMPOSED)


@pytest.mark.parametrize("build", [attention_of_windows, block, context_block])
def test_dropout_of_outputs_draws_as_before(build: Any):
    theirs, ours = drawn_pair(build())
    x, found = normal(2, 12, 16), []
    for attention in (theirs.train(), ours.train()):
        getattr(attention, "proj_drop", getattr(attention, "drop_output", None)).p = 0.5
        torch.manual_seed(1)
        found.append(attention(x, None))
    assert_same(found[1], found[0])
    assert float((found[1] == 0).double().mean()) > 0.3


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"use_combined_linear": False},
        {"dim_head": 4, "qkv_bias": True},
        {"include_fc": False},
        {"hidden_input_size": 12},
    ],
)
def test_blocks_with_padding(settings: dict[str, Any]):
    theirs, ours = drawn_pair(block(**settings).double().eval())
    x = normal(2, 12, settings.get("hidden_input_size", 16))
    assert_same(ours(x), theirs(x))
    mask = torch.arange(12) < torch.tensor([[12], [7]])
    for kind in (mask, mask.int(), mask.double()):
        assert_same(ours(x, kind), theirs(x, kind))
    assert_same(ours(x, mask[1:]), theirs(x, mask[1:]))
    longer = torch.ones(2, 13)
    with pytest.raises(RuntimeError):
        theirs(x, longer)
    with pytest.raises(ValueError, match=r"attn_mask must be \(b, j\) with j=12, got \(2, 13\)"):
        ours(x, longer)


@pytest.mark.parametrize("settings", [{}, {"dim_head": 4}, {"context_input_size": 8}])
def test_blocks_attend_to_a_context(settings: dict[str, Any]):
    cls = import_apart("monai.networks.blocks.crossattention").CrossAttentionBlock
    theirs, ours = drawn_pair(cls(16, 2, save_attn=True, **DECOMPOSED, **settings))
    x, context = normal(2, 12, 16), normal(2, 12, settings.get("context_input_size", 16))
    assert_same(ours(x, context), theirs(x, context))
    assert_same(ours.att_mat, theirs.att_mat)
    if not settings:
        assert_same(ours(x), theirs(x))
    shorter = context[:, :9]
    for attention in (theirs, ours):
        with pytest.raises((RuntimeError, ValueError), match="12"):
            attention(x, shorter)
    assert_same(ours(x, context[:1]), theirs(x, context[:1]))


def test_blocks_keep_their_weights_where_they_are_told_to():
    theirs, ours = drawn_pair(block(save_attn=True).double().eval())
    x = normal(2, 12, 16)
    assert_same(ours(x), theirs(x))
    assert_same(ours.att_mat, theirs.att_mat)
    assert not ours.att_mat.requires_grad


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"input_size": (2, 3, 2)}, "positions along the third axis"),
        ({"causal": True, "sequence_length": 12}, "causal along the rows"),
        ({"attention_dtype": torch.float32}, "a dtype of their own"),
    ],
)
def test_blocks_that_are_left(settings: dict[str, Any], reason: str):
    assert [reason in why for _, why in adapt(block(**settings)).left] == [True]


def test_other_modules_with_such_positions_are_reported():
    other = type("Other", (type(block()),), {})(16, 2, **DECOMPOSED)
    holder = torch.nn.Module()
    holder.rel_positional_embedding = other.rel_positional_embedding
    report = adapt(torch.nn.ModuleList([block(), other, holder]))
    assert [name for name, _ in report.left] == ["1", "2"]
    assert "looks like relative attention" in report.left[1][1]


def test_blocks_without_positions_are_not_listed():
    blocks = torch.nn.Sequential(block(), block(rel_pos_embedding=None))
    report = adapt(blocks)
    assert [name for name, _ in report.adapted] == ["0"]
    assert not report.left
