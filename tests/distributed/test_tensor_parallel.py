"""Adapted models whose heads torch's own styles cut, as docs/distributed.md says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import transformers
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

import relpos.distributed as cut
from relpos.adapters import adapt
from relpos.distributed import ContextParallel, HeadParallel
from tests.distributed.cut import relative_error
from tests.distributed.test_adapted import DEBERTA, SIZES, arguments

T5 = SIZES | {"num_layers": 2, "dropout_rate": 0.0}
MODELS = {
    "T5": (transformers.T5Model, transformers.T5Config, T5),
    "gated T5": (transformers.T5Model, transformers.T5Config,
                 T5 | {"feed_forward_proj": "gated-gelu"}),
    "mT5": (transformers.MT5Model, transformers.MT5Config, T5),
    "UMT5": (transformers.UMT5Model, transformers.UMT5Config, T5),
    "MPNet": (transformers.MPNetModel, transformers.MPNetConfig, {
        "vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 32, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    }),
    "DeBERTa v2": (transformers.DebertaV2Model, transformers.DebertaV2Config, DEBERTA),
    "DeBERTa v3": (transformers.DebertaV2Model, transformers.DebertaV2Config,
                   DEBERTA | {"position_buckets": 8, "share_att_key": True}),
}  # fmt: skip


COLUMNS = {
    "q", "k", "v", "wi", "wi_0", "wi_1", "relative_attention_bias",
    "query_proj", "key_proj", "value_proj", "pos_key_proj", "pos_query_proj",
}  # fmt: skip


def made(name: str, model: type | None = None) -> nn.Module:
    of, config, sizes = MODELS[name]
    torch.manual_seed(0)
    found = (model or of)(config(**sizes))
    with torch.no_grad():
        for parameter in found.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    adapt(found)
    return found.double()


def styles(model: nn.Module, ranks: int) -> Iterator[tuple[str, ParallelStyle]]:
    """How each projection is cut; a module that counts its heads is told how many are left."""
    for name, part in model.named_modules():
        kind = name.rpartition(".")[2]
        if kind in COLUMNS:
            yield name, ColwiseParallel()
        elif kind in ("o", "wo") or name.endswith("attention.output.dense"):
            yield name, RowwiseParallel()
        for count in ("n_heads", "inner_dim", "num_attention_heads", "all_head_size"):
            if count in vars(part):
                setattr(part, count, getattr(part, count) // ranks)


@pytest.mark.parametrize("name", MODELS)
def test_heads_of_an_adapted_model_are_cut_by_torchs_styles(two, name: str):
    two.run(_check, name)


def _check(rank, size, name) -> None:
    mesh = init_device_mesh("cpu", (size,))
    given = arguments("T5" if "T5" in name else "DeBERTa")
    whole, model = made(name), made(name)
    plan = dict(styles(model, size))
    parallelize_module(model, mesh, plan)
    seen = torch.ones(()) if "T5" in name else given["attention_mask"].unsqueeze(-1).double()
    expected, found = (x(**given).last_hidden_state * seen for x in (whole, model))
    assert relative_error(found, expected) <= 1e-12
    expected.square().sum().backward()
    found.square().sum().backward()
    cuts = 0
    for (key, one), other in zip(whole.named_parameters(), model.parameters(), strict=True):
        gradient = other.grad
        if isinstance(other, DTensor):
            cuts += 1
            assert isinstance(gradient, DTensor)
            gradient = gradient.full_tensor()
        if one.grad is not None:
            assert gradient is not None, key
            assert relative_error(gradient, one.grad) <= 1e-11, key
    assert cuts >= len(plan)


def test_it_generates(two):
    two.run(_check_generation)


def _check_generation(rank, size) -> None:
    mesh = init_device_mesh("cpu", (size,))
    of = transformers.T5ForConditionalGeneration
    whole, model = made("T5", of).eval(), made("T5", of).eval()
    parallelize_module(model, mesh, dict(styles(model, size)))
    given = {name: arguments("T5")[name] for name in ("input_ids", "attention_mask")}
    for beams in (1, 3):
        options = {
            "num_beams": beams, "max_new_tokens": 12, "do_sample": False,
            "decoder_start_token_id": 0, "eos_token_id": 49,
        }  # fmt: skip
        assert torch.equal(model.generate(**given, **options), whole.generate(**given, **options))


def test_tokens_are_cut_along_another_dimension(four):
    four.run(_check_both)


def _check_both(rank, size) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("cp", "tp"))
    given = arguments("T5")
    expected = made("T5")(**given).last_hidden_state
    model = made("T5")
    parallelize_module(model, mesh["tp"], dict(styles(model, 2)))
    ContextParallel(method="ring").apply_to(model, mesh["cp"])
    found = model(**{name: cut.shard(x, mesh["cp"]) for name, x in given.items()})
    own = cut.shard(expected, mesh["cp"])
    assert relative_error(found.last_hidden_state, own) <= 1e-12


def test_head_parallel_names_torchs_styles(two):
    two.run(_named)


def _named(rank, size) -> None:
    with pytest.raises(ValueError, match=r"adapted models are cut by torch's ColwiseParallel and"):
        HeadParallel()._apply(made("T5"), init_device_mesh("cpu", (size,)))
