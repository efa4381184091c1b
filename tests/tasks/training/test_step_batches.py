"""Batches of any task: functions of seed and step, resumable, shared by devices."""

import lightning
import numpy as np
import pytest
import torch

from relpos_tasks.training.step_batches import StepBatches, device_share


class Draws(StepBatches):
    def example(self, rng):
        return rng.integers(0, 1000, 3), rng.random(2)


def draws(**changed):
    return Draws(**({"batch": 4, "steps": 5, "seed": 1} | changed))


def equal(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_batch_is_a_function_of_seed_and_step():
    assert len(draws()) == 5
    assert all(equal(draws().at(step), batch) for step, batch in enumerate(draws()))
    assert not equal(draws().at(0), draws().at(1))
    assert not equal(draws().at(0), draws(seed=2).at(0))
    assert [tuple(part.shape) for part in draws().at(0)] == [(4, 3), (4, 2)]


def test_it_goes_on_where_it_was_stopped_and_then_begins_anew():
    stopped, resumed = draws(), draws()
    batches = iter(stopped)
    next(batches), next(batches)
    resumed.load_state_dict(stopped.state_dict())
    assert all(equal(draws().at(2 + n), batch) for n, batch in enumerate(resumed))
    assert len(list(resumed)) == 5


def test_devices_share_a_batch():
    whole = draws().at(3)[0]
    shares = [draws(share=(rank, 2)).at(3)[0] for rank in (0, 1)]
    assert torch.equal(torch.stack(shares, dim=1).flatten(0, 1), whole)


def test_the_share_is_that_of_the_trainers_device():
    data = lightning.LightningDataModule()
    assert device_share(data, batch=3) == (0, 1)
    shared = {"distributed_sampler_kwargs": {"num_replicas": 2, "rank": 1}}
    data.trainer = type("Trainer", (), shared)()  # type: ignore
    assert device_share(data, batch=4) == (1, 2)
    with pytest.raises(ValueError, match=r"Data.*: batch must be a multiple of the devices \(2\)"):
        device_share(data, batch=3)


def test_a_larger_batch_begins_with_the_smaller_one():
    assert equal(draws().at(0), [part[:4] for part in draws(batch=6).at(0)])
    assert np.array_equal(draws(steps=9).at(4)[0], draws().at(4)[0])
