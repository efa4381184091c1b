"""In what settings the op is measured on a GPU, the most important first.

16384 tokens in all, 16 heads, bfloat16. What the budget of time leaves no room for is left out from
the end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from scenes import BIASES, GLOBAL, GRIDS, LOGITS, SHAW, Scene

__all__ = ["ON_CUDA", "RIVALS", "CudaScene", "cuda_name"]

MAIN = (*SHAW, BIASES[0], GLOBAL[0], LOGITS)
LATER = (GLOBAL[1], "queries, k=64 (DeBERTa)", "8 packed documents, bias")
RIVALS = ": rivals"
TOKENS = 16384


@dataclass(frozen=True)
class CudaScene(Scene):
    """A setting on a GPU."""

    heads: int = 16
    dtype: str = "bfloat16"
    backends: tuple[str, ...] = ("triton",)
    seconds: float = 0.25

    device: ClassVar[str] = "cuda"


def cuda_name(length: int, width: int) -> str:
    """Of the scene of that length, in tokens, and that width of a head."""
    return f"L={length}, B={TOKENS // length}, d={width}"


def _scene(length: int, width: int, cases: tuple[str, ...]) -> CudaScene:
    name, batch = cuda_name(length, width), TOKENS // length
    return CudaScene(name, length, cases, batch=batch, width=width)


def _rivals(length: int, cases: tuple[str, ...]) -> CudaScene:
    scene = _scene(length, 64, cases)
    return replace(scene, name=scene.name + RIVALS, rivals=True)


def _later(length: int, cases: tuple[str, ...]) -> CudaScene:
    scene = _scene(length, 64, cases)
    return replace(scene, name=f"{scene.name}: other schemes")


ON_CUDA = (
    *(
        _scene(length, width, (*MAIN, GRIDS[0]) if length == 4096 else MAIN)
        for width in (64, 128)
        for length in (1024, 4096, 16384)
    ),
    _rivals(4096, (*MAIN, GRIDS[0])),
    _rivals(1024, MAIN),
    _rivals(16384, MAIN),
    _later(4096, (*LATER, GRIDS[1])),
    _later(1024, LATER),
    _later(16384, LATER),
    replace(
        _scene(1024, 64, (SHAW[0], GLOBAL[0])),
        name="L=1024, B=1, d=64: tiled", batch=1, backends=("triton", "tiled"),
    ),
    replace(_rivals(4096, LATER), name=f"{cuda_name(4096, 64)}: rivals, other schemes"),
)  # fmt: skip
