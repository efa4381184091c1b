"""Which weights decay, and which Muon moves and which AdamW, each as it would alone, to the bit."""

import copy
import re
from dataclasses import replace

import pytest
import torch
from torch import nn

from relpos_tasks.models.map_positions import MAP_POSITIONS
from relpos_tasks.models.positions import POSITIONS
from relpos_tasks.music.train import build, check_training, train_position
from relpos_tasks.training.language_model import LanguageModelTask
from relpos_tasks.training.optimizers import MuonAndAdamW, optimizer_of
from relpos_tasks.training.settings import TrainingError, TrainingSettings
from relpos_tasks.vision import settings as vision_settings
from relpos_tasks.vision.train import build as build_classifier
from tests.tasks.small import CPU, SMALL, small

MUON = small(muon_learning_rate=6e-3)

# What a scheme multiplies inputs or sinusoids by; all else that it learns is looked up or added.
PROJECTIONS = {
    "gated": {"gates"},
    "transformer-xl": {"linear_pos"},
    "deberta": {"key_proj", "query_proj"},
    "relative-logits": {"r_proj"},
    "continuous": {"cpb_mlp.0", "cpb_mlp.2"},
}
LAYERS = {"attention.in_proj_weight", "attention.out_proj.weight", "mlp.0.weight", "mlp.2.weight"}


def names_in(group, model) -> set[str]:
    name_of = {id(parameter): name for name, parameter in model.named_parameters()}
    return {name_of[id(parameter)] for parameter in group["params"]}


def decaying(model, training) -> set[str]:
    """The names of what decays, those in a block without its number."""
    decayed, spared = optimizer_of(model, training).param_groups
    assert (decayed["weight_decay"], spared["weight_decay"]) == (training.weight_decay, 0)
    return {re.sub(r"^blocks\.\d+\.", "", name) for name in names_in(decayed, model)}


@pytest.mark.parametrize("position", POSITIONS)
def test_layers_and_projections_decay_and_no_table_of_a_scheme(source, position):
    own = {f"attention.position.{name}.weight" for name in PROJECTIONS.get(position, ())}
    model = build(position, SMALL, source.vocabulary)
    assert decaying(model, SMALL.training) == LAYERS | {"head.weight"} | own


@pytest.mark.parametrize("position", MAP_POSITIONS)
def test_of_schemes_for_maps_projections_alone_decay(position):
    settings = vision_settings.preset("tiny")
    model = build_classifier(position, settings)
    own = {f"attention.position.{name}.weight" for name in PROJECTIONS.get(position, ())}
    assert own == {n for n in decaying(model, settings.training) if "position" in n}


def test_embeddings_that_are_the_output_too_do_not_decay():
    model = nn.Sequential(nn.Embedding(5, 6), nn.Linear(6, 5, bias=False))
    model[1].weight = model[0].weight
    decayed, spared = optimizer_of(model, SMALL.training).param_groups
    assert not decayed["params"]
    assert spared["params"] == [model[0].weight]


def test_muon_moves_matrices_and_adamw_the_rest(source):
    model = build("huang", MUON, source.vocabulary)
    optimizer = optimizer_of(model, MUON.training)
    muon, convolutions, rest = (names_in(group, model) for group in optimizer.param_groups)
    assert any("in_proj_weight" in name for name in muon)
    assert all(model.get_parameter(name).ndim == 2 for name in muon)
    assert not convolutions
    assert any("embed" in name for name in rest)
    assert "blocks.0.attention.position.keys" in rest
    assert muon | rest == {name for name, _ in model.named_parameters()}
    assert not muon & rest
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.1, 0.0]
    assert [group["lr"] for group in optimizer.param_groups] == [6e-3, 4e-3, 4e-3]


def test_filters_of_a_convolution_decay_under_adamw():
    settings = vision_settings.preset("tiny")
    training = replace(settings.training, muon_learning_rate=1e-2)
    model = build_classifier("grid", settings)
    _, convolutions, _ = optimizer_of(model, training).param_groups
    assert convolutions["params"]
    assert all(parameter.ndim == 4 for parameter in convolutions["params"])
    assert convolutions["weight_decay"] == training.weight_decay


def gradients(model: nn.Module, step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def test_each_part_steps_as_it_would_alone():
    model = nn.Sequential(nn.Embedding(5, 6), nn.Linear(6, 4))
    alone = copy.deepcopy(model)
    settings = TrainingSettings(learning_rate=3e-3, muon_learning_rate=2e-2, weight_decay=0.3)
    optimizer = optimizer_of(model, settings)
    parts = [
        torch.optim.Muon(
            [alone[1].weight], lr=2e-2, weight_decay=0.3, adjust_lr_fn="match_rms_adamw"
        ),
        torch.optim.AdamW(
            [alone[0].weight, alone[1].bias], lr=3e-3, weight_decay=0.0, betas=(0.9, 0.98)
        ),
    ]
    for step in range(3):
        gradients(model, step)
        gradients(alone, step)
        optimizer.step()
        for part in parts:
            part.step()
    for one, other in zip(model.parameters(), alone.parameters(), strict=True):
        assert torch.equal(one, other)


def test_without_muon_everything_is_adamws(source):
    model = build("huang", SMALL, source.vocabulary)
    optimizer = optimizer_of(model, SMALL.training)
    assert isinstance(optimizer, torch.optim.AdamW)
    decayed, rest = (names_in(group, model) for group in optimizer.param_groups)
    assert decayed | rest == {name for name, _ in model.named_parameters()}


def test_its_state_read_back_goes_on_to_the_bit():
    model = nn.Sequential(nn.Embedding(5, 6), nn.Linear(6, 4))
    settings = TrainingSettings(muon_learning_rate=2e-2)
    optimizer = optimizer_of(model, settings)
    for step in range(2):
        gradients(model, step)
        optimizer.step()
    copied = copy.deepcopy(model)
    again = optimizer_of(copied, settings)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for one, of in ((model, optimizer), (copied, again)):
        gradients(one, 2)
        # A schedule sets the rates of the groups that it sees.
        for group in of.param_groups:
            group["lr"] *= 0.5
        of.step()
    for one, other in zip(model.parameters(), copied.parameters(), strict=True):
        assert torch.equal(one, other)
    assert len(again.state) == 3


def test_a_copy_of_it_steps_alike():
    model = nn.Sequential(nn.Embedding(5, 6), nn.Linear(6, 4))
    optimizer = optimizer_of(model, TrainingSettings(muon_learning_rate=2e-2))
    gradients(model, 0)
    optimizer.step()
    copied, again = copy.deepcopy((model, optimizer))
    for one, of in ((model, optimizer), (copied, again)):
        gradients(one, 1)
        of.step()
    for one, other in zip(model.parameters(), copied.parameters(), strict=True):
        assert one is not other
        assert torch.equal(one, other)


def test_a_closure_computes_the_gradients_and_its_loss_is_returned():
    weight = nn.Parameter(torch.ones(2, 2))
    optimizer = MuonAndAdamW(
        [weight], [{"params": []}], muon_learning_rate=0.1, learning_rate=0.1, weight_decay=0.0
    )

    def closure():
        loss = (weight * torch.eye(2)).sum()
        loss.backward()
        return loss

    with torch.no_grad():
        assert float(optimizer.step(closure)) == 2
    assert not torch.equal(weight, torch.ones(2, 2))


def test_a_stopped_training_ends_as_one_that_was_not(source, tmp_path, monkeypatch):
    whole = train_position("huang", MUON, source, folder=tmp_path / "a", devices=CPU)
    plain = train_position("huang", SMALL, source, folder=tmp_path / "c", devices=CPU)
    training_step = LanguageModelTask.training_step

    def stopped(self, batch, index):
        if self.global_step == 3:
            raise KeyboardInterrupt
        return training_step(self, batch, index)

    monkeypatch.setattr(LanguageModelTask, "training_step", stopped)
    with pytest.raises(KeyboardInterrupt):
        train_position("huang", MUON, source, folder=tmp_path / "b", devices=CPU)
    monkeypatch.undo()
    resumed = train_position("huang", MUON, source, folder=tmp_path / "b", devices=CPU)
    weights = [list(found.model.parameters()) for found in (whole, resumed, plain)]
    assert all(torch.equal(*pair) for pair in zip(weights[0], weights[1], strict=True))
    assert not all(torch.equal(*pair) for pair in zip(weights[0], weights[2], strict=True))
    with pytest.raises(TrainingError, match=r"muon_learning_rate was 0\.006, now None"):
        check_training(SMALL, folder=tmp_path / "b", devices=CPU)


@pytest.mark.parametrize("rate", [0.0, -1e-3, float("inf"), float("nan")])
def test_a_learning_rate_that_is_not_positive_is_refused(rate):
    with pytest.raises(ValueError, match="muon_learning_rate must be a positive number, got"):
        TrainingSettings(muon_learning_rate=rate)
