"""Weights averaged while training: what is measured, written and returned, and to the bit."""

import json
from dataclasses import asdict
from itertools import pairwise

import pytest
import torch
from torch import nn

from relpos_tasks.models import DecoderLM
from relpos_tasks.music.train import build, check_training, train_position
from relpos_tasks.training.averaging import moving_average
from relpos_tasks.training.checkpoint import ABOUT, WEIGHTS, load
from relpos_tasks.training.devices import Devices
from relpos_tasks.training.language_model import LanguageModelTask
from relpos_tasks.training.run_folder import RESUME
from relpos_tasks.training.settings import TrainingError, TrainingSettings
from tests.tasks.small import CPU, SMALL, small

AVERAGED = small(averaging=0.6)
MIXED = Devices("cpu", "1", "bf16-mixed")


def same(one, other) -> bool:
    return all(
        torch.equal(a, b)
        for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    )


def numbers(model) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten().double() for parameter in model.parameters()])


@pytest.fixture
def weights(monkeypatch):
    """Collects the plain weights before each step that is trained."""
    training_step, seen = LanguageModelTask.training_step, []

    def watched(self, batch, index):
        seen.append(numbers(self.model))
        return training_step(self, batch, index)

    monkeypatch.setattr(LanguageModelTask, "training_step", watched)
    return seen


@pytest.fixture
def stop_at(monkeypatch):
    """Ctrl-C as soon as a step, or a validation, begins; None lets all run."""
    loss, training_step = LanguageModelTask.loss, LanguageModelTask.training_step

    def stop(step):
        def interrupted_step(self, batch, index):
            if self.global_step == step:
                raise KeyboardInterrupt
            return training_step(self, batch, index)

        def interrupted_loss(self, batch):
            if step == "validation" and not self.training:
                raise KeyboardInterrupt
            return loss(self, batch)

        monkeypatch.setattr(LanguageModelTask, "training_step", interrupted_step)
        monkeypatch.setattr(LanguageModelTask, "loss", interrupted_loss)

    return stop


def averaged(seen, *, decay):
    """The formula, in float64, of the weights after each step."""
    average = seen[0]
    for n, now in enumerate(seen[1:], 1):
        kept = min(decay, (n + 1) / (n + 10))
        average = kept * average + (1 - kept) * now
    return average


@pytest.mark.parametrize("decay", [0.0, 0.3, 0.999])
def test_the_average_is_that_of_the_formula(decay):
    generator = torch.Generator().manual_seed(0)
    model = nn.Linear(5, 3)
    average, seen = moving_average(model, decay), []
    for _ in range(12):
        with torch.no_grad():
            model.weight.copy_(torch.randn(3, 5, generator=generator))
        average.update_parameters(model)
        seen.append(numbers(model))
    torch.testing.assert_close(
        numbers(average.module), averaged(seen, decay=decay), rtol=1e-5, atol=1e-6
    )
    assert not any(parameter.requires_grad for parameter in average.parameters())


def test_buffers_are_copied_and_not_averaged():
    model = nn.BatchNorm1d(2)
    average = moving_average(model, 0.9)
    for scale in (1.0, 5.0, 9.0):
        model(scale * torch.arange(8.0).view(4, 2))
        average.update_parameters(model)
    for (name, buffer), copied in zip(model.named_buffers(), average.module.buffers(), strict=True):
        assert torch.equal(buffer, copied), name


def test_the_average_of_the_weights_is_returned_and_training_goes_on_from_the_plain_ones(
    source, tmp_path, weights
):
    plain = train_position("huang", SMALL, source, folder=tmp_path / "plain", devices=CPU)
    of_plain = weights.copy()
    weights.clear()
    model = train_position("huang", AVERAGED, source, folder=tmp_path / "b", devices=CPU)
    assert len(weights) == SMALL.training.steps
    assert all(torch.equal(one, other) for one, other in zip(of_plain, weights, strict=True))
    assert all(not torch.equal(one, other) for one, other in pairwise(weights))
    expected = averaged([*weights[1:], numbers(plain.model)], decay=0.6)
    torch.testing.assert_close(numbers(model.model), expected, rtol=1e-5, atol=1e-6)
    assert model.parameters == plain.parameters
    assert model.curves["train"] == plain.curves["train"]


def test_the_average_is_what_is_validated_and_written(source, tmp_path):
    settings = small(averaging=0.6, steps=4)
    trained = train_position("huang", settings, source, folder=tmp_path, devices=CPU)
    assert same(load(tmp_path, DecoderLM).model, trained.model)
    task = LanguageModelTask(trained.model, SMALL.training)
    data = source.data(settings)
    with torch.no_grad():
        nats, scored = map(sum, zip(*map(task.loss, data.val_dataloader()), strict=True))
    ((step, valid),) = trained.curves["valid"]
    assert step == 4
    assert valid == pytest.approx(float(nats / scored), rel=1e-6)
    plain = train_position("huang", small(steps=4), source, folder=tmp_path / "p", devices=CPU)
    assert plain.curves["valid"] != trained.curves["valid"]


def test_a_finished_run_is_read_with_its_average(source, tmp_path):
    first = train_position("huang", AVERAGED, source, folder=tmp_path, devices=CPU)
    written = (tmp_path / WEIGHTS).read_bytes()
    (tmp_path / WEIGHTS).unlink()
    again = train_position("huang", AVERAGED, source, folder=tmp_path, devices=CPU)
    assert same(first.model, again.model)
    assert not any(module.training for module in again.model.modules())
    assert (tmp_path / WEIGHTS).read_bytes() == written


@pytest.mark.parametrize("devices", [CPU, MIXED], ids=lambda devices: devices.precision)
def test_a_stopped_and_resumed_run_ends_as_one_never_stopped(source, tmp_path, stop_at, devices):
    whole = train_position("huang", AVERAGED, source, folder=tmp_path / "a", devices=devices)
    for at in (1, 3, "validation", 5):
        stop_at(at)
        with pytest.raises(KeyboardInterrupt):
            train_position("huang", AVERAGED, source, folder=tmp_path / "b", devices=devices)
    kept = torch.load(tmp_path / "b" / RESUME, weights_only=True)["state_dict"]
    for name, tensor in load(tmp_path / "b", DecoderLM).model.state_dict().items():
        assert torch.equal(tensor, kept[f"average.module.{name}"])
        assert not torch.equal(tensor, kept[f"model.{name}"])
    stop_at(None)
    resumed = train_position("huang", AVERAGED, source, folder=tmp_path / "b", devices=devices)
    assert same(whole.model, resumed.model)
    assert whole.curves == resumed.curves
    assert {parameter.dtype for parameter in resumed.model.parameters()} == {torch.float32}


def test_a_run_of_before_there_were_averages_goes_on(source, tmp_path, stop_at):
    whole = train_position("huang", SMALL, source, folder=tmp_path / "a", devices=CPU)
    stop_at(3)
    with pytest.raises(KeyboardInterrupt):
        train_position("huang", SMALL, source, folder=tmp_path / "b", devices=CPU)
    stop_at(None)
    about = json.loads((tmp_path / "b" / ABOUT).read_text())
    assert about["settings"]["training"].pop("averaging") is None
    (tmp_path / "b" / ABOUT).write_text(json.dumps(about))
    kept = torch.load(tmp_path / "b" / RESUME, weights_only=True)
    torch.save(kept | {ABOUT: json.dumps(about)}, tmp_path / "b" / RESUME)
    check_training(SMALL, folder=tmp_path / "b", devices=CPU)
    resumed = train_position("huang", SMALL, source, folder=tmp_path / "b", devices=CPU)
    assert same(whole.model, resumed.model)


def test_another_average_in_the_same_folder_is_refused(source, tmp_path):
    train_position("none", small(steps=2), source, folder=tmp_path, devices=CPU)
    settings = small(steps=2, averaging=0.6)
    words = r"other settings \(settings.training.averaging was None, now 0.6\)"
    with pytest.raises(TrainingError, match=words):
        check_training(settings, folder=tmp_path, devices=CPU)
    with pytest.raises(TrainingError, match=words):
        train_position("none", settings, source, folder=tmp_path, devices=CPU)


@pytest.mark.parametrize("precision", ["bf16-true", "16-true"])
def test_weights_of_16_bits_are_not_averaged(source, tmp_path, precision):
    devices = Devices("cpu", "1", precision)
    words = f"32 bits or more where they are averaged, got '{precision}'; try .*-mixed$"
    with pytest.raises(TrainingError, match=words):
        check_training(AVERAGED, folder=tmp_path, devices=devices)
    with pytest.raises(TrainingError, match=words):
        train_position("none", AVERAGED, source, folder=tmp_path, devices=devices)
    assert not list(tmp_path.iterdir())
    check_training(SMALL, folder=tmp_path, devices=devices)


@pytest.mark.parametrize("decay", [1.0, -0.1, float("nan")])
def test_a_decay_out_of_range_is_refused(decay):
    with pytest.raises(ValueError, match="TrainingSettings: averaging must be in 0 <= averaging"):
        TrainingSettings(averaging=decay)


def test_the_optimiser_is_given_the_plain_weights_alone(source):
    model = build("huang", SMALL, source.vocabulary)
    task = LanguageModelTask(model, AVERAGED.training)
    groups = task.configure_optimizers()["optimizer"].param_groups
    given = {id(parameter) for group in groups for parameter in group["params"]}
    assert given == {id(parameter) for parameter in model.parameters()}
    assert asdict(AVERAGED.training)["averaging"] == 0.6
