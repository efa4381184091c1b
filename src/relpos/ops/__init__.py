"""The op and its backends.

`relpos.attention` is the function; this package is reached by `from relpos.attention import ...`.
"""

from .api import attention, attention_weights, relative_logits
from .dispatch import backends
from .merging import merge

__all__ = ["attention", "attention_weights", "backends", "merge", "relative_logits"]
