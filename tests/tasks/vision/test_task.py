"""The loss of pixel classifiers."""

import torch

from relpos_tasks.vision.canvas import BLANK
from relpos_tasks.vision.task import PixelTask
from relpos_tasks.vision.train import build
from tests.tasks.vision.small import SMALL


def test_the_loss_is_over_ink_pixels_alone():
    model = build("none", SMALL).eval()
    task = PixelTask(model, SMALL.training)
    images = torch.rand(2, 5, 6, generator=torch.Generator().manual_seed(0))
    labels = torch.full((2, 5, 6), BLANK)
    labels[0, 1, 2], labels[1, 4, 5] = 7, 3
    with torch.no_grad():
        nats, scored = task.loss((images, labels))
        logits = model(images).log_softmax(1)
    assert scored == 2
    torch.testing.assert_close(nats, -logits[0, 7, 1, 2] - logits[1, 3, 4, 5])
    assert task.count_units((images, labels)) == 60


def test_without_ink_the_loss_is_nothing():
    task = PixelTask(build("none", SMALL), SMALL.training)
    nats, scored = task.loss((torch.zeros(1, 4, 4), torch.full((1, 4, 4), BLANK)))
    assert scored == 0
    assert float(nats.detach()) == 0
