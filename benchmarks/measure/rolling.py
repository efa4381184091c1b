"""Decoding token by token with a window: time and memory of a token by how many came before."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from relpos.layers import KeyValueCache, MultiheadAttention
from relpos.positions import Shaw

from .timing import percentiles

__all__ = ["LEAST_TOKENS", "measure_rolling"]

_WIDTH, _HEADS, _WINDOW = 512, 8, 512
_PARTS = 10  # of equal length, into which the tokens are cut
_STEPS = 256  # tokens that one timing decodes
LEAST_TOKENS = 2 * _PARTS * _STEPS  # two timings for each part


def measure_rolling(tokens: int) -> dict:
    """Decode so many tokens in a layer with a window and in one without, side by side.

    A round decodes some tokens with both; the rounds of each tenth of the tokens are one row.

    Args:
        tokens: `LEAST_TOKENS` or more.
    """
    torch.manual_seed(0)
    layers = {
        "window (512, 0)": MultiheadAttention(
            _WIDTH, _HEADS, position=Shaw(_WIDTH // _HEADS, max_distance=64), window=(_WINDOW, 0)
        ),
        "no window": MultiheadAttention(
            _WIDTH, _HEADS, position=Shaw(_WIDTH // _HEADS, max_distance=64)
        ),
    }
    caches = {name: KeyValueCache() for name in layers}
    x = torch.randn(1, _STEPS, _WIDTH)
    seconds: dict[str, list[float]] = {name: [] for name in layers}
    held: dict[str, list[int]] = {name: [] for name in layers}
    for _ in range(tokens // _STEPS):
        for name, layer in layers.items():
            seconds[name].append(_decode(layer, x, caches[name]) / _STEPS)
            held[name].append(_bytes_of(caches[name]))
    rows = []
    for name in layers:
        each = len(seconds[name]) // _PARTS
        for part in range(_PARTS):
            rounds = slice(part * each, (part + 1) * each)
            rows.append(
                {
                    "layer": name,
                    "tokens": (part + 1) * each * _STEPS,
                    "seconds": percentiles(seconds[name][rounds]),
                    "most_held_bytes": max(held[name][rounds]),
                }
            )
            print(
                f"{name:18} to token {rows[-1]['tokens']:6}: "
                f"{1e6 * rows[-1]['seconds']['median']:8.1f} us a token, "
                f"{rows[-1]['most_held_bytes'] / 2**20:7.1f} MiB held",
                flush=True,
            )
    return {"width": _WIDTH, "heads": _HEADS, "window": _WINDOW, "rows": rows}


@torch.inference_mode()
def _decode(layer: Callable[..., tuple], x: Tensor, cache: KeyValueCache) -> float:
    """The seconds in which a layer takes the tokens of `x`, one by one."""
    start = time.perf_counter()
    for n in range(x.shape[1]):
        token = x[:, n : n + 1]
        layer(token, token, token, cache=cache, is_causal=True, need_weights=False)
    return time.perf_counter() - start


def _bytes_of(cache: KeyValueCache) -> int:
    return sum(buffer.untyped_storage().nbytes() for buffer in cache._buffers or ())
