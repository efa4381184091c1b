"""Where trained models are measured."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from relpos_tasks.training import measuring
from relpos_tasks.training.devices import Devices
from relpos_tasks.training.measuring import on_measuring_device


class Moved(nn.Linear):
    """Says where it was moved, and stays where it is."""

    def __init__(self) -> None:
        super().__init__(2, 3)
        self.devices: list[str] = []

    def to(self, device: torch.device | str) -> Moved:  # type: ignore[override]
        self.devices.append(str(device))
        return self


@pytest.mark.parametrize(
    ("trained", "measured"), [("cuda:1", "cuda:1"), ("mps:0", "cpu"), ("cpu", "cpu")]
)
def test_on_a_gpu_that_trained_them_then_on_the_cpu(
    trained: str, measured: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy = SimpleNamespace(root_device=torch.device(trained))
    monkeypatch.setattr(
        measuring, "trainer_on", lambda *_, **__: SimpleNamespace(strategy=strategy)
    )
    models = [Moved(), Moved()]
    with on_measuring_device((model for model in models), Devices()):
        assert [model.devices for model in models] == [[measured]] * 2
    assert [model.devices for model in models] == [[measured, "cpu"]] * 2


def test_back_on_the_cpu_where_a_measure_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    strategy = SimpleNamespace(root_device=torch.device("cuda", 0))
    monkeypatch.setattr(
        measuring, "trainer_on", lambda *_, **__: SimpleNamespace(strategy=strategy)
    )
    model = Moved()
    with pytest.raises(ValueError, match="no finite"), on_measuring_device([model], Devices()):
        raise ValueError("no finite numbers")
    assert model.devices == ["cuda:0", "cpu"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_as_lightning_chooses_a_gpu() -> None:
    model = nn.Linear(2, 3)
    with on_measuring_device([model], Devices("auto")):
        assert model.weight.device == torch.device("cuda", 0)
    assert model.weight.device.type == "cpu"


def test_a_cpu_that_was_asked_for() -> None:
    model = nn.Linear(2, 3)
    with on_measuring_device([model], Devices("cpu")):
        assert model.weight.device.type == "cpu"
