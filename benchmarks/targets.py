"""What the op is to reach, as data, and what it reached.

A target is a bound on the median of one ratio of `results/cpu.json`, or of `results/cuda.json` for
those on a GPU. Notes on missed ones (what
was tried, what the profile shows, what the floor is) are in `notes.json` under the target's name.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from cases import NATIVE, TRITON, UNIT
from cuda_scenes import ON_CUDA, RIVALS, cuda_name
from scenes import BIASES, CLIPPED, EVERY, GLOBAL, GRIDS, LOGITS, SHAW, TIME

__all__ = ["CUDA_TARGETS", "TARGETS", "Target", "notes", "verdict"]

FORWARD, BOTH = "forward", "forward+backward"


@dataclass(frozen=True)
class Target:
    """A bound on how many times as long, or as much memory, as another contender.

    Args:
        group: heading under which it is listed.
        scene: name.
        case: name.
        label: the pass, or `"memory"`.
        bound: what the ratio is to be at most.
        own: whose time.
        against: in parts of whose time.
        least: whether the ratio is to be at least `bound` instead.
    """

    group: str
    scene: str
    case: str
    label: str
    bound: float
    own: str = NATIVE
    against: str = UNIT
    least: bool = False

    @property
    def name(self) -> str:
        """By which the notes name it."""
        rival = f", {self.own}" if self.own not in (NATIVE, TRITON) else ""
        return f"{self.scene}: {self.case}: {self.label}{rival}"

    def measured(self, result: dict) -> float | None:
        """The figure in a result, or None where it has none."""
        for row in result["memory" if self.label == "memory" else "time"]:
            if (row["scene"], row["case"], row["contender"]) != (self.scene, self.case, self.own):
                continue
            if self.label == "memory":
                return row["peak_ratio"]
            if row["pass"] == self.label:
                return row["ratios"].get(self.against, {}).get("median")
        return None

    def missed(self, result: dict) -> bool:
        """Whether it was measured and is beyond the bound, as far as two decimals show."""
        value = self.measured(result)
        if value is None:
            return False
        return round(value, 2) < self.bound if self.least else round(value, 2) > self.bound


def _ratios() -> list[Target]:
    """Forward, forward and backward, as multiples of plain SDPA."""
    bounds = {
        "L=1024": ((1.25, 1.25), (1.35, 1.35), (1.1, 1.1), (1.45, 1.5), (1.6, 1.6)),
        "L=2048": ((1.12, 1.15), (1.18, 1.2), (1.08, 1.1), (1.35, 1.4), (1.55, 1.55)),
        "L=8192, B=1": ((1.05, 1.08), (1.08, 1.1), (1.05, 1.05), (1.35, 1.4), (1.52, 1.55)),
    }
    schemes = ((SHAW[0],), (SHAW[1],), BIASES, (GLOBAL[0],), (GLOBAL[1],))
    cells = [
        (scene, case, pair)
        for scene, pairs in bounds.items()
        for cases, pair in zip(schemes, pairs, strict=True)
        for case in cases
    ]
    cells.append(("64 x 64, B=1", "grid, per axis (SAM)", (1.15, 1.2)))
    return [
        Target("Time as a multiple of plain SDPA", scene, case, label, bound)
        for scene, case, pair in cells
        for label, bound in zip((FORWARD, BOTH), pair, strict=True)
    ]


def _few_heads() -> list[Target]:
    return [
        Target("Few heads: faster than plain SDPA", f"L=4096, B=1, H={heads}", case, BOTH, 1.0)
        for heads in (1, 2)
        for case in CLIPPED
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
            "Rivals: how many times as long they take", "L=2048", case, FORWARD, factor,
            own=rival, against=NATIVE, least=True,
        )
        for case, rival, factor in factors
    ]  # fmt: skip


def _decoding_and_short() -> list[Target]:
    decoding = [
        Target("Decoding one token, as a multiple of plain SDPA", one.name, case, FORWARD, 1.2)
        for one in TIME
        if one.queries == 1
        for case in one.cases
    ]
    short = [
        Target(
            'Short sequences: `"auto"` as a multiple of `reference`', one.name, case, label, 1.0,
            own="relpos auto", against="relpos reference",
        )
        for one in TIME
        if "auto" in one.backends
        for case in one.cases
        for label in (FORWARD, BOTH)
    ]  # fmt: skip
    return decoding + short


def _memory() -> list[Target]:
    group = "Peak memory of a process, as a multiple of plain SDPA's"
    return [Target(group, "memory, L=16384, B=1", case, "memory", 1.15) for case in EVERY]


def _cuda_ratios() -> list[Target]:
    bounds = {
        SHAW[0]: ((1.35, 1.4), (1.12, 1.2), (1.05, 1.1)),
        SHAW[1]: ((1.5, 1.6), (1.2, 1.3), (1.1, 1.15)),
        BIASES[0]: ((1.1, 1.2), (1.08, 1.15), (1.05, 1.1)),
        GLOBAL[0]: ((2.0, 2.2), (1.9, 2.1), (1.9, 2.1)),
        LOGITS: ((1.6, 1.8), (1.3, 1.4), (1.15, 1.2)),
        GRIDS[0]: (None, (1.15, 1.3), None),
    }
    group = "Time on a GPU, as a multiple of the fastest SDPA's"
    return [
        Target(group, cuda_name(length, width), case, label, bound, own=TRITON)
        for width in (64, 128)
        for case, pairs in bounds.items()
        for length, pair in zip((1024, 4096, 16384), pairs, strict=True)
        if pair is not None
        for label, bound in zip((FORWARD, BOTH), pair, strict=True)
    ]


def _cuda_memory() -> list[Target]:
    group = "Peak memory on a GPU, as a multiple of the fastest SDPA's"
    return [
        Target(group, one.name, case, "memory", 1.2, own=TRITON)
        for one in ON_CUDA
        if one.name in {cuda_name(length, 64) for length in (1024, 4096, 16384)}
        for case in one.cases
    ]


def _cuda_rivals() -> list[Target]:
    group = "Rivals on a GPU: how many times as long they take"
    return [
        Target(
            group, cuda_name(length, 64) + RIVALS, case, BOTH, 2.0,
            own="FlexAttention", against=TRITON, least=True,
        )
        for length in (1024, 4096, 16384)
        for case in (SHAW[0], BIASES[0])
    ]  # fmt: skip


TARGETS = (*_ratios(), *_few_heads(), *_rivals(), *_decoding_and_short(), *_memory())
CUDA_TARGETS = (*_cuda_ratios(), *_cuda_memory(), *_cuda_rivals())


def verdict(result: dict) -> str:
    """What a result on a GPU misses, a line each, and then how many it has."""
    measured = [one for one in CUDA_TARGETS if one.measured(result) is not None]
    missed = [one for one in measured if one.missed(result)]
    lines = [f"missed: {one.name}: {one.measured(result):.2f}, not {one.bound:g}" for one in missed]
    last = f"{len(CUDA_TARGETS)} targets: {len(measured)} measured, {len(missed)} missed"
    return "\n".join([*lines, last])


def notes() -> dict[str, str]:
    """What was written about missed targets, by name."""
    return json.loads((Path(__file__).parent / "notes.json").read_text())
