"""In what settings the op is measured: one list for time and one for memory.

Lengths are in tokens. A setting's name is also the key under which tables and targets find its
rows; in results a row has its `"setting"` and its `"workload"`, which is a scheme in that setting.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from math import isqrt
from typing import Any, ClassVar

import torch

__all__ = [
    "DECODING_SETTINGS",
    "HALF_SETTINGS",
    "MEMORY_SETTINGS",
    "NO_TERMS",
    "RELATIVE_LOGITS",
    "SHAW",
    "SMALL_SETTINGS",
    "TIME_SETTINGS",
    "Setting",
    "find_setting",
]

# Names of schemes, as `schemes.SCHEMES` has them.
SHAW = ("Shaw keys, k=64", "Shaw keys + values, k=64")
NARROW_SHAW = "Shaw keys, k=16"
BIASES = ("bias, k=128 (T5)", "bias, all offsets (ALiBi)")
GLOBAL = ("Huang, global, causal", "bidirectional, global")
CLIPPED = (*SHAW, "Shaw values, k=64", "queries, k=64 (DeBERTa)", BIASES[0])
GRIDS = ("grid, per axis (SAM)", "grid, joint bias (Swin)")
VIDEO = "grid, three axes (MViTv2)"
NO_TERMS = "no terms"
RELATIVE_LOGITS = "logits, causal (Inkling)"
USUAL = (*SHAW, *BIASES, *GLOBAL)
ALL_ON_CPU = (*CLIPPED, BIASES[1], *GLOBAL, "queries, global", *GRIDS, "8 packed documents, bias")


@dataclass(frozen=True)
class Setting:
    """Sizes at which every scheme runs beside plain SDPA.

    Args:
        name: of the setting.
        queries: tokens.
        schemes: names in `schemes.SCHEMES`.
        keys: tokens; None: as many as queries. With more, the queries are the last ones.
        batch: sequences.
        heads: query heads.
        kv_heads: key heads; None: as many as query heads.
        width: of a head.
        dtype: of the inputs; learned tables stay in float32 and are cast, as by autocast, but where
            there is no backward.
        precision: of float32 products, as `torch.set_float32_matmul_precision` takes it.
        backends: of relpos.
        rivals: whether the schemes' rivals run too (most need `length ** 2` memory).
        backward: whether forward and backward together are timed too.
        seconds: after how many a contender rests, once it has enough rounds.
    """

    name: str
    queries: int
    schemes: tuple[str, ...]
    keys: int | None = None
    batch: int = 2
    heads: int = 8
    kv_heads: int | None = None
    width: int = 64
    dtype: str = "float32"
    precision: str = "highest"
    backends: tuple[str, ...] = ("native", "tiled")
    rivals: bool = False
    backward: bool = True
    seconds: float = 2.0

    device: ClassVar[str] = "cpu"

    @property
    def length(self) -> int:
        """Number of keys."""
        return self.queries if self.keys is None else self.keys

    @property
    def torch_dtype(self) -> torch.dtype:
        """`dtype` as torch calls it."""
        return getattr(torch, self.dtype)

    @property
    def grid_shape(self) -> tuple[int, int]:
        """The height and width of the grid of as many tokens that is nearest to a square."""
        height = next(n for n in range(isqrt(self.length), 0, -1) if self.length % n == 0)
        return height, self.length // height

    def at(self, length: int) -> Setting:
        """The same setting at another length."""
        return replace(self, queries=length, keys=None)

    def as_json(self) -> dict[str, Any]:
        """The setting as results keep it, with the names of its workloads: a scheme each."""
        fields = asdict(self)
        return {"workloads" if key == "schemes" else key: value for key, value in fields.items()}


_DECODING = Setting(
    "decoding", 1, (SHAW[0], BIASES[0], GLOBAL[0]), keys=32768, backward=False, seconds=1.0
)
_SHORT = Setting(
    "short", 64, (*SHAW, *BIASES, *GLOBAL, *GRIDS), batch=64,
    backends=("auto", "native", "tiled", "reference"), seconds=0.5,
)  # fmt: skip

TIME_SETTINGS = (
    Setting("L=2048", 2048, ALL_ON_CPU, rivals=True),
    Setting("L=1024", 1024, USUAL, seconds=1.5),
    Setting("L=8192, B=1", 8192, USUAL, batch=1),
    Setting("L=4096, B=1, H=1", 4096, CLIPPED, batch=1, heads=1, seconds=1.5),
    Setting("L=4096, B=1, H=2", 4096, CLIPPED, batch=1, heads=2, seconds=1.5),
    Setting("64 x 64, B=1", 4096, GRIDS, batch=1),
    Setting("L=2048, bfloat16", 2048, ALL_ON_CPU, dtype="bfloat16", seconds=1.5),
    replace(_DECODING, name="one query, 32768 keys, B=1", batch=1),
    replace(_DECODING, name="one query, 32768 keys, B=2", batch=2),
    replace(_SHORT, name="L=64, B=64, d=32", width=32),
    replace(_SHORT, name="L=64, B=64, d=64"),
    replace(_SHORT, name="L=128, B=64, d=64", queries=128),
    replace(_SHORT, name="L=64, B=1", batch=1),
)

_HALF = Setting(
    "bfloat16, d=64", 2048, (NO_TERMS, *SHAW, BIASES[0], *GLOBAL, GRIDS[0]), dtype="bfloat16",
    backends=("native",),
)  # fmt: skip

# In what processors have matrix units for: 16 bits, and float32 where it may be split.
HALF_SETTINGS = (
    _HALF,
    replace(_HALF, name="bfloat16, d=128, B=1", batch=1, width=128),
    replace(_HALF, name="bfloat16, 64 x 64, B=1", queries=4096, batch=1, schemes=(GRIDS[0],)),
    replace(_HALF, name="float16, d=64", dtype="float16"),
    replace(_HALF, name="float32 (high), d=64", dtype="float32", precision="high"),
)

_STEP = replace(_DECODING, batch=1, backends=("native",), seconds=0.4)

# Steps of decoding: one query, or a few that were guessed ahead, against many keys.
DECODING_SETTINGS = tuple(
    replace(setting, name=f"{dtype}, {setting.name}", dtype=dtype)
    for dtype in ("float32", "bfloat16", "float16")
    for setting in (
        replace(_STEP, name="1 query, 8192 keys, B=1", keys=8192),
        replace(_STEP, name="1 query, 8192 keys, B=16", keys=8192, batch=16),
        replace(_STEP, name="1 query, 32768 keys, B=1"),
        replace(_STEP, name="1 query, 32768 keys, B=2", batch=2),
        replace(_STEP, name="1 query, 131072 keys, B=1", keys=131072),
        replace(_STEP, name="1 query, 32768 keys, 1 key head", kv_heads=1),
        replace(_STEP, name="8 queries, 32768 keys, B=1", queries=8),
        replace(_STEP, name="8 queries, 32768 keys, 1 key head", queries=8, kv_heads=1),
    )
)

_SMALL = Setting(
    "small", 64, (NO_TERMS, NARROW_SHAW, SHAW[0], GLOBAL[0], BIASES[0]), backends=("native",),
    seconds=1.0,
)  # fmt: skip

# In which what a call costs before any product counts.
SMALL_SETTINGS = tuple(
    replace(_SMALL, name=f"{dtype}, L=64, B={batch}", batch=batch, dtype=dtype)
    for batch in (8, 1)
    for dtype in ("float32", "bfloat16")
)

MEMORY_SETTINGS = (
    Setting("memory, L=2048", 2048, ALL_ON_CPU, rivals=True),
    Setting("memory, L=16384, B=1", 16384, ALL_ON_CPU, batch=1, backends=("native",)),
    Setting("memory of tiled", 16384, (SHAW[1], GLOBAL[0], *GRIDS), batch=1, backends=("tiled",)),
)


def find_setting(name: str) -> Setting:
    """The setting of that name."""
    return next(one for one in (*TIME_SETTINGS, *MEMORY_SETTINGS) if one.name == name)
