"""Any model of transformers, made small: its configuration with few and narrow layers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

__all__ = ["IMAGE", "VOCABULARY", "NotSmallError", "small_model"]

VOCABULARY = 60
IMAGE = 32  # pixels of a side

# Of more numbers a model does not count as small: some of its sizes have names of their own.
_LARGEST = 40_000_000

# By what configurations call them.
_SIZES = (
    (IMAGE, "image_size"),
    (VOCABULARY, "vocab_size vocab_size_per_layer_input unpadded_vocab_size"),
    (32, "hidden_size d_model n_embd embed_dim embedding_size word_embed_proj_dim dim d_embed "
         "decoder_hidden_size max_source_positions"),
    (4, "rotary_dim num_attention_heads n_head n_heads num_heads encoder_attention_heads "
        "decoder_attention_heads decoder_num_attention_heads attention_heads num_experts "
        "num_local_experts n_routed_experts moe_num_experts num_hidden_layers num_layers "
        "n_layer n_layers linear_num_value_heads mamba_d_state"),
    (2, "eos_token_id encoder_layers decoder_layers num_decoder_layers "
        "decoder_num_hidden_layers num_key_value_heads n_group topk_group num_experts_per_tok "
        "moe_k moe_topk linear_num_key_heads index_n_heads mamba_d_conv mamba_expand"),
    (8, "head_dim d_kv global_head_dim attention_head_size kv_channels qk_rope_head_dim "
        "qk_nope_head_dim v_head_dim linear_key_head_dim linear_value_head_dim "
        "hidden_size_per_layer_input query_pre_attn_scalar local_attention patch_size"),
    (48, "intermediate_size d_ff ffn_dim n_inner encoder_ffn_dim decoder_ffn_dim "
         "ffn_hidden_size intermediate_size_mlp decoder_intermediate_size"),
    (24, "moe_intermediate_size shared_expert_intermediate_size expert_dim"),
    (16, "q_lora_rank kv_lora_rank index_head_dim"),
    (1, "n_shared_experts first_k_dense_replace bos_token_id decoder_start_token_id"),
    (128, "max_position_embeddings max_target_positions n_positions max_seq_len n_ctx"),
    (7, "sliding_window attention_window"),
    (6, "attention_chunk_size"),
    (5, "index_topk"),
    (3, "num_labels"),
    (0, "num_kv_shared_layers pad_token_id"),
)  # fmt: skip
_SIZE = {name: size for size, names in _SIZES for name in names.split()}

# Of the 4 angles of a head the first are of time, the others of rows and of columns.
_SECTIONS = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}

# What other models want, one after the other, until one runs: None leaves the default.
_OTHERWISE: tuple[dict[str, Any], ...] = (
    {}, {"num_key_value_heads": 4}, {"head_dim": None},
    {"n_group": None, "topk_group": None}, {"is_decoder": True},
    {"num_key_value_heads": 4, "head_dim": 16}, {"qk_rope_head_dim": None}, {"patch_size": 16},
    {"rope_parameters": _SECTIONS},
)  # fmt: skip


class NotSmallError(ValueError):
    """A model that these sizes do not make run, or not small."""


def small_model(
    make_config: type[PreTrainedConfig],
    make: type[PreTrainedModel],
    runs: Callable[[PreTrainedModel], object],
) -> PreTrainedModel:
    """A model with random weights and eager attention.

    Args:
        make_config: the class of its configuration.
        make: its class.
        runs: called with the model; raises if it does not run.

    Raises:
        NotSmallError: if no sizes made it run.
    """
    why = ""
    for sizes in _OTHERWISE:
        try:
            config = _small_config(make_config, _SIZE | sizes)
            with torch.device("meta"):
                numbers = sum(p.numel() for p in _built(make, config).parameters())
            if numbers > _LARGEST:
                raise NotSmallError(f"must have at most {_LARGEST} numbers, got {numbers}")
            torch.manual_seed(0)
            model = _built(make, _small_config(make_config, _SIZE | sizes))
            for parameter in model.parameters():
                nn.init.normal_(parameter, std=0.2)
            runs(model)
        except Exception as error:  # models fail in their own ways at sizes that they are not for
            why = why or f"{type(error).__name__}: {' '.join(str(error).split())}"
        else:
            return model
    raise NotSmallError(why)


def _built(make: type[PreTrainedModel], config: PreTrainedConfig) -> PreTrainedModel:
    return make._from_config(config, attn_implementation="eager").eval()


def _small_config(make: type[PreTrainedConfig], sizes: dict[str, Any]) -> PreTrainedConfig:
    """A configuration with these sizes, wherever it or one within it knows them."""
    same = make.attribute_map
    given = {
        name: deepcopy(size)  # configurations write into what they are given
        for name, size in sizes.items()
        if name in set(_names(make)) and name not in same and size is not None
    }
    within: Any = make.sub_configs
    if within:
        usual = make()
        for name in within:
            if isinstance(part := getattr(usual, name, None), PreTrainedConfig):
                given[name] = _small_config(type(part), sizes).to_dict()
    return make(**given)


def _names(make: type[PreTrainedConfig]) -> Iterator[str]:
    yield from inspect.signature(make.__init__).parameters
    for cls in make.__mro__:
        yield from vars(cls).get("__annotations__", {})
