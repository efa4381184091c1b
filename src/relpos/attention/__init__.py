from .api import attention
from .dispatch import backends

__all__ = ["attention", "backends"]
