"""What the op is to reach, as data, and what it reached.

A target is a bound on the median of one ratio of `results/cpu.json`. Notes on missed ones (what
was tried, what the profile shows, what the floor is) are in `notes.json` under the target's name.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from cases import NATIVE, UNIT
from scenes import BIASES, CLIPPED, EVERY, GLOBAL, SHAW, TIME

__all__ = ["TARGETS", "Target", "notes"]

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
        rival = f", {self.own}" if self.own != NATIVE else ""
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


TARGETS = (*_ratios(), *_few_heads(), *_rivals(), *_decoding_and_short(), *_memory())


def notes() -> dict[str, str]:
    """What was written about missed targets, by name."""
    return json.loads((Path(__file__).parent / "notes.json").read_text())
