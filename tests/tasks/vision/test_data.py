"""Batches of canvases: functions of seed and step, shared by devices."""

import pytest
import torch

from relpos_tasks.vision.canvas import BLANK, TRAINING
from relpos_tasks.vision.data import CanvasBatches, CanvasData


def batches(digits, **changed):
    options = {"batch": 4, "steps": 6, "seed": 1} | changed
    return CanvasBatches(digits.train, **options)


def equal(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_batch_is_a_function_of_seed_and_step(digits):
    one, two = batches(digits), batches(digits)
    assert equal(one.at(5), two.at(5))
    assert all(equal(one.at(step), batch) for step, batch in enumerate(two))
    assert not equal(one.at(5), one.at(4))
    assert not equal(one.at(5), batches(digits, seed=2).at(5))


def test_a_resumed_order_goes_on_behind_the_last_batch(digits):
    whole, stopped, resumed = list(batches(digits)), batches(digits), batches(digits)
    given = iter(stopped)
    for _ in range(2):
        next(given)
    resumed.load_state_dict(stopped.state_dict())
    rest = list(resumed)
    assert len(rest) == 4
    assert all(equal(a, b) for a, b in zip(whole[2:], rest, strict=True))


def test_a_batch_has_images_and_labels_of_training_canvases(digits):
    images, labels = batches(digits, batch=30).at(0)
    assert images.shape == labels.shape == (30, *TRAINING.shape)
    assert (images.dtype, labels.dtype) == (torch.float32, torch.int64)
    assert ((labels != BLANK).flatten(1).sum(1) > 0).all()
    assert set(labels.unique().tolist()) == {BLANK, *range(10)}


def test_watched_canvases_are_of_the_validation_images(digits):
    data = CanvasData(digits, batch=2, steps=3, seed=0, watched=7)
    (images, labels), *others = data.val_dataloader()
    assert not others
    assert len(images) == len(labels) == 7
    again = CanvasData(digits, batch=4, steps=9, seed=5, watched=7).val_dataloader()
    assert equal((images, labels), next(iter(again)))


def test_a_batch_that_the_devices_cannot_share_is_refused(digits):
    class TwoDevices:
        @property
        def distributed_sampler_kwargs(self):
            return {"num_replicas": 2, "rank": 0}

    data = CanvasData(digits, batch=3, steps=3, seed=0, watched=1)
    data.trainer = TwoDevices()  # type: ignore[assignment]
    with pytest.raises(ValueError, match=r"batch must be a multiple of the devices \(2\), got 3"):
        data.train_dataloader()
