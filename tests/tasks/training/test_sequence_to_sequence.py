"""The loss of encoder-decoders: smoothed in training alone, padding not counted, resumed."""

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from relpos_tasks.models import EncoderDecoder, EncoderDecoderConfig
from relpos_tasks.training.language_model import IGNORE
from relpos_tasks.training.sequence_to_sequence import SequenceToSequenceTask, mean_nats
from relpos_tasks.training.settings import TrainingSettings


def built(**changes):
    torch.manual_seed(0)
    config = EncoderDecoderConfig(9, 9, width=12, layers=1, heads=2, dropout=0.0, **changes)
    return EncoderDecoder(config).double()


def batch(*, padding=0):
    """Two pairs; the second has two source tokens and three target tokens less."""
    torch.manual_seed(1)
    source, target = torch.randint(1, 8, (2, 5)), torch.randint(1, 8, (2, 7))
    source[1, 3:] = padding
    target_in, target_out = target[:, :-1].clone(), target[:, 1:].clone()
    target_in[1, 3:], target_out[1, 3:] = padding, IGNORE
    return source, target_in, target_out


def task(model, **options):
    return SequenceToSequenceTask(model, TrainingSettings(steps=2), **options)


def test_the_loss_is_the_plain_sum_over_the_targets_of_each_pair_alone():
    model, (source, target_in, target_out) = built(), batch()
    total, scored = task(model).loss((source, target_in, target_out))
    whole = cross_entropy(model(source[:1], target_in[:1])[0], target_out[0], reduction="sum")
    part = cross_entropy(
        model(source[1:, :3], target_in[1:, :3])[0], target_out[1, :3], reduction="sum"
    )
    assert_close(total, whole + part)
    assert scored == 9
    assert task(model).count_units(batch()) == 9


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.5])
def test_training_smooths_the_labels_and_shows_the_plain_loss(epsilon):
    model, pair = built(), batch()
    smoothed, plain, scored = task(model, label_smoothing=epsilon).objective(pair)
    logits = model(pair[0], pair[1], pair[0] == 0)
    want = cross_entropy(
        logits.transpose(1, 2), pair[2], ignore_index=IGNORE, reduction="sum",
        label_smoothing=epsilon,
    )  # fmt: skip
    assert_close(smoothed, want)
    assert_close((plain, scored), task(model).loss(pair))
    assert (epsilon == 0) == torch.equal(smoothed, plain)


def test_what_fills_up_changes_nothing():
    model, (source, target_in, target_out) = built(), batch()
    longer = (
        torch.cat((source, torch.zeros_like(source)), 1),
        torch.cat((target_in, torch.full_like(target_in, 7)), 1),
        torch.cat((target_out, torch.full_like(target_out, IGNORE)), 1),
    )
    for one, other in zip(
        task(model).objective((source, target_in, target_out)),
        task(model).objective(longer),
        strict=True,
    ):
        assert_close(one, other)


def test_the_padding_is_the_one_that_was_named():
    model = built()
    for one, other in zip(
        task(model, padding=8).loss(batch(padding=8)), task(model).loss(batch()), strict=True
    ):
        assert_close(one, other)


def test_mean_nats_weighs_tokens_alike_whatever_the_batches():
    model, (source, target_in, target_out) = built().train(), batch()
    whole = mean_nats(model, [(source, target_in, target_out)])
    rows = [tuple(part[n : n + 1] for part in (source, target_in, target_out)) for n in (0, 1)]
    assert mean_nats(model, rows) == pytest.approx(whole, abs=1e-12)
    total, scored = task(model).loss(batch())
    assert whole == pytest.approx(total.item() / scored.item(), abs=1e-12)
    assert model.training


def test_a_batch_without_targets_costs_nothing_and_has_no_mean():
    source, target_in, target_out = batch()
    empty = source, target_in, torch.full_like(target_out, IGNORE)
    assert [part.item() for part in task(built()).objective(empty)] == [0, 0, 0]
    with pytest.raises(ValueError, match="batches must have targets to score, got none"):
        mean_nats(built(), [empty])
    with pytest.raises(ValueError, match="batches must have targets to score, got none"):
        mean_nats(built(), [])


def test_a_model_that_gives_no_numbers_is_named():
    model = built()
    model.source_embedding.weight.data.fill_(torch.nan)
    with pytest.raises(ValueError, match="logits of the model must be finite, got nan nats"):
        mean_nats(model, [batch()])


def test_a_smoothing_out_of_range_is_named():
    with pytest.raises(ValueError, match="label_smoothing must be in 0 <= label_smoothing < 1"):
        task(built(), label_smoothing=1.0)
