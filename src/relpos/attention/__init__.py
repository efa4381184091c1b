from .api import attention, attention_weights
from .dispatch import backends

__all__ = ["attention", "attention_weights", "backends"]
