"""Other programs' share of the processor, read from texts of a quiet and of a busy machine."""

import os
import time

import pytest

from relpos_tasks import cpu_use
from relpos_tasks.cpu_use import CpuReading, is_crowded, read_cpu, used_by_others

STAT = """\
cpu  {0} 0 {1} 9 9 0 0 {2} 0 0
cpu0 {0} 0 {1} 9 9 0 0 {2} 0 0
cpu1 0 0 0 9 9 0 0 0 0 0
cpu7 5000 0 0 9 9 0 0 0 0 0
intr 1 2 3
"""


@pytest.fixture
def readings(tmp_path, monkeypatch):
    """Readings of two cores: `(user, system, stolen)` seconds of all programs, and own ones."""
    monkeypatch.setattr(cpu_use, "_STAT", tmp_path / "stat")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr(os, "sysconf", lambda _: 100, raising=False)

    def read(elapsed, seconds, own):
        (tmp_path / "stat").write_text(STAT.format(*(100 * value for value in seconds)))
        with monkeypatch.context() as patched:
            patched.setattr(time, "perf_counter", lambda: elapsed)
            patched.setattr(time, "process_time", lambda: own)
            found = read_cpu()
        assert found is not None
        return found

    return read


@pytest.mark.parametrize(
    ("used", "own", "others", "crowded"),
    [
        ((18, 1, 0), 19.0, 0.0, False),
        ((18, 2, 0), 19.5, 0.05, False),
        ((19, 1, 0), 11.0, 0.9, True),
        # What the hypervisor takes is gone as well.
        ((10, 0, 8), 10.0, 0.8, True),
        # Clocks of different steps never make it negative.
        ((18, 0, 0), 18.5, 0.0, False),
    ],
    ids=["quiet", "nearly-quiet", "busy", "stolen", "rounding"],
)
def test_a_busy_and_a_quiet_machine_are_told_apart(readings, used, own, others, crowded):
    before = readings(5.0, (100, 20, 3), 7.0)
    after = readings(15.0, tuple(map(sum, zip((100, 20, 3), used, strict=True))), 7.0 + own)
    found = used_by_others(before, after)
    assert found == pytest.approx(others)
    assert is_crowded(found, cores=after.cores, threads=2) is crowded


def test_cores_that_this_process_may_not_use_do_not_count(readings):
    assert readings(0.0, (3, 0, 0), 0.0).used == 3.0


def test_processes_of_the_same_job_are_no_others():
    before, after = CpuReading(0.0, 0.0, 0.0, 4), CpuReading(10.0, 20.0, 10.0, 4)
    assert used_by_others(before, after) == 1.0
    assert used_by_others(before, after, processes=2) == 0.0


def test_free_cores_are_enough_for_others():
    assert not is_crowded(6.0, cores=8, threads=2)
    assert is_crowded(6.5, cores=8, threads=2)
    # More threads than cores want no more than the cores.
    assert not is_crowded(0.05, cores=2, threads=8)


def test_where_the_system_does_not_say_nothing_is_known(tmp_path, monkeypatch):
    monkeypatch.setattr(cpu_use, "_STAT", tmp_path / "missing")
    assert read_cpu() is None
