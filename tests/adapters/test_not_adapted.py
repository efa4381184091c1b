"""Which classes of transformers stay as they are: each exists, and the report says why."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import transformers
from torch import nn
from transformers import (
    BeitConfig,
    BeitModel,
    BrosConfig,
    BrosModel,
    CpmAntConfig,
    CpmAntModel,
    Data2VecVisionConfig,
    Data2VecVisionModel,
    FunnelBaseModel,
    FunnelConfig,
    LayoutLMv3Config,
    LayoutLMv3Model,
    LevitConfig,
    LevitModel,
    Phi4MultimodalAudioConfig,
    Phi4MultimodalAudioModel,
    ProphetNetConfig,
    ProphetNetModel,
)

from relpos.adapters import adapt
from relpos.adapters.not_adapted import NOT_ADAPTED, TELLTALES, looks_relative, why_not_adapted
from relpos.adapters.registry import families
from tests.apart import import_apart

pytestmark = pytest.mark.no_typecheck

SMALL = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16,
}  # fmt: skip
IMAGE = SMALL | {"image_size": 32}


def named() -> list[tuple[str, str]]:
    return [(module, name) for module, classes in NOT_ADAPTED.items() for name in classes]


@pytest.mark.parametrize(("module", "name"), named())
def test_classes_that_are_left_exist(module: str, name: str):
    assert issubclass(getattr(import_apart(module), name), nn.Module)


def test_no_class_is_both_adapted_and_left():
    adapted = {(row.module, name) for row in families().values() for name in row.classes}
    assert not adapted & set(named())


def test_every_model_of_transformers_that_looks_relative_is_listed():
    listed = {*NOT_ADAPTED, *(family.module for family in families().values())}
    models = {module.split(".")[-2] for module in listed}
    made = re.compile(rf"self\.({'|'.join(TELLTALES)}) = (?!None)")
    found = {
        path.parent.name
        for path in Path(transformers.models.__file__).parent.glob("*/modeling_*.py")
        if made.search(path.read_text())
    }
    assert len(found) > 40
    assert found <= models


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_every_model_of_images_that_looks_relative_is_listed(library: str):
    listed = {*NOT_ADAPTED, *(family.module for family in families().values())}
    made = re.compile(
        r"self\.(relative_position_bias_table|rel_pos_h|attention_biases|height_rel|rel_pos) = "
        "(nn|torch|rel_pos_cls|RelPos)"
    )
    root = Path(import_apart(library).__file__).parent
    found = {
        ".".join(path.relative_to(root.parent).with_suffix("").parts)
        for path in root.rglob("*.py")
        if made.search(path.read_text())
    }
    assert len(found) > 3
    # Its modules are parts of attentions.
    assert found - {"timm.layers.pos_embed_rel"} <= listed


def pooled_first() -> nn.Module:
    models = import_apart("timm.models.mvitv2")
    config = models.MultiScaleVitCfg(depths=(1,), embed_dim=16, stride_q=((1, 1),), pool_first=True)
    return models.MultiScaleVit(config, img_size=(32, 32))


MODELS: dict[str, Any] = {
    "layoutlmv3": lambda: LayoutLMv3Model(
        LayoutLMv3Config(
            **SMALL, vocab_size=20, coordinate_size=2, shape_size=4, visual_embed=False
        )
    ),
    "timm's levit": lambda: import_apart("timm.models.levit").levit_128s(),
    "timm's mvitv2, pooled first": pooled_first,
    "levit": lambda: LevitModel(LevitConfig(hidden_sizes=[16, 16, 16], depths=[1, 1, 1])),
    "bros": lambda: BrosModel(BrosConfig(**SMALL, vocab_size=20)),
    "cpmant": lambda: CpmAntModel(
        CpmAntConfig(
            vocab_size=20, hidden_size=16, num_attention_heads=2, dim_head=8, dim_ff=16,
            num_hidden_layers=1,
        )
    ),
    "funnel": lambda: FunnelBaseModel(
        FunnelConfig(vocab_size=20, block_sizes=[1], d_model=16, n_head=2, d_head=8, d_inner=16)
    ),
    "prophetnet": lambda: ProphetNetModel(
        ProphetNetConfig(
            vocab_size=20, hidden_size=16, encoder_ffn_dim=16, num_encoder_layers=1,
            num_encoder_attention_heads=2, decoder_ffn_dim=16, num_decoder_layers=1,
            num_decoder_attention_heads=2,
        )
    ),
    "phi4_audio": lambda: Phi4MultimodalAudioModel(
        Phi4MultimodalAudioConfig(
            hidden_size=16, intermediate_size=16, num_blocks=1, num_attention_heads=2,
            nemo_conv_channels=16, ext_pw_out_channel=16, depthwise_separable_out_channel=16,
        )
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_the_report_gives_the_reason_once_for_each_module(name: str):
    model = MODELS[name]()
    classes = [type(module) for module in model.modules()]
    report = adapt(model)
    assert not report.adapted
    assert report.left
    for left, reason in report.left:
        assert reason == why_not_adapted(model.get_submodule(left))
        holder = left.rpartition(".")[0]
        assert holder not in [other for other, _ in report.left if other != left]
    assert [type(module) for module in model.modules()] == classes


@pytest.mark.parametrize(
    "model",
    [
        lambda: BeitModel(BeitConfig(**IMAGE)),
        lambda: Data2VecVisionModel(Data2VecVisionConfig(**IMAGE)),
        lambda: LayoutLMv3Model(
            LayoutLMv3Config(
                **SMALL, vocab_size=20, coordinate_size=2, shape_size=4, visual_embed=False,
                has_relative_attention_bias=False, has_spatial_attention_bias=False,
            )
        ),
    ],
    ids=["beit", "data2vec", "layoutlmv3"],
)  # fmt: skip
def test_a_configuration_without_relative_has_none_to_leave(model: Any):
    with pytest.raises(ValueError, match="with none"):
        adapt(model())


def test_a_table_that_is_none_does_not_look_relative():
    module = nn.Module()
    module.register_parameter("relative_position_bias_table", None)
    assert not looks_relative(module)
    module.relative_position_bias_table = nn.Parameter(nn.Linear(2, 2).weight.data)
    assert looks_relative(module)
