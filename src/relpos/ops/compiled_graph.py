"""In compiled graphs, which are made beneath autograd: operators without a derivative.

An operator's derivative is written in Python, and asked for in every call, also where a graph knows
that it wants none: that takes as long as a short call.
"""

from __future__ import annotations

from typing import Any

import torch

# Torch's own, which another version of it may move.
try:
    from torch._guards import TracingContext
    from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode
except ImportError:
    TracingContext = ProxyTorchDispatchMode = None

__all__ = ["call_kernel_in_compiled_graphs"]


def call_kernel_in_compiled_graphs(operator: Any, kernel: Any) -> None:
    """Let `torch.compile` call `kernel` where a graph without derivatives calls `operator`.

    Exports, and other traces, have the operator.

    Args:
        operator: with a derivative.
        kernel: the same without one.
    """
    context = TracingContext
    if context is None or ProxyTorchDispatchMode is None:
        return

    def record(mode: Any, _: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        compiles = context.try_get() is not None and not torch.compiler.is_exporting()
        called = kernel if compiles and not mode.pre_dispatch else operator
        return mode.__torch_dispatch__(called, types, args, kwargs or {})

    torch.library.register_torch_dispatch(operator, ProxyTorchDispatchMode, record)
