"""Relative attention over several devices, on the process groups of torch.distributed.

q, k, v = (shard(x, group, dim=2) for x in (q, k, v))    # this rank's tokens
out = attention(q, k, v, terms, group=group, causal=True)
out = unshard(out, group, dim=2)                         # where all are wanted
"""

from .api import attention
from .clipping import clip_grad_norm_
from .context_parallel import ContextParallel
from .head_parallel import HeadParallel
from .layout import KeyLayout, Layout, shard, spans, unshard
from .placements import table_placement
from .ranks.group import ExchangeError
from .state import full_state_dict, load_full_state_dict

__all__ = [
    "ContextParallel",
    "ExchangeError",
    "HeadParallel",
    "KeyLayout",
    "Layout",
    "attention",
    "clip_grad_norm_",
    "full_state_dict",
    "load_full_state_dict",
    "shard",
    "spans",
    "table_placement",
    "unshard",
]
