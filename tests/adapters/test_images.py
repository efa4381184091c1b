"""What only models of images have: maps that are not square, other sizes, whole pipelines."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    GotOcr2Config,
    GotOcr2ForConditionalGeneration,
    SamConfig,
    SamModel,
    SamVisionConfig,
    SegGptConfig,
    VitDetConfig,
    VitMatteConfig,
    VitMatteForImageMatting,
)
from transformers.models.sam.modeling_sam import SamVisionAttention, SamVisionSdpaAttention
from transformers.models.seggpt.modeling_seggpt import SegGptAttention
from transformers.models.vitdet.modeling_vitdet import VitDetAttention

from relpos.adapters import Adapted, adapt

from .models.sam import SIZES as SAM
from .models.seggpt import SIZES as SEGGPT
from .models.seggpt import build, inputs
from .models.vitdet import SIZES as VITDET
from .results import assert_equal, drawn_pair

pytestmark = [
    pytest.mark.no_typecheck,
    pytest.mark.usefixtures("float64_stays_float64"),
]

MODULES = {
    "sam eager": lambda: SamVisionAttention(SamVisionConfig(**SAM, image_size=9), 0),
    "sam sdpa": lambda: SamVisionSdpaAttention(SamVisionConfig(**SAM, image_size=9), 0),
    "vitdet": lambda: VitDetAttention(VitDetConfig(**VITDET), (9, 9)),
    "seggpt": lambda: SegGptAttention(SegGptConfig(**SEGGPT, image_size=(9, 9))),
}
every = pytest.mark.parametrize("name", MODULES)


@every
@pytest.mark.parametrize("shape", [(9, 9), (5, 8), (12, 3), (1, 1), (1, 20), (33, 2)], ids=str)
def test_maps_of_any_shape_give_the_outputs_and_gradients_of_the_original(name: str, shape: Any):
    x = torch.randn(3, *shape, 16, dtype=torch.float64)

    def results(module: Any) -> dict[str, Any]:
        leaf = x.clone().requires_grad_()
        output = module(leaf)[0]
        (output * torch.linspace(-1, 1, output.numel()).view_as(output)).sum().backward()
        found = {name: p.grad for name, p in module.named_parameters()}
        return {"output": output.detach(), "x": leaf.grad} | found

    theirs, ours = drawn_pair(MODULES[name]())
    assert_equal(results(ours), results(theirs), 1e-12)


@every
def test_weights_are_those_of_the_original_when_asked_for(name: str):
    theirs, ours = drawn_pair(MODULES[name]())
    x = torch.randn(2, 5, 8, 16, dtype=torch.float64)
    got, expected = (module(x, output_attentions=True)[1] for module in (ours, theirs))
    if name == "sam sdpa":  # its original gives None
        assert expected is None
        expected = SamVisionAttention.forward(theirs, x)[1]
    torch.testing.assert_close(got, expected)
    assert len(ours(x)) == len(theirs(x))
    assert all(part is None for part in ours(x)[1:])


def test_sam_drops_weights_in_its_eager_class_alone():
    x = torch.randn(1, 5, 8, 16, dtype=torch.float64)
    for name, drops in (("sam eager", True), ("sam sdpa", False)):
        theirs, ours = drawn_pair(MODULES[name]())
        for module in (ours, theirs):
            module.dropout = 0.5
            module.train()
            assert torch.equal(module(x)[0], module(x)[0]) is not drops


def test_without_tables_there_is_nothing_to_adapt():
    module = SamVisionAttention(SamVisionConfig(**SAM, image_size=9, use_rel_pos=False), 0)
    with pytest.raises(ValueError, match="got a SamVisionAttention with none"):
        adapt(module)


def test_sam_segments_an_image_as_before():
    vision = SAM | {"image_size": 9, "output_channels": 16}
    decoder = {
        "hidden_size": 16, "mlp_dim": 16, "num_attention_heads": 2, "iou_head_hidden_dim": 16
    }  # fmt: skip
    prompts = {"hidden_size": 16, "image_size": 9, "patch_size": 1}
    theirs, ours = drawn_pair(
        SamModel(
            SamConfig(
                vision_config=vision | {"num_pos_feats": 8}, mask_decoder_config=decoder,
                prompt_encoder_config=prompts,
            )
        )
    )  # fmt: skip
    given: Any = {
        "pixel_values": torch.randn(2, 3, 9, 9, dtype=torch.float64),
        "input_points": torch.rand(2, 1, 2, 2, dtype=torch.float64) * 9,
    }
    got, expected = ours(**given), theirs(**given)
    torch.testing.assert_close(got.pred_masks, expected.pred_masks, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(got.iou_scores, expected.iou_scores, rtol=1e-9, atol=1e-9)
    asked = ours(**given, output_attentions=True)
    # Four windows of 5 x 5 tokens, and the whole image; two heads.
    assert [tuple(x.shape) for x in asked.vision_attentions] == [(16, 25, 25), (4, 81, 81)]


def test_vitmatte_runs_on_an_adapted_backbone():
    backbone = VitDetConfig(
        **VITDET
        | {"patch_size": 16, "image_size": 64, "pretrain_image_size": 64, "num_channels": 4}
    )
    theirs, ours = drawn_pair(
        VitMatteForImageMatting(
            VitMatteConfig(
                backbone_config=backbone, hidden_size=16, convstream_hidden_sizes=[4, 4, 4],
                fusion_hidden_sizes=[4, 4, 4, 4],
            )
        )
    )  # fmt: skip
    pixels = torch.randn(2, 4, 96, 64, dtype=torch.float64)
    torch.testing.assert_close(ours(pixels).alphas, theirs(pixels).alphas, rtol=1e-9, atol=1e-9)
    assert sum(isinstance(module, Adapted) for module in ours.modules()) == 2


def test_got_ocr2_reads_the_same_tokens():
    text = {
        "vocab_size": 40, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 64,
        "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    }  # fmt: skip
    config = GotOcr2Config(
        vision_config=SAM | {"image_size": 16}, text_config={"model_type": "qwen2"} | text,
        image_token_index=39,
    )  # fmt: skip
    theirs, ours = drawn_pair(GotOcr2ForConditionalGeneration(config))
    # Two convolutions make 4 x 4 tokens for the text of 16 x 16 in the encoder.
    ids = torch.tensor([[39] * 16 + [5, 6]] * 2)
    given = {"pixel_values": torch.randn(2, 3, 16, 16, dtype=torch.float64), "input_ids": ids}
    logits = theirs(**given).logits
    assert not torch.allclose(*logits, rtol=0.1, atol=0.1)  # the images matter
    torch.testing.assert_close(ours(**given).logits, logits, rtol=1e-9, atol=1e-9)
    for way in ({}, {"num_beams": 2}, {"cache_implementation": "static"}):
        settings = {"max_new_tokens": 8, "do_sample": False, **way}
        expected = theirs.generate(**given, **settings)
        assert torch.equal(ours.generate(**given, **settings), expected)


@pytest.mark.parametrize("ensemble", [False, True])
def test_seggpt_with_two_examples_is_the_original(ensemble: bool):
    theirs, ours = drawn_pair(build(12, 7))
    given = inputs(2, 84, "none")
    given = {name: x.double() if x.is_floating_point() else x for name, x in given.items()}
    got, expected = (model(**given, feature_ensemble=ensemble) for model in (ours, theirs))
    torch.testing.assert_close(got.pred_masks, expected.pred_masks, rtol=1e-9, atol=1e-9)
