"""`PeakMemory`: sees what was held meanwhile, not before, and goes on from a checkpoint."""

import torch

from relpos_tasks.training.peak_memory import PeakMemory

CPU = torch.device("cpu")
MIB = 2**20 // 4


def test_the_peak_is_that_since_the_start():
    large = torch.ones(300 * MIB)
    del large
    memory = PeakMemory()
    memory.start(CPU)
    memory.stop()
    before = memory.mib
    held = torch.ones(200 * MIB)
    del held
    memory.stop()
    assert before is not None
    assert 150 < memory.mib - before < 250


def test_there_is_no_figure_where_an_earlier_peak_stays(monkeypatch, tmp_path):
    monkeypatch.setattr("relpos_tasks.training.peak_memory._CLEAR", tmp_path / "none" / "file")
    memory = PeakMemory()
    memory.start(CPU)
    memory.stop()
    assert memory.mib is None


def test_a_peak_of_an_earlier_run_counts():
    memory = PeakMemory()
    assert memory.state_dict() == {"mib": None}
    memory.load_state_dict({"mib": 1e9})
    memory.start(CPU)
    memory.stop()
    assert memory.state_dict() == {"mib": 1e9}
