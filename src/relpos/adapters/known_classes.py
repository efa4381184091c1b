"""The adapted classes: by the name of a family its module, and of each class the adaptation."""

from __future__ import annotations

__all__ = ["KNOWN_CLASSES"]


def _of(module: str, **classes: str) -> tuple[str, dict[str, str]]:
    return module, classes


def _transformers(model: str, **classes: str) -> tuple[str, dict[str, str]]:
    return f"transformers.models.{model}.modeling_{model}", classes


def _timm(file: str, **classes: str) -> tuple[str, dict[str, str]]:
    return f"timm.{file}", {name: f"timm.{path}" for name, path in classes.items()}


#: By family: the module that defines the classes, and each class's adaptation as `file:class`.
KNOWN_CLASSES: dict[str, tuple[str, dict[str, str]]] = {
    "beit": _transformers(
        "beit",
        BeitAttention="beit:Attention",
        BeitLayer="beit:Layer",
        BeitRelativePositionBias="image_bias:RelativePositionBias",
    ),
    "bloom": _transformers(
        "bloom",
        BloomAttention="bloom:Attention",
        BloomModel="bloom:Model",
    ),
    "borzoi": _of(
        "borzoi_pytorch.pytorch_borzoi_transformer",
        Attention="enformer:BorzoiAttention",
    ),
    "clap": _transformers("clap", ClapAudioSelfAttention="window_attention:WindowAttention"),
    "conformer": _of("conformer.conformer", Attention="conformer:Attention"),
    "coqui": _of(
        "TTS.tts.layers.glow_tts.transformer",
        RelativePositionMultiHeadAttention="glow_tts:CoquiAttention",
        RelativePositionTransformer="glow_tts:CoquiEncoder",
    ),
    "coqui_wavlm": _of(
        "TTS.vc.layers.freevc.wavlm.modules",
        MultiheadAttention="s3prl:MultiheadAttention",
    ),
    "data2vec": _of(
        "transformers.models.data2vec.modeling_data2vec_vision",
        Data2VecVisionSelfAttention="data2vec_vision:SelfAttention",
        Data2VecVisionSdpaSelfAttention="data2vec_vision:SdpaSelfAttention",
        Data2VecVisionEncoder="data2vec_vision:Encoder",
        Data2VecVisionRelativePositionBias="image_bias:RelativePositionBias",
    ),
    "deberta": _transformers(
        "deberta",
        DisentangledSelfAttention="deberta:SelfAttention",
        DebertaEncoder="disentangled:Encoder",
    ),
    "deberta_v2": _transformers(
        "deberta_v2",
        DisentangledSelfAttention="deberta_v2:SelfAttention",
        DebertaV2Encoder="disentangled:Encoder",
    ),
    "deepseek_ocr2": _transformers(
        "deepseek_ocr2",
        DeepseekOcr2SamVisionAttention="sam:Attention",
        DeepseekOcr2SamVisionSdpaAttention="sam:SdpaAttention",
    ),
    "donut": _of(
        "transformers.models.donut.modeling_donut_swin",
        DonutSwinSelfAttention="window_attention:WindowAttention",
    ),
    "enformer": _of("enformer_pytorch.modeling_enformer", Attention="enformer:Attention"),
    "espnet": _of(
        "espnet.nets.pytorch_backend.transformer.attention",
        LegacyRelPositionMultiHeadedAttention="espnet:LegacyRelPositionAttention",
        RelPositionMultiHeadedAttention="espnet:RelPositionAttention",
    ),
    "fairseq2_relative": _of(
        "fairseq2.models.transformer.sdpa.relative",
        RelativePositionSDPA="fairseq2:RelativePositionAttention",
    ),
    "fairseq2_shaw": _of(
        "fairseq2.models.transformer.sdpa.shaw",
        ShawRelativePositionSDPA="fairseq2:ShawAttention",
    ),
    "falcon": _transformers(
        "falcon",
        FalconAttention="falcon:Attention",
        FalconModel="falcon:Model",
    ),
    "fastspeech2_conformer": _transformers(
        "fastspeech2_conformer",
        FastSpeech2ConformerAttention="fastspeech2_conformer:Attention",
    ),
    "funasr": _of(
        "funasr.models.transformer.attention",
        LegacyRelPositionMultiHeadedAttention="espnet:FunASRLegacyRelPositionAttention",
        RelPositionMultiHeadedAttention="espnet:FunASRRelPositionAttention",
    ),
    "gemma3n": _transformers(
        "gemma3n",
        Gemma3nAudioAttention="gemma3n:AudioAttention",
        Gemma3nAudioRelativePositionEmbedding="gemma3n:AudioRelativePositionEmbedding",
    ),
    "gemma4": _transformers(
        "gemma4",
        Gemma4AudioAttention="gemma4:AudioAttention",
        Gemma4AudioModel="gemma4:AudioModel",
    ),
    "got_ocr2": _transformers("got_ocr2", GotOcr2VisionAttention="sam:Attention"),
    "granite_speech": _transformers(
        "granite_speech",
        GraniteSpeechConformerAttention="granite_speech:ConformerAttention",
    ),
    "granite_speech5": _transformers(
        "granite_speech5",
        GraniteSpeech5EncoderAttention="granite_speech:EncoderAttention",
    ),
    "granite_speech_plus": _transformers(
        "granite_speech_plus",
        GraniteSpeechPlusConformerAttention="granite_speech:ConformerAttention",
    ),
    "inkling": _transformers(
        "inkling",
        InklingAttention="inkling:Attention",
        InklingRelativeLogits="inkling:RelativeLogits",
    ),
    "inkling2": _transformers(
        "inkling2",
        Inkling2SlidingAttention="inkling2:SlidingAttention",
        Inkling2FullAttention="inkling2:FullAttention",
        Inkling2RelativePositionBias="inkling2:RelativePositionBias",
        Inkling2TextModel="inkling2:TextModel",
    ),
    "inkling2_loop": _transformers(
        "inkling2_loop",
        Inkling2LoopSlidingAttention="inkling2:SlidingAttention",
        Inkling2LoopFullAttention="inkling2:FullAttention",
        Inkling2LoopRelativePositionBias="inkling2:RelativePositionBias",
        Inkling2LoopTextModel="inkling2:TextModel",
    ),
    "kornia_sam": _of(
        "kornia.models.sam.architecture.image_encoder",
        Attention="segment_anything:Attention",
    ),
    "longt5": _transformers(
        "longt5",
        LongT5Attention="t5:Attention",
        LongT5LocalAttention="longt5:LocalAttention",
        LongT5TransientGlobalAttention="transient_global:TransientGlobalAttention",
    ),
    "maskformer": _of(
        "transformers.models.maskformer.modeling_maskformer_swin",
        MaskFormerSwinSelfAttention="window_attention:WindowAttention",
    ),
    "mmaction_mvit": _of(
        "mmaction.models.backbones.mvit",
        MultiScaleAttention="openmmlab:VideoAttention",
    ),
    "mmaction_swin": _of(
        "mmaction.models.backbones.swin",
        WindowAttention3D="monai:WindowAttention",
    ),
    "mmdet_swin": _of("mmdet.models.backbones.swin", WindowMSA="timm.swin:WindowAttention"),
    "mmpretrain": _of(
        "mmpretrain.models.utils.attention",
        BEiTAttention="openmmlab:BeitAttention",
        WindowMSA="timm.swin:WindowAttention",
        WindowMSAV2="timm.swin_v2:WindowAttention",
    ),
    "mmpretrain_mvit": _of(
        "mmpretrain.models.backbones.mvit",
        MultiScaleAttention="openmmlab:ImageAttention",
    ),
    "mmpretrain_sam": _of(
        "mmpretrain.models.backbones.vit_sam",
        Attention="segment_anything:Attention",
    ),
    "mmseg_beit": _of(
        "mmseg.models.backbones.beit",
        BEiTAttention="openmmlab:BeitSegmentationAttention",
    ),
    "mmseg_swin": _of("mmseg.models.backbones.swin", WindowMSA="timm.swin:WindowAttention"),
    "monai_attention": _of("monai.networks.blocks.selfattention", SABlock="monai:SABlock"),
    "monai_cross_attention": _of(
        "monai.networks.blocks.crossattention",
        CrossAttentionBlock="monai:CrossAttentionBlock",
    ),
    "monai_swin": _of("monai.networks.nets.swin_unetr", WindowAttention="monai:WindowAttention"),
    "mpnet": _transformers(
        "mpnet",
        MPNetSelfAttention="mpnet:SelfAttention",
        MPNetEncoder="mpnet:Encoder",
        MPNetModel="mpnet:Model",
    ),
    "mpt": _transformers(
        "mpt",
        MptAttention="mpt:Attention",
        MptBlock="mpt:Block",
        MptModel="mpt:Model",
    ),
    "mt5": _transformers("mt5", MT5Attention="t5:Attention"),
    "nemo": _of(
        "nemo.collections.asr.parts.submodules.multi_head_attention",
        RelPositionMultiHeadAttention="nemo:Attention",
    ),
    "nemo_encoder": _of(
        "nemo.collections.asr.modules.conformer_encoder",
        ConformerEncoder="nemo:Encoder",
        ConformerEncoderAdapter="nemo:Encoder",
    ),
    "nemotron_asr_streaming": _transformers(
        "nemotron_asr_streaming",
        NemotronAsrStreamingEncoderAttention="nemotron_asr_streaming:EncoderAttention",
        NemotronAsrStreamingEncoderRelPositionalEncoding="nemotron_asr_streaming:PositionalEncoding",
        NemotronAsrStreamingEncoder="nemotron_asr_streaming:Encoder",
        NemotronAsrStreamingEncoderFeedForward="pieces:FeedForward",
        NemotronAsrStreamingEncoderSubsamplingConv2D="nemotron_asr_streaming:Subsampling",
    ),
    "parakeet": _transformers(
        "parakeet",
        ParakeetEncoderAttention="parakeet:EncoderAttention",
        ParakeetEncoderRelPositionalEncoding="parakeet:PositionalEncoding",
        ParakeetEncoder="parakeet:Encoder",
        ParakeetEncoderFeedForward="pieces:FeedForward",
        ParakeetEncoderSubsamplingConv2D="parakeet:Subsampling",
    ),
    "piper": _of(
        "piper.train.vits.attentions",
        MultiHeadAttention="glow_tts:Attention",
        Encoder="glow_tts:Encoder",
    ),
    "pix2struct": _transformers("pix2struct", Pix2StructTextAttention="t5:TextAttention"),
    "pop2piano": _transformers("pop2piano", Pop2PianoAttention="t5:Attention"),
    "pp_formulanet": _transformers("pp_formulanet", PPFormulaNetVisionAttention="sam:Attention"),
    "s3prl": _of("s3prl.upstream.wavlm.modules", MultiheadAttention="s3prl:MultiheadAttention"),
    "sam": _transformers(
        "sam",
        SamVisionAttention="sam:Attention",
        SamVisionSdpaAttention="sam:SdpaAttention",
    ),
    "sam_hq": _transformers(
        "sam_hq",
        SamHQVisionAttention="sam:Attention",
        SamHQVisionSdpaAttention="sam:SdpaAttention",
    ),
    "seamless_m4t": _transformers(
        "seamless_m4t",
        SeamlessM4TConformerSelfAttention="wav2vec2_bert:ConformerSelfAttention",
    ),
    "seamless_m4t_v2": _transformers(
        "seamless_m4t_v2",
        SeamlessM4Tv2ConformerSelfAttention="seamless_m4t_v2:SelfAttention",
        SeamlessM4Tv2ConformerEncoder="seamless_m4t_v2:Encoder",
    ),
    "seggpt": _transformers("seggpt", SegGptAttention="seggpt:Attention"),
    "segment_anything": _of(
        "segment_anything.modeling.image_encoder",
        Attention="segment_anything:Attention",
    ),
    "sew_d": _transformers(
        "sew_d",
        DisentangledSelfAttention="deberta_v2:SEWDSelfAttention",
        SEWDTransformerEncoder="disentangled:Encoder",
    ),
    "slanext": _transformers("slanext", SLANeXtVisionAttention="sam:Attention"),
    "spandrel_drct": _of(
        "spandrel.architectures.DRCT.__arch.drct_arch",
        WindowAttention="timm.swin:WindowAttention",
    ),
    "spandrel_hat": _of(
        "spandrel.architectures.HAT.__arch.HAT",
        WindowAttention="hat:WindowAttention",
    ),
    "spandrel_swin2sr": _of(
        "spandrel.architectures.Swin2SR.__arch.Swin2SR",
        WindowAttention="timm.swin_v2:WindowAttention",
    ),
    "spandrel_swinir": _of(
        "spandrel.architectures.SwinIR.__arch.SwinIR",
        WindowAttention="timm.swin:WindowAttention",
    ),
    "speechbrain": _of("speechbrain.nnet.attention", RelPosMHAXL="speechbrain:Attention"),
    "speecht5": _transformers(
        "speecht5",
        SpeechT5Attention="speecht5:Attention",
        SpeechT5RelativePositionalEncoding="speecht5:RelativePositionalEncoding",
        SpeechT5Encoder="speecht5:Encoder",
    ),
    "swin": _transformers(
        "swin",
        SwinAttention="swin:Attention",
        SwinRelativePositionBias="swin:RelativePositionBias",
    ),
    "swin2sr": _transformers(
        "swin2sr",
        Swin2SRSelfAttention="window_attention:CosineWindowAttention",
    ),
    "swinv2": _transformers("swinv2", Swinv2SelfAttention="window_attention:CosineWindowAttention"),
    "switch_transformers": _transformers(
        "switch_transformers",
        SwitchTransformersAttention="t5:Attention",
    ),
    "t5": _transformers("t5", T5Attention="t5:Attention"),
    "timm_beit": _timm("models.beit", Attention="beit:Attention"),
    "timm_bottleneck": _timm("layers.bottleneck_attn", BottleneckAttn="bottleneck:Attention"),
    "timm_gcvit": _timm("models.gcvit", WindowAttentionGlobal="gcvit:WindowAttention"),
    "timm_maxxvit": _timm(
        "models.maxxvit",
        Attention2d="maxxvit:Attention2d",
        AttentionCl="maxxvit:AttentionCl",
    ),
    "timm_mvitv2": _timm("models.mvitv2", MultiScaleAttention="mvitv2:Attention"),
    "timm_relpos_vit": _timm(
        "models.vision_transformer_relpos",
        RelPosAttention="relpos_vit:Attention",
        VisionTransformerRelPos="relpos_vit:Model",
    ),
    "timm_sam": _timm("models.vision_transformer_sam", Attention="sam:Attention"),
    "timm_swin": _timm("models.swin_transformer", WindowAttention="swin:WindowAttention"),
    "timm_swin_v2": _timm("models.swin_transformer_v2", WindowAttention="swin_v2:WindowAttention"),
    "timm_swin_v2_cr": _timm(
        "models.swin_transformer_v2_cr",
        WindowMultiHeadAttention="swin_v2:CrWindowAttention",
    ),
    "torchaudio_wavlm": _of(
        "torchaudio.models.wav2vec2.wavlm_attention",
        WavLMSelfAttention="torchaudio:SelfAttention",
    ),
    "torchvision_maxvit": _of(
        "torchvision.models.maxvit",
        RelativePositionalMultiHeadAttention="torchvision.maxvit:Attention",
    ),
    "torchvision_mvit": _of(
        "torchvision.models.video.mvit",
        MultiscaleAttention="torchvision.mvit:Attention",
    ),
    "torchvision_swin": _of(
        "torchvision.models.swin_transformer",
        ShiftedWindowAttention="torchvision.swin:ShiftedWindowAttention",
        ShiftedWindowAttentionV2="torchvision.swin:ShiftedWindowAttentionV2",
    ),
    "torchvision_video_swin": _of(
        "torchvision.models.video.swin_transformer",
        ShiftedWindowAttention3d="torchvision.swin:ShiftedWindowAttention3d",
    ),
    "udop": _transformers("udop", UdopAttention="udop:Attention"),
    "ultralytics_sam": _of(
        "ultralytics.models.sam.modules.blocks",
        REAttention="segment_anything:Attention",
    ),
    "umt5": _transformers("umt5", UMT5Attention="umt5:Attention"),
    "unlimited_ocr": _transformers(
        "unlimited_ocr",
        UnlimitedOcrSamVisionAttention="sam:Attention",
        UnlimitedOcrSamVisionSdpaAttention="sam:SdpaAttention",
    ),
    "vitdet": _transformers("vitdet", VitDetAttention="vitdet:Attention"),
    "vits": _transformers(
        "vits",
        VitsAttention="vits:Attention",
        VitsEncoder="vits:Encoder",
    ),
    "wav2vec2_bert": _transformers(
        "wav2vec2_bert",
        Wav2Vec2BertSelfAttention="wav2vec2_bert:SelfAttention",
    ),
    "wav2vec2_conformer": _transformers(
        "wav2vec2_conformer",
        Wav2Vec2ConformerSelfAttention="wav2vec2_bert:ConformerSelfAttention",
    ),
    "wavlm": _transformers("wavlm", WavLMAttention="wavlm:Attention"),
    "x_transformers": (
        "x_transformers.x_transformers",
        dict.fromkeys(
            (
                "AttentionLayers",
                "CrossAttender",
                "Decoder",
                "Encoder",
                "PrefixDecoder",
                "TransformerBlock",
            ),
            "x_transformers.layers:Layers",
        ),
    ),
    "xlnet": _transformers(
        "xlnet",
        XLNetRelativeAttention="xlnet:RelativeAttention",
        XLNetModel="xlnet:Model",
    ),
}
