"""Adapted models of transformers over cut sequences, against one process."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers
from torch import Tensor, distributed, nn

import relpos.distributed as cut
from relpos.adapters import adapt
from relpos.adapters.adapted import Adapted
from relpos.distributed import ContextParallel
from tests.distributed.cut import relative_error, world

pytestmark = pytest.mark.no_typecheck

SIZES = {"d_model": 16, "d_kv": 4, "num_heads": 4, "d_ff": 32, "vocab_size": 50}
DEBERTA = {
    "vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 32, "relative_attention": True, "pos_att_type": ["c2p", "p2c"],
    "position_biased_input": False, "max_relative_positions": 16, "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}  # fmt: skip


def made(name: str) -> nn.Module:
    torch.manual_seed(0)
    if name == "T5":
        config = transformers.T5Config(**SIZES, num_layers=2, dropout_rate=0.0)
        model: nn.Module = transformers.T5Model(config)
    elif name == "DeBERTa":
        model = transformers.DebertaModel(transformers.DebertaConfig(**DEBERTA))
    else:
        config = transformers.DebertaV2Config(**DEBERTA, position_buckets=8, share_att_key=True)
        model = transformers.DebertaV2Model(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    adapt(model)
    return model.double()


def arguments(name: str) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(1)
    tokens = torch.randint(1, 50, (2, 37), generator=draw)
    given = {"input_ids": tokens, "attention_mask": torch.arange(37) < torch.tensor([[37], [20]])}
    if name == "T5":
        given["decoder_input_ids"] = torch.randint(1, 50, (2, 21), generator=draw)
    return given


@pytest.mark.parametrize("method", ["heads", "gather", "ring"])
@pytest.mark.parametrize("name", ["T5", "DeBERTa", "DeBERTa v3"])
@pytest.mark.costly(3)
def test_a_model_is_as_in_one_process(two, name: str, method: str):
    two.run(_check, name, method)


def _check(rank, size, name, method) -> None:
    whole, given = made(name), arguments(name)
    expected = whole(**given).last_hidden_state
    seen = torch.ones_like(expected[..., :1])
    if name != "T5":
        seen = given["attention_mask"].unsqueeze(-1).double()
    (expected * seen).square().sum().backward()
    model = ContextParallel(method=method).apply_to(made(name), world())
    local = {key: cut.shard(x, world()) for key, x in given.items()}
    found = model(**local).last_hidden_state
    own = cut.shard(seen, world())
    assert relative_error(found * own, cut.shard(expected * seen, world())) <= 1e-12
    (found * own).square().sum().backward()
    for (key, one), other in zip(whole.named_parameters(), model.parameters(), strict=True):
        total = torch.zeros_like(one) if other.grad is None else other.grad.clone()
        distributed.all_reduce(total)
        wanted = torch.zeros_like(one) if one.grad is None else one.grad
        assert relative_error(total, wanted) <= 1e-12, key
    assert torch.equal(copy.deepcopy(model)(**local).last_hidden_state, found)
    ContextParallel().remove_from(model)
    again = model(**given).last_hidden_state
    assert torch.equal(again, expected)


@pytest.mark.parametrize("layout", ["zigzag", "contiguous"])
@pytest.mark.parametrize(
    ("source", "seen", "target"), [(16, 12, 8), (16, 5, 8), (2, 1, 6), (2, 1, 2)]
)
@pytest.mark.parametrize("name", ["T5", "DeBERTa"])
def test_padding_may_lie_on_some_ranks_alone(
    two, name: str, source: int, seen: int, target: int, layout: str
):
    two.run(_check_padding, name, source, seen, target, layout)


def _check_padding(rank, size, name, source, seen, target, layout) -> None:
    draw = torch.Generator().manual_seed(1)
    given = {
        "input_ids": torch.randint(1, 50, (2, source), generator=draw),
        "attention_mask": torch.arange(source) < torch.tensor([[source], [seen]]),
    }
    if name == "T5":
        given["decoder_input_ids"] = torch.randint(1, 50, (2, target), generator=draw)
    expected = made(name)(**given).last_hidden_state
    model = ContextParallel(layout=layout).apply_to(made(name), world())
    found = model(**{key: cut.shard(x, world(), layout) for key, x in given.items()})
    unpadded = given["attention_mask"] if name != "T5" else torch.ones(2, target, dtype=torch.bool)
    own = cut.shard(unpadded, world(), layout)
    found, expected = found.last_hidden_state, cut.shard(expected, world(), layout)
    assert relative_error(found[own], expected[own]) <= 1e-12


@pytest.mark.parametrize("method", ["heads", "gather", "ring"])
@pytest.mark.parametrize("name", ["T5", "DeBERTa", "DeBERTa v3"])
def test_weights_are_dropped_as_in_one_process(two, name: str, method: str):
    two.run(_check_dropout, name, method)


def _check_dropout(rank, size, name, method) -> None:
    # Of the attention alone: what is dropped of tokens is drawn by each rank for its own.
    given = arguments(name)
    given["attention_mask"] = torch.ones_like(given["attention_mask"])
    outputs = []
    for cuts in (False, True):
        model = made(name).float().train()
        for part in model.modules():
            if isinstance(part, Adapted) and part.scheme:
                drop_weights(part, 0.3)
        if cuts:
            ContextParallel(method=method).apply_to(model, world())
            given = {key: cut.shard(x, world()) for key, x in given.items()}
        torch.manual_seed(3)
        outputs.append(model(**given).last_hidden_state)
        torch.manual_seed(4)
        outputs.append(model(**given).last_hidden_state)
    whole, other, found, _ = outputs
    # Of float32, in another order of sums, through two layers.
    assert relative_error(found, cut.shard(whole, world())) <= 1e-5
    assert relative_error(other, whole) > 0.01


def drop_weights(part: nn.Module, rate: float) -> None:
    """Let an attention drop some of its weights."""
    if isinstance(part.dropout, nn.Module):
        part.dropout.p = rate
    else:
        part.dropout = rate


def test_models_that_cannot_be_cut_are_refused(two):
    two.run(_refused)


def _refused(rank, size) -> None:
    bloom = transformers.BloomModel(
        transformers.BloomConfig(vocab_size=50, hidden_size=16, n_layer=1, n_head=4)
    )
    adapt(bloom)
    with pytest.raises(ValueError, match="module must have no BloomAttention, whose sequence cann"):
        ContextParallel().apply_to(bloom, world())
    config = transformers.DebertaV2Config(
        **DEBERTA, position_buckets=8, share_att_key=True, conv_kernel_size=3
    )
    deberta = transformers.DebertaV2Model(config)
    adapt(deberta)
    with pytest.raises(ValueError, match="its convolution looks at the tokens beside"):
        ContextParallel().apply_to(deberta, world())
