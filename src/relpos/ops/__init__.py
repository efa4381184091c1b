"""The op `relpos.attention` and its backends, one package for each."""

from .api import attention, attention_weights, relative_logits
from .dispatch import backends
from .flops import register_flop_formulas
from .global_local import global_local_attention
from .merging import merge

__all__ = [
    "attention",
    "attention_weights",
    "backends",
    "global_local_attention",
    "merge",
    "register_flop_formulas",
    "relative_logits",
]
