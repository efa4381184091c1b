"""Gradients of a batch that devices share: as of the whole, however unequal the parts are."""

import pytest
import torch

from relpos_tasks.models import DecoderConfig, DecoderLM
from relpos_tasks.training.language_model import IGNORE, LanguageModelTask
from relpos_tasks.training.settings import TrainingSettings


def gradients(task, batch):
    task.model.zero_grad()
    task.training_step(batch, 0).backward()
    return [parameter.grad.clone() for parameter in task.model.parameters()]


@pytest.mark.parametrize("scored", [(12, 12), (12, 3), (12, 0)])
def test_unequal_parts_of_a_batch_count_by_their_targets(scored, monkeypatch):
    torch.manual_seed(0)
    model = DecoderLM(DecoderConfig(9, width=8, layers=1, heads=2, dropout=0.0)).double()
    task = LanguageModelTask(model, TrainingSettings(steps=1))
    monkeypatch.setattr(task, "log", lambda *_, **__: None)
    inputs, targets = torch.randint(9, (2, 2, 6))
    for row, count in zip(targets, (s // 2 for s in scored), strict=True):
        row[count:] = IGNORE
    whole = gradients(task, (inputs, targets))

    # Each of two devices has a row, and learns how many targets there are in all.
    def all_reduce(counted):
        counted.fill_(int((targets != IGNORE).sum()))

    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    parts = [gradients(task, (inputs[n : n + 1], targets[n : n + 1])) for n in (0, 1)]
    for one, other, expected in zip(*parts, whole, strict=True):
        torch.testing.assert_close((one + other) / 2, expected)
