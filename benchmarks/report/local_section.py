"""Local attention on the pages: beside its floor, by length, in memory, with a rolling cache."""

from __future__ import annotations

from ..measure.passes import BOTH, FORWARD
from ..workloads.local import NO_TERMS
from ..workloads.workload import NATIVE
from .cells import format_ratio, machine_note, markdown_table, milliseconds

__all__ = [
    "local_section",
    "local_table",
    "local_targets",
    "local_verdict",
    "maps_note",
    "maps_table",
]

FLOOR = """\
B=1, H=8, L={length}, d=64, float32. The unit is the floor: the share of all pairs that takes part,
times the time of plain SDPA over all of them in the same round. Where native computes a pair in
less time than SDPA does, it is below the floor. FlexAttention has the same pairs as a block mask,
and no backward on the CPU. In square brackets are multiples of plain SDPA over all pairs. Errors
are those of the last queries. Wanted of native are at most {plain:g} without terms and {shaw:g}
with Shaw's keys.

Measured on {machine} (`benchmarks/local.py`).
"""

MAPS = """\
Neighbourhoods of maps that move inward at the edges, with learned biases as NAT has them, against
the same floor: {maps}. FlexAttention reads the biases in its score function.

Measured on {machine}.
"""

GROWTH = """\
How many times as long a token, and a pair that takes part, takes at {long} tokens as at {short}
(native; the first tokens see fewer keys than the others, which counts at the shorter length).
Wanted: within 10 % of 1 for a pair.
"""

SHORT = """\
A window that hides nothing, (512, 512) at L=512, as a multiple of the same call without one; wanted
is at most 1.03.
"""

MEMORY = """\
The peak of a fresh process over forward and backward, without what the libraries take, as a
multiple of q, k, v, the output and the gradients of all four; wanted is at most 1.1.
"""

ROLLING = """\
`MultiheadAttention({width}, {heads})` with Shaw's keys and values and `window=({window}, 0)`
decodes {tokens} tokens one by one with a rolling cache; beside it stand the last tokens of each
part in a layer without a window. Microseconds a token (medians), and the most that the cache holds.
Measured on {machine}.
"""

_PLAIN, _SHAW = 1.35, 1.45


def local_targets(result: dict) -> list[tuple[str, float, float]]:
    """Of each target its name, its bound and what was measured."""
    found = [
        (
            f"{row['pattern']}: {row['terms']}: {row['pass']}",
            _PLAIN if row["terms"] == NO_TERMS else _SHAW,
            row["floor_ratio"]["median"],
        )
        for row in result.get("time", [])
        if row["contender"] == NATIVE
    ]
    found += [
        (f"growth: {row['pattern']}: {row['terms']}: {row['pass']}", 1.1, row["per_pair"]["median"])
        for row in result.get("growth", [])
    ]
    found += [
        (f"L={row['length']}: {row['terms']}: {row['pass']}", 1.03, row["ratio"]["median"])
        for row in result.get("short", [])
    ]
    found += [
        (f"memory: {row['pattern']}: {row['terms']}", 1.1, row["ratio"])
        for row in result.get("memory", [])
    ]
    return found


def local_verdict(result: dict) -> str:
    """Which of these targets are missed, a line each, and then how many there are."""
    targets = local_targets(result)
    missed = [
        f"missed: {name}: {value:.2f}, not {bound:g}"
        for name, bound, value in targets
        if round(value, 2) > bound
    ]
    return "\n".join([*missed, f"{len(targets)} targets of local attention, {len(missed)} missed"])


def local_table(result: dict) -> str:
    """Every pattern: multiples of the floor, and of plain SDPA over all pairs.

    Args:
        result: of `benchmarks.local`.
    """
    return _table(result["time"])


def maps_table(result: dict) -> str:
    """The same of the neighbourhoods of maps."""
    return _table(result["maps"])


def maps_note(result: dict) -> str:
    """The machine that measured these, and the commit."""
    return _note_of(result, "maps")


def _note_of(result: dict, part: str) -> str:
    """The machine that measured a part, and the commit."""
    # Older parts have none of their own, and are of the whole result's.
    own = result["machine"] | result.get("processors", {}).get(part, {})
    return machine_note(own | {"commit": result["commits"][part]})


def _sizes_of_maps(result: dict) -> str:
    sizes = {
        row["pattern"]: f"{row['pattern']}: B={row['batch']}, H={row['heads']}, d={row['width']}"
        for row in result["maps"]
    }
    return "; ".join(sizes.values())


def _table(measured: list[dict]) -> str:
    passes: dict[tuple[str, str, str], dict[str, dict]] = {}
    for row in measured:
        key = row["pattern"], row["terms"], row["contender"]
        passes.setdefault(key, {})[row["pass"]] = row
    rows = [
        [*key, *(_beside_floor(found.get(name)) for name in (FORWARD, BOTH)),
         milliseconds(found[FORWARD]["seconds"]["median"]), f"{found[FORWARD]['error']:.0e}"]
        for key, found in passes.items()
    ]  # fmt: skip
    head = ["pairs", "terms", "computed by", FORWARD, BOTH, "forward, ms", "error"]
    return markdown_table(head, rows, 3)


def _beside_floor(row: dict | None) -> str:
    if row is None:
        return "not measured"
    floor, plain = row["floor_ratio"], row["ratio"]["median"]
    ends = " to ".join(format_ratio(floor[name]) for name in ("p20", "p80"))
    return f"{format_ratio(floor['median'])} ({ends}) [{plain:.3f}]"


def local_section(result: dict) -> str:
    """Everything that was measured of local attention."""
    growth, short, rolling = result["growth"], result["short"], result["rolling"]
    parts = [
        FLOOR.format(
            length=result["length"], plain=_PLAIN, shaw=_SHAW,
            machine=machine_note(result["machine"]),
        ),
        local_table(result),
        MAPS.format(maps=_sizes_of_maps(result), machine=maps_note(result)),
        maps_table(result),
        GROWTH.format(short=growth[0]["short"], long=growth[0]["long"]),
        markdown_table(
            ["pairs", "terms", "pass", "a token", "a pair"],
            [[row["pattern"], row["terms"], row["pass"], format_ratio(row["per_token"]["median"]),
              format_ratio(row["per_pair"]["median"])] for row in growth], 3,
        ),
        SHORT,
        markdown_table(
            ["terms", "pass", "ratio"],
            [[row["terms"], row["pass"], f"{row['ratio']['median']:.3f}"] for row in short], 2,
        ),
        MEMORY,
        markdown_table(
            ["pairs", "terms", "peak, MiB", "tensors, MiB", "ratio"],
            [[row["pattern"], row["terms"], f"{row['peak_mib']:.0f}", f"{row['tensors_mib']:.0f}",
              format_ratio(row["ratio"])] for row in result["memory"]], 2,
        ),
        ROLLING.format(tokens=result["cached"], machine=_note_of(result, "rolling"), **rolling),
        _rolling_table(rolling),
    ]  # fmt: skip
    return "\n\n".join(part.strip() for part in parts)


def _rolling_table(rolling: dict) -> str:
    by_tokens: dict[int, list[str]] = {}
    for row in rolling["rows"]:
        by_tokens.setdefault(row["tokens"], [str(row["tokens"])]).extend(
            [f"{1e6 * row['seconds']['median']:.0f}", f"{row['most_held_bytes'] / 2**20:.1f}"]
        )
    layers = list(dict.fromkeys(row["layer"] for row in rolling["rows"]))
    head = [cell for layer in layers for cell in (f"{layer}, us a token", "MiB held")]
    return markdown_table(["up to token", *head], list(by_tokens.values()), 0)
