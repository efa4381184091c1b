"""The op `relpos.attention` and its backends, one package for each."""

from .api import attention, attention_weights, relative_logits
from .dispatch import backends
from .merging import merge

__all__ = ["attention", "attention_weights", "backends", "merge", "relative_logits"]
