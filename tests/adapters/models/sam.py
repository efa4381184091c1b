"""SAM and what has its encoder of images: a layer of windows, then one of the whole image.

Their `initializer_range` is 1e-10, and their tables start at zero: drawn anew, as all.
"""

from functools import partial

from transformers import (
    GotOcr2VisionConfig,
    PPFormulaNetVisionConfig,
    SamHQVisionConfig,
    SamHQVisionModel,
    SamVisionConfig,
    SamVisionModel,
    SLANeXtVisionConfig,
)
from transformers.models.deepseek_ocr2.configuration_deepseek_ocr2 import (
    DeepseekOcr2SamVisionConfig,
)
from transformers.models.deepseek_ocr2.modeling_deepseek_ocr2 import DeepseekOcr2SamVisionEncoder
from transformers.models.got_ocr2.modeling_got_ocr2 import GotOcr2VisionEncoder
from transformers.models.pp_formulanet.modeling_pp_formulanet import PPFormulaNetVisionModel
from transformers.models.slanext.modeling_slanext import SLANeXtVisionEncoder
from transformers.models.unlimited_ocr.configuration_unlimited_ocr import (
    UnlimitedOcrSamVisionConfig,
)
from transformers.models.unlimited_ocr.modeling_unlimited_ocr import UnlimitedOcrSamVisionEncoder

from .case import Case, pixels

SIZES = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "mlp_dim": 24,
    "output_channels": 8, "patch_size": 1, "window_size": 5, "global_attn_indexes": [1],
}  # fmt: skip


def inputs(batch, length, padding):
    return {"pixel_values": pixels(batch, length)}


def case(model, config, *, implementation="eager", attention="layers.1.attn", **arguments):
    def build(size):
        options = arguments.get("options", {})
        return model(
            config(**SIZES, **options, image_size=size, attn_implementation=implementation)
        )

    any_size = arguments.get("any_size", False)
    return Case(
        f"{config.__name__} {implementation}",
        partial(build, 13),
        inputs,
        positions=("rel_pos_h", "rel_pos_w"),
        adapted=2,
        attention=attention,
        lengths=(77, 6) if any_size else (169,),
        paddings=("none",),
        long=1681,
        build_long=None if any_size else partial(build, 41),
        first=arguments.get("first", False),
        # The original of SDPA gives None for each layer.
        attentions="attentions" if implementation == "eager" else None,
        linears=("qkv", "attn.proj"),
        dropout=set_dropout if any_size and implementation == "eager" else None,
    )


def set_dropout(module, p):
    module.dropout = p


SAM = "vision_encoder.layers.1.attn"
CONVOLUTIONS = {
    "post_conv_in_channels": 8, "post_conv_mid_channels": 8, "post_conv_out_channels": 8,
    "decoder_hidden_size": 8,
}  # fmt: skip
DOWN = {"downsample_channels": [8, 8]}

CASES = [
    case(SamVisionModel, SamVisionConfig, attention=SAM, first=True),
    case(SamVisionModel, SamVisionConfig, attention=SAM, implementation="sdpa", first=True),
    case(SamHQVisionModel, SamHQVisionConfig, attention=SAM),
    case(SamHQVisionModel, SamHQVisionConfig, attention=SAM, implementation="sdpa"),
    case(GotOcr2VisionEncoder, GotOcr2VisionConfig),
    case(PPFormulaNetVisionModel, PPFormulaNetVisionConfig, options=CONVOLUTIONS),
    case(SLANeXtVisionEncoder, SLANeXtVisionConfig),
    # These take images of any size, not square ones too: here the tables are resized.
    case(
        DeepseekOcr2SamVisionEncoder, DeepseekOcr2SamVisionConfig, options=DOWN, any_size=True,
        first=True,
    ),
    case(
        DeepseekOcr2SamVisionEncoder, DeepseekOcr2SamVisionConfig, options=DOWN, any_size=True,
        implementation="sdpa",
    ),
    case(
        UnlimitedOcrSamVisionEncoder, UnlimitedOcrSamVisionConfig, options=DOWN, any_size=True
    ),
    case(
        UnlimitedOcrSamVisionEncoder, UnlimitedOcrSamVisionConfig, options=DOWN, any_size=True,
        implementation="sdpa",
    ),
]  # fmt: skip
