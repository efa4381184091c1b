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
_SAMPLED, _SAMPLES = 8, 5  # without a window: tokens of a timing, and timings of each part
LEAST_TOKENS = 2 * _PARTS * _STEPS  # two timings for each part


def measure_rolling(tokens: int) -> dict:
    """Decode so many tokens in a layer with a window; beside it a layer without one.

    The former decodes every token. For the latter, to which a token costs the more the later it
    comes, most are put into the cache, and the last few of each part are decoded.

    Args:
        tokens: `LEAST_TOKENS` or more.
    """
    torch.manual_seed(0)
    rolling, whole = _layer((_WINDOW, 0)), _layer(None)
    rolled, held = KeyValueCache(), KeyValueCache()
    x, part = torch.randn(1, _STEPS, _WIDTH), tokens // _PARTS
    rows = []
    for number in range(1, _PARTS + 1):
        seconds, most = [], 0
        for _ in range(part // _STEPS):
            seconds.append(_decode(rolling, x, rolled))
            most = max(most, _bytes_of(rolled))
        rows.append(_row(f"window ({_WINDOW}, 0)", number * part, seconds, most))
        _fill(held, number * part - _SAMPLED * _SAMPLES)
        seconds = [_decode(whole, x[:, :_SAMPLED], held) for _ in range(_SAMPLES)]
        rows.append(_row("no window", number * part, seconds, _bytes_of(held)))
    return {"width": _WIDTH, "heads": _HEADS, "window": _WINDOW, "rows": rows}


def _layer(window: tuple[int, int] | None) -> MultiheadAttention:
    position = Shaw(_WIDTH // _HEADS, max_distance=64)
    return MultiheadAttention(_WIDTH, _HEADS, position=position, window=window)


@torch.inference_mode()
def _fill(cache: KeyValueCache, length: int) -> None:
    """Make the cache hold so many tokens."""
    new = torch.randn(1, _HEADS, length - cache.length, _WIDTH // _HEADS)
    cache.append(new, new)


def _row(layer: str, tokens: int, seconds: list[float], held: int) -> dict:
    row = {
        "layer": layer,
        "tokens": tokens,
        "seconds": percentiles(seconds),
        "most_held_bytes": held,
    }
    print(
        f"{layer:18} to token {tokens:6}: {1e6 * row['seconds']['median']:8.1f} us a token, "
        f"{held / 2**20:7.1f} MiB held",
        flush=True,
    )
    return row


@torch.inference_mode()
def _decode(layer: Callable[..., tuple], x: Tensor, cache: KeyValueCache) -> float:
    """The seconds that each token of `x` takes, decoded one by one."""
    start = time.perf_counter()
    for n in range(x.shape[1]):
        token = x[:, n : n + 1]
        layer(token, token, token, cache=cache, is_causal=True, need_weights=False)
    return (time.perf_counter() - start) / x.shape[1]


def _bytes_of(cache: KeyValueCache) -> int:
    return sum(buffer.untyped_storage().nbytes() for buffer in cache._buffers or ())
