"""The time of a training over all its runs, and whether any of them had busy neighbours."""

import pytest
import torch

from relpos_tasks.cpu_use import CpuReading
from relpos_tasks.training import clock as clock_module
from relpos_tasks.training.clock import TrainingClock, TrainingTime


@pytest.fixture
def run(monkeypatch):
    """Lets a clock run for ten seconds, beside programs that use so many of two cores."""

    def ten_seconds(clock, others):
        known = others is not None
        readings = [
            CpuReading(0.0, 0.0, 0.0, 2) if known else None,
            CpuReading(10.0, 10.0 * (1 + (others or 0)), 10.0, 2) if known else None,
        ]
        with monkeypatch.context() as patched:
            patched.setattr(torch, "get_num_threads", lambda: 2)
            for moment, reading, step in zip((0.0, 10.0), readings, "ab", strict=True):
                patched.setattr(clock_module.time, "perf_counter", lambda now=moment: now)
                patched.setattr(clock_module, "read_cpu", lambda found=reading: found)
                clock.start() if step == "a" else clock.stop()
        return clock.time

    return ten_seconds


def test_a_quiet_run(run):
    assert run(TrainingClock(), 0.0) == TrainingTime(10.0, 0.0, False)


def test_a_run_beside_a_busy_process(run):
    assert run(TrainingClock(), 1.0) == TrainingTime(10.0, 1.0, True)


def test_where_the_system_does_not_say_the_time_is_known_and_the_rest_is_not(run):
    assert run(TrainingClock(), None) == TrainingTime(10.0, None, False)


def test_runs_of_one_training_add_up_and_one_busy_run_marks_them(run):
    clock = TrainingClock()
    run(clock, 1.0)
    resumed = TrainingClock()
    resumed.load_state_dict(clock.state_dict())
    assert run(resumed, 0.0) == TrainingTime(20.0, 0.5, True)


def test_before_it_starts_nothing_was_measured():
    assert TrainingClock().time == TrainingTime(0.0, 0.0, False)
