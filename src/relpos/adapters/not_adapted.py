"""Classes of relative attention that stay as they are, and why: what the report says of them."""

from __future__ import annotations

from torch import nn

__all__ = ["BOXES", "NOT_ADAPTED", "TELLTALES", "looks_relative", "why_not_adapted"]

#: Of layouts of pages.
BOXES = "offsets are between boxes on a page, given with the data: no table over positions"
_PREDICTED = "biases of pixels beside boxes that the model predicts: no table over positions"
_PAIRS = "biases are made from features of all pairs of residues, which the model keeps anyway"
_KEPT = "few tokens, and biases that are kept between calls"


def _in(model: str, reason: str, *classes: str) -> dict[str, dict[str, str]]:
    return _of(f"transformers.models.{model}", reason, *classes)


def _of(module: str, reason: str, *classes: str) -> dict[str, dict[str, str]]:
    return {module: dict.fromkeys(classes, reason)}


#: By module and name of the class, the reason in one line.
NOT_ADAPTED: dict[str, dict[str, str]] = {
    **_in("bros.modeling_bros", BOXES, "BrosSelfAttention"),
    **_in(
        "cpmant.modeling_cpmant",
        "pairs of segments, given with the data, choose between two kinds of bias",
        "CpmAntSegmentPositionEmbedding",
    ),
    **_in(
        "dinat.modeling_dinat",
        "it gives natten's functions, which natten has dropped, heads in place of columns, and "
        "fails (relpos.adapters.neighborhood_attention computes such attention)",
        "NeighborhoodAttention",
    ),
    **_in("esm.modeling_esmfold", _PAIRS, "EsmFoldSelfAttention"),
    **_in("esmfold2.modeling_esmfold2", _PAIRS, "EsmFold2RelativePositionEncoding"),
    **_of(
        "funasr.models.transformer.attention",
        "its chunks have keys of frames before them, with positions of their own",
        "RelPositionMultiHeadedAttentionChunk",
    ),
    **_of("kornia.models.tiny_vit", _KEPT, "Attention"),
    **_in(
        "funnel.modeling_funnel", "pooled queries, and a first token without positions",
        "FunnelRelMultiheadAttention",
    ),
    **_in("layoutlmv2.modeling_layoutlmv2", BOXES, "LayoutLMv2Encoder"),
    **_in("layoutlmv3.modeling_layoutlmv3", BOXES, "LayoutLMv3Encoder"),
    **_in(
        "levit.modeling_levit",
        "at most 196 tokens at 224 x 224 pixels, and biases that are kept between calls",
        "LevitAttention", "LevitAttentionSubsample",
    ),
    **_of("mmpretrain.models.utils.attention", _KEPT, "LeAttention"),
    **_of(
        "nemo.collections.asr.parts.submodules.multi_head_attention",
        "neighbours alone, in chunks that overlap, without tensors of all pairs",
        "RelPositionMultiHeadAttentionLongformer",
    ),
    **_of(
        "nemo.collections.asr.modules.transformer_encoder",
        "its encoder hands it blocks of a mask for torch's FlexAttention", "MultiHeadAttention",
    ),
    **_in(
        "phi4_multimodal.modeling_phi4_multimodal",
        "adds the mask of padding to the bias as a number, and takes 500 frames at most",
        "Phi4MultimodalAudioRelativeAttentionBias",
    ),
    **_in(
        "pp_doclayout_v2.modeling_pp_doclayout_v2", BOXES, "PPDocLayoutV2ReadingOrderEncoder",
        "PPDocLayoutV2PositionRelationEmbedding",
    ),
    **_in(
        "prophetnet.modeling_prophetnet",
        "its n-gram streams, most of the work, attend to keys of two streams at once",
        "ProphetNetNgramSelfAttention",
    ),
    **_in("sam3.modeling_sam3", _PREDICTED, "Sam3DetrDecoder"),
    **_in("sam3_lite_text.modeling_sam3_lite_text", _PREDICTED, "Sam3LiteTextDetrDecoder"),
    **_of(
        "spandrel.architectures.HAT.__arch.HAT", "its keys reach beyond the window of its queries",
        "OCAB",
    ),
    **_of(
        "speechbrain.lobes.models.beats",
        "its gate is made of projected queries, which also have a scale of their own",
        "MultiheadAttention",
    ),
    **_of(
        "timm.layers.halo_attn", "keys of a block and of a margin around it", "HaloAttn"
    ),
    **_of(
        "timm.layers.lambda_layer", "its positions make a linear map, without weights of pairs",
        "LambdaLayer",
    ),
    **_of(
        "timm.models.beit", "one bias for all layers, as no model has that timm makes by name",
        "RelativePositionBias",
    ),
    **_of(
        "timm.models.convit", "mixes the weights of two softmaxes, of contents and of positions",
        "GPSA",
    ),
    **_of("timm.models.efficientformer", _KEPT, "Attention"),
    **_of(
        "timm.models.efficientformer_v2", "scores and weights are mixed between heads",
        "Attention2d", "Attention2dDownsample",
    ),
    **_of(
        "timm.models.efficientvit_msra", "few tokens, and heads that wait for each other",
        "CascadedGroupAttention",
    ),
    **_of("timm.models.levit", _KEPT, "Attention", "AttentionDownsample"),
    **_of(
        "timm.models.mvitv2",
        "it multiplies queries by keys that are not transposed, and fails",
        "MultiScaleAttentionPoolFirst",
    ),
    **_of("timm.models.tiny_vit", _KEPT, "Attention"),
    **_in(
        "udop.modeling_udop", BOXES, "RelativePositionBias1D", "RelativePositionBiasHorizontal",
        "RelativePositionBiasVertical",
    ),
    "x_transformers.x_transformers": {
        "CoPE": "positions depend on what tokens contain",
        **dict.fromkeys(
            ("DataDependentAlibi", "PerRowDataDependentAlibi"),
            "biases of all pairs come from what tokens contain",
        ),
        "RelativeProjPositionalBias": "its bias of all pairs is made before attention sees it",
    },
}  # fmt: skip

# Of these, some configurations have no positions: only those that hold a table are left.
_IF_TABLES = frozenset({
    "LayoutLMv2Encoder", "LayoutLMv3Encoder", "MultiHeadAttention",
    "MultiScaleAttentionPoolFirst", "PPDocLayoutV2ReadingOrderEncoder",
})  # fmt: skip

#: What modules of relative attention call their tables and projections.
TELLTALES = (
    "relative_attention_bias", "relative_position_bias", "relative_position_bias_table",
    "rel_pos_h", "distance_embedding", "rel_embeddings", "linear_pos", "pos_bias_u",
    "relative_k_proj", "pos_key_proj", "pos_proj", "emb_rel_k", "rel_pos_bias", "rel_pos_x_bias",
    "rel_pos_emb", "rel_positional_embedding", "pe_k", "gru_rel_pos_const", "grep_a",
    "box_rpb_embed_x",
)  # fmt: skip


def why_not_adapted(module: nn.Module) -> str | None:
    """Why a module of a known class is not adapted; None if it is not among those.

    Args:
        module: of any class.
    """
    cls = type(module)
    if cls.__qualname__ in _IF_TABLES and not looks_relative(module):
        return None
    return NOT_ADAPTED.get(cls.__module__, {}).get(cls.__qualname__)


def looks_relative(module: nn.Module) -> bool:
    """Whether a module holds, itself, what relative attention is made of.

    Args:
        module: of any class.
    """
    own = {**module._parameters, **module._modules, **module._buffers}
    return any(own.get(name) is not None for name in TELLTALES)
