"""In what settings the op is measured on a GPU, the most important first.

16384 tokens in all, 16 heads, bfloat16. What the budget of time leaves no room for is left out from
the end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from .settings import BIASES, GLOBAL, GRIDS, RELATIVE_LOGITS, SHAW, VIDEO, Setting

__all__ = [
    "GPU_SETTINGS",
    "MORE_GPU_SETTINGS",
    "RIVALS_SUFFIX",
    "GpuSetting",
    "gpu_setting_name",
]

MAIN_SCHEMES = (*SHAW, BIASES[0], GLOBAL[0], RELATIVE_LOGITS)
OTHER_SCHEMES = (GLOBAL[1], "queries, k=64 (DeBERTa)", "8 packed documents, bias")
RIVALS_SUFFIX = ": rivals"
TOKENS = 16384
MOST_CAPTURED = 1024  # tokens, of which the kernels may take less time than Python


@dataclass(frozen=True)
class GpuSetting(Setting):
    """A setting on a GPU.

    Args:
        captured: whether both passes are timed as CUDA graphs too, which leave Python out.
    """

    heads: int = 16
    dtype: str = "bfloat16"
    backends: tuple[str, ...] = ("triton",)
    seconds: float = 0.1
    captured: bool = False

    device: ClassVar[str] = "cuda"


def gpu_setting_name(length: int, width: int) -> str:
    """Of the setting of that length, in tokens, and that width of a head."""
    return f"L={length}, B={TOKENS // length}, d={width}"


def _setting(length: int, width: int, schemes: tuple[str, ...]) -> GpuSetting:
    name, batch = gpu_setting_name(length, width), TOKENS // length
    captured = length <= MOST_CAPTURED
    return GpuSetting(name, length, schemes, batch=batch, width=width, captured=captured)


def _rivals(length: int, schemes: tuple[str, ...]) -> GpuSetting:
    setting = _setting(length, 64, schemes)
    return replace(setting, name=setting.name + RIVALS_SUFFIX, rivals=True, captured=False)


def _other_schemes(length: int, schemes: tuple[str, ...]) -> GpuSetting:
    setting = _setting(length, 64, schemes)
    return replace(setting, name=f"{setting.name}: other schemes")


def _all_backends(length: int) -> GpuSetting:
    """One sequence, for the choice among the backends that run on a GPU."""
    setting = _setting(length, 64, (SHAW[0], GLOBAL[0]))
    backends = ("triton", "tiled", "reference")
    return replace(
        setting, name=f"L={length}, B=1, d=64: backends", batch=1, backends=backends, captured=False
    )


def _in_float32(setting: GpuSetting, *backends: str, precision: str = "highest") -> GpuSetting:
    """The same in float32, without CUDA graphs."""
    products = "" if precision == "highest" else " by TF32"
    return replace(
        setting, name=f"{setting.name}, float32{products}", dtype="float32", precision=precision,
        backends=backends or setting.backends, captured=False,
    )  # fmt: skip


def _grids(length: int, schemes: tuple[str, ...]) -> GpuSetting:
    """Many grids, each with its own attention: windows of images, or videos."""
    batch = TOKENS // length
    return GpuSetting(
        f"grids of {length} tokens, B={batch}, d=64", length, schemes, batch=batch,
        backends=("triton", "tiled", "reference"),
    )  # fmt: skip


def _decoding(keys: int, batch: int) -> GpuSetting:
    """One query of each sequence, as in generation, which has no backward pass."""
    return GpuSetting(
        f"one query, {keys} keys, B={batch}, d=64", 1, (SHAW[0], BIASES[0], GLOBAL[0]), keys=keys,
        batch=batch, backward=False, captured=True,
    )  # fmt: skip


GPU_SETTINGS = (
    *(
        _setting(length, width, (*MAIN_SCHEMES, GRIDS[0]) if length == 4096 else MAIN_SCHEMES)
        for width in (64, 128)
        for length in (1024, 4096, 16384)
    ),
    *(_all_backends(length) for length in (64, 256, 1024)),
    *(_decoding(keys, batch) for keys, batch in ((4096, 16), (32768, 1))),
    _rivals(4096, (*MAIN_SCHEMES, GRIDS[0])),
    _rivals(1024, MAIN_SCHEMES),
    _rivals(16384, MAIN_SCHEMES),
    _other_schemes(4096, (*OTHER_SCHEMES, GRIDS[1])),
    _other_schemes(1024, OTHER_SCHEMES),
    _other_schemes(16384, OTHER_SCHEMES),
    replace(
        _rivals(4096, OTHER_SCHEMES), name=f"{gpu_setting_name(4096, 64)}: rivals, other schemes"
    ),
)  # fmt: skip
# In float32, and grids of other shapes than a square of 64 x 64: `--more`.
MORE_GPU_SETTINGS = (
    _in_float32(_setting(4096, 64, (*MAIN_SCHEMES, GRIDS[0])), "triton", "tiled"),
    _grids(196, GRIDS),
    _grids(1568, (VIDEO,)),
    _in_float32(_setting(4096, 64, SHAW[:1]), "triton", precision="high"),
    *(_in_float32(_all_backends(length)) for length in (64, 256, 1024)),
    _in_float32(_setting(4096, 128, (SHAW[0], GLOBAL[0])), "triton", "tiled"),
    _in_float32(_setting(1024, 64, MAIN_SCHEMES), "triton", "tiled"),
    _in_float32(_setting(16384, 64, MAIN_SCHEMES)),
    _grids(1024, GRIDS),
)
