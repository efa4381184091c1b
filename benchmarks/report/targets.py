"""What the op is to reach, as data, and what it reached.

A target is a bound on the median of one ratio of `results/cpu.json`, or of `results/cuda.json` for
those on a GPU. Notes on missed ones (what was tried, what the profile shows, what the floor is) are
in `notes.json` under the target's name.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..measure.passes import BOTH, FORWARD
from ..workloads.gpu_settings import GPU_SETTINGS, RIVALS_SUFFIX, gpu_setting_name
from ..workloads.settings import (
    ALL_ON_CPU,
    BIASES,
    CLIPPED,
    DECODING_SETTINGS,
    GLOBAL,
    GRIDS,
    HALF_SETTINGS,
    RELATIVE_LOGITS,
    SHAW,
    SMALL_SETTINGS,
    TIME_SETTINGS,
)
from ..workloads.workload import NATIVE, TRITON, UNIT

__all__ = [
    "DECODING_TARGETS",
    "GPU_TARGETS",
    "HALF_TARGETS",
    "SMALL_TARGETS",
    "TARGETS",
    "Target",
    "notes",
    "verdict",
]


@dataclass(frozen=True)
class Target:
    """A bound on how many times as long, or as much memory, as another contender.

    Args:
        group: heading under which it is listed.
        setting: name.
        scheme: name.
        quantity: the pass, or `"memory"`.
        bound: of the ratio.
        contender: whose time or memory.
        against: of which contender it is a multiple.
        at_least: whether the bound is a lower one, in place of an upper one.
    """

    group: str
    setting: str
    scheme: str
    quantity: str
    bound: float
    contender: str = NATIVE
    against: str = UNIT
    at_least: bool = False

    @property
    def name(self) -> str:
        """By which the notes name it."""
        rival = f", {self.contender}" if self.contender not in (NATIVE, TRITON) else ""
        return f"{self.setting}: {self.scheme}: {self.quantity}{rival}"

    def measured(self, result: dict) -> float | None:
        """The figure in a result, or None where it has none."""
        for row in result["memory" if self.quantity == "memory" else "time"]:
            key = row["setting"], row["workload"], row["contender"]
            if key != (self.setting, self.scheme, self.contender):
                continue
            if self.quantity == "memory":
                return row["peak_ratio"]
            if row["pass"] == self.quantity:
                return row["ratios"].get(self.against, {}).get("median")
        return None

    def missed(self, result: dict) -> bool:
        """Whether it was measured and is beyond the bound, as far as two decimals show."""
        value = self.measured(result)
        if value is None:
            return False
        return round(value, 2) < self.bound if self.at_least else round(value, 2) > self.bound


def _ratios() -> list[Target]:
    """Forward, forward and backward, as multiples of plain SDPA."""
    bounds = {
        "L=1024": ((1.25, 1.25), (1.35, 1.35), (1.1, 1.1), (1.45, 1.5), (1.6, 1.6)),
        "L=2048": ((1.12, 1.15), (1.18, 1.2), (1.08, 1.1), (1.35, 1.4), (1.55, 1.55)),
        "L=8192, B=1": ((1.05, 1.08), (1.08, 1.1), (1.05, 1.05), (1.35, 1.4), (1.52, 1.55)),
    }
    groups = ((SHAW[0],), (SHAW[1],), BIASES, (GLOBAL[0],), (GLOBAL[1],))
    cells = [
        (setting, scheme, pair)
        for setting, pairs in bounds.items()
        for group, pair in zip(groups, pairs, strict=True)
        for scheme in group
    ]
    cells.append(("64 x 64, B=1", "grid, per axis (SAM)", (1.15, 1.2)))
    return [
        Target("Time as a multiple of plain SDPA", setting, scheme, pass_name, bound)
        for setting, scheme, pair in cells
        for pass_name, bound in zip((FORWARD, BOTH), pair, strict=True)
    ]


def _half() -> list[Target]:
    """With AMX for bfloat16, as multiples of plain SDPA in the same dtype."""
    bounds = {
        "bfloat16, d=64": (
            (0.55, 0.35), (0.6, 0.4), (0.75, 0.5), (0.6, 0.4), (0.7, 0.55), (0.8, 0.6), None,
        ),
        "bfloat16, d=128, B=1": ((0.7, 0.45), (0.75, 0.5), None, None, None, (1.0, 0.75), None),
        "bfloat16, 64 x 64, B=1": ((0.7, 0.5),),
        "float32 (high), d=64": (*((0.5, 0.5),) * 6, None),
        "float16, d=64": ((1.15, 1.05), (1.2, 1.1), (1.2, 1.1), (1.2, 1.1), None, (1.6, 1.5), None),
    }  # fmt: skip
    return [
        Target(f"{setting.name}, as a multiple of plain SDPA", setting.name, scheme, name, bound)
        for setting in HALF_SETTINGS
        for scheme, pair in zip(setting.schemes, bounds[setting.name], strict=True)
        for name, bound in zip((FORWARD, BOTH), pair or (), strict=False)
    ]


def _few_heads() -> list[Target]:
    return [
        Target("Few heads: faster than plain SDPA", f"L=4096, B=1, H={heads}", scheme, BOTH, 1.0)
        for heads in (1, 2)
        for scheme in CLIPPED
    ]


def _rivals() -> list[Target]:
    factors = (
        ("Huang, global, causal", "eager skew", 8.0),
        ("bidirectional, global", "pad and reshape", 6.0),
        ("Shaw keys + values, k=64", "literal Shaw", 9.0),
        ("bidirectional, global", "FlexAttention", 4.0),
        ("Shaw keys, k=64", "FlexAttention", 2.0),
        ("bidirectional, global", "SDPA with a dense bias", 5.0),
    )
    return [
        Target(
            "Rivals: how many times as long they take", "L=2048", scheme, FORWARD, factor,
            contender=rival, against=NATIVE, at_least=True,
        )
        for scheme, rival, factor in factors
    ]  # fmt: skip


def _decoding() -> list[Target]:
    group = "Decoding one token, as a multiple of plain SDPA"
    return [
        Target(group, setting.name, scheme, FORWARD, 1.2)
        for setting in TIME_SETTINGS
        if setting.queries == 1
        for scheme in setting.schemes
    ]


def _steps() -> list[Target]:
    """Of decoding in each dtype. A global table is read beside the keys, once for all sequences."""
    return [
        Target(
            f"{setting.dtype}, as a multiple of plain SDPA", setting.name, scheme, FORWARD,
            1.05 if scheme in CLIPPED else 1.2 if setting.batch == 1 else 1.1,
        )
        for setting in DECODING_SETTINGS
        for scheme in setting.schemes
    ]  # fmt: skip


def _small() -> list[Target]:
    """Calls of 64 tokens; one sequence is too little to make up for the fixed cost."""
    return [
        Target(
            f"{setting.dtype}, as a multiple of plain SDPA", setting.name, scheme, FORWARD,
            1.5 if setting.batch == 1 else 1.4 if setting.dtype == "bfloat16" else 1.25,
        )
        for setting in SMALL_SETTINGS
        for scheme in setting.schemes
    ]  # fmt: skip


def _short() -> list[Target]:
    group = 'Short sequences: `"auto"` as a multiple of `reference`'
    return [
        Target(
            group, setting.name, scheme, pass_name, 1.0,
            contender="relpos auto", against="relpos reference",
        )
        for setting in TIME_SETTINGS
        if "auto" in setting.backends
        for scheme in setting.schemes
        for pass_name in (FORWARD, BOTH)
    ]  # fmt: skip


def _memory() -> list[Target]:
    group = "Peak memory of a process, as a multiple of plain SDPA's"
    return [Target(group, "memory, L=16384, B=1", scheme, "memory", 1.15) for scheme in ALL_ON_CPU]


def _gpu_ratios() -> list[Target]:
    bounds = {
        SHAW[0]: ((1.35, 1.4), (1.12, 1.2), (1.05, 1.1)),
        SHAW[1]: ((1.5, 1.6), (1.2, 1.3), (1.1, 1.15)),
        BIASES[0]: ((1.1, 1.2), (1.08, 1.15), (1.05, 1.1)),
        # Three products for two forward, twelve for nine with backward, and the shear.
        GLOBAL[0]: ((2.0, 2.4), (1.9, 2.4), (1.9, 2.4)),
        RELATIVE_LOGITS: ((1.6, 1.8), (1.3, 1.4), (1.15, 1.2)),
        GRIDS[0]: (None, (1.15, 1.3), None),
    }
    group = "Time on a GPU, as a multiple of the fastest SDPA's"
    return [
        Target(group, gpu_setting_name(length, width), scheme, pass_name, bound, contender=TRITON)
        for width in (64, 128)
        for scheme, pairs in bounds.items()
        for length, pair in zip((1024, 4096, 16384), pairs, strict=True)
        if pair is not None
        for pass_name, bound in zip((FORWARD, BOTH), pair, strict=True)
    ]


def _gpu_memory() -> list[Target]:
    group = "Peak memory on a GPU, as a multiple of the fastest SDPA's"
    return [
        Target(group, setting.name, scheme, "memory", 1.2, contender=TRITON)
        for setting in GPU_SETTINGS
        if setting.name in {gpu_setting_name(length, 64) for length in (1024, 4096, 16384)}
        for scheme in setting.schemes
    ]


def _gpu_rivals() -> list[Target]:
    group = "Rivals on a GPU: how many times as long they take"
    return [
        Target(
            group, gpu_setting_name(length, 64) + RIVALS_SUFFIX, scheme, BOTH, 2.0,
            contender="FlexAttention", against=TRITON, at_least=True,
        )
        for length in (1024, 4096, 16384)
        for scheme in (SHAW[0], BIASES[0])
    ]  # fmt: skip


TARGETS = (*_ratios(), *_few_heads(), *_rivals(), *_decoding(), *_short(), *_memory())
HALF_TARGETS = tuple(_half())
DECODING_TARGETS = tuple(_steps())
SMALL_TARGETS = tuple(_small())
GPU_TARGETS = (*_gpu_ratios(), *_gpu_memory(), *_gpu_rivals())


def verdict(result: dict, targets: Sequence[Target]) -> str:
    """Which targets a result misses, a line each, and then how many it has."""
    measured = [target for target in targets if target.measured(result) is not None]
    missed = [target for target in measured if target.missed(result)]
    lines = [
        f"missed: {target.name}: {target.measured(result):.2f}, not {target.bound:g}"
        for target in missed
    ]
    last = f"{len(targets)} targets: {len(measured)} measured, {len(missed)} missed"
    return "\n".join([*lines, last])


def notes() -> dict[str, str]:
    """What was written about missed targets, by name."""
    return json.loads((Path(__file__).parent / "notes.json").read_text())
