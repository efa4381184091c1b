"""How much of the processor other programs used while something was timed."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch

__all__ = ["CpuReading", "is_crowded", "read_cpu", "used_by_others"]

_STAT = Path("/proc/stat")
# Of a core; what the system itself does beside a program is less.
_SPARE = 0.1


@dataclass(frozen=True)
class CpuReading:
    """What was used up to a moment.

    Args:
        elapsed: seconds by the clock.
        used: seconds that the cores of this process worked for any program, or were taken by the
            hypervisor; summed over the cores.
        own: seconds that they worked for this process.
        cores: how many cores this process may use.
    """

    elapsed: float
    used: float
    own: float
    cores: int


def read_cpu() -> CpuReading | None:
    """What was used up to now; None where the system does not say (it is not Linux)."""
    try:
        text = _STAT.read_text()
        cores = os.sched_getaffinity(0)
        ticks = os.sysconf("SC_CLK_TCK")
    except (AttributeError, OSError, ValueError):
        return None
    return CpuReading(
        elapsed=time.perf_counter(),
        used=_busy_ticks(text, cores) / ticks,
        own=time.process_time(),
        cores=len(cores),
    )


def used_by_others(before: CpuReading, after: CpuReading, *, processes: int = 1) -> float:
    """How many cores other programs used on average between two readings.

    Args:
        before: the earlier reading.
        after: the later one.
        processes: how many processes work on the same job, each as much as this one.

    Returns:
        Cores, at least 0.

    >>> before, after = CpuReading(0.0, 10.0, 5.0, 2), CpuReading(4.0, 17.0, 8.0, 2)
    >>> used_by_others(before, after)
    1.0
    """
    elapsed = after.elapsed - before.elapsed
    others = after.used - before.used - processes * (after.own - before.own)
    return max(0.0, others / elapsed) if elapsed > 0 else 0.0


def is_crowded(others: float, *, cores: int, threads: int | None = None) -> bool:
    """Whether other programs wanted cores that this one's threads wanted too.

    Args:
        others: cores that other programs used.
        cores: how many there are.
        threads: of this program; None takes torch's.

    >>> is_crowded(1.0, cores=2, threads=2), is_crowded(1.0, cores=16, threads=2)
    (True, False)
    """
    wanted = torch.get_num_threads() if threads is None else threads
    return others + min(wanted, cores) > cores + _SPARE


def _busy_ticks(stat: str, cores: set[int]) -> int:
    """Ticks in which these cores did not idle, out of the text of `/proc/stat`."""
    total = 0
    for line in stat.splitlines():
        name, *fields = line.split()
        if name.removeprefix("cpu").isdigit() and int(name.removeprefix("cpu")) in cores:
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields[:8])
            total += user + nice + system + irq + softirq + steal
    return total
