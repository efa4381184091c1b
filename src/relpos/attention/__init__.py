"""The op and its backends.

`relpos.attention` is the function; this package is reached by `from relpos.attention import ...`.
"""

from .api import attention, attention_weights, relative_logits
from .dispatch import backends

__all__ = ["attention", "attention_weights", "backends", "relative_logits"]
