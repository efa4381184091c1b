"""The largest tensor that operations of PyTorch make, forward and backward."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["LargestTensor"]


class LargestTensor(TorchDispatchMode):
    """Within `with LargestTensor() as largest:`, `largest.entries` of what was made; no views."""

    def __init__(self) -> None:
        super().__init__()
        self.entries = 0
        self.by = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for x in tree_leaves(result):
            if isinstance(x, torch.Tensor) and x.layout == torch.strided:
                # What is expanded takes the memory of its storage.
                entries = min(x.numel(), x.untyped_storage().nbytes() // max(x.element_size(), 1))
                if entries > self.entries:
                    self.entries, self.by = entries, str(func)
        return result
