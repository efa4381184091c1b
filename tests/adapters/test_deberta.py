"""What only DeBERTa's encoders are asked for: queries, positions, lengths of their own."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    DebertaConfig,
    DebertaModel,
    DebertaV2Config,
    DebertaV2Model,
    SEWDConfig,
    SEWDModel,
)

from relpos.adapters import Adapted, adapt

from .largest_tensor import LargestTensor
from .models.case import draw, padded
from .models.deberta import SIZES, V3
from .models.sew_d import SIZES as SOUND

pytestmark = pytest.mark.no_typecheck


def first_version(**options: Any) -> nn.Module:
    return drawn(DebertaModel(DebertaConfig(**SIZES, pos_att_type="c2p|p2c", **options)))


def third_version(**options: Any) -> nn.Module:
    return drawn(DebertaV2Model(DebertaV2Config(**{**SIZES, **V3, **options})))


def sew_d() -> nn.Module:
    return drawn(SEWDModel(SEWDConfig(**SOUND, position_buckets=8)).encoder)


def drawn(model: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    draw(model)
    return model.double().eval()


def states(length: int) -> Tensor:
    return torch.randn(2, length, 32, dtype=torch.float64)


def encode(model: Any, x: Tensor, **given: Any) -> Tensor:
    """The encoder's last hidden state, at real tokens."""
    mask = padded(2, x.shape[1], "right")
    assert mask is not None
    output = model.encoder(x, mask, **given).last_hidden_state
    return output[mask.bool()] if output.shape[1] == x.shape[1] else output


def test_given_queries_attend_as_in_the_original():
    model, x, queries = third_version(), states(300), states(300)
    theirs = encode(model, x, query_states=queries)
    adapt(model)
    with LargestTensor() as largest:
        ours = encode(model, x, query_states=queries)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    assert (ours - encode(model, x)).abs().max() > 0.1
    assert largest.entries < 300 * 300, largest.by


@pytest.mark.parametrize("build", [first_version, third_version, sew_d])
def test_given_positions_are_those_that_count(build):
    model, x = build(), states(24)
    positions = torch.randint(-5, 6, (1, 24, 24))
    theirs = encode(model, x, relative_pos=positions)
    adapt(model)
    ours = encode(model, x, relative_pos=positions)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    assert (ours - encode(model, x)).abs().max() > 0.1


@pytest.mark.parametrize("build", [first_version, third_version, sew_d])
def test_given_positions_and_a_window_do_not_go_together(build):
    model, x = build(), states(24)
    adapt(model, window=(4, 4))
    encode(model, x)
    with pytest.raises(ValueError, match=r"window=\(4, 4\), it must be called with what relpos"):
        encode(model, x, relative_pos=torch.zeros(1, 24, 24, dtype=torch.long))


@pytest.mark.parametrize("buckets", [256, -1])
@pytest.mark.costly(1)
def test_tokens_beyond_the_512th_are_as_in_the_original(buckets: int):
    model = third_version(max_relative_positions=512, position_buckets=buckets)
    x = states(1300)
    theirs = encode(model, x)
    adapt(model)
    torch.testing.assert_close(encode(model, x), theirs, rtol=0, atol=1e-11)


@pytest.mark.parametrize("build", [first_version, third_version, sew_d])
def test_beside_a_layer_that_is_left_the_others_are_right(build):
    model, x = build(), states(24)
    theirs = encode(model, x)
    hooked = model.encoder.layer[0].attention.self
    hooked.forward = partial(hooked.forward)
    report = adapt(model)
    assert [len(report.adapted), len(report.left)] == [1, 1]
    torch.testing.assert_close(encode(model, x), theirs, rtol=0, atol=1e-12)


def test_talking_heads_leave_the_encoder_as_it_was():
    model = first_version(talking_head=True)
    report = adapt(model)
    assert {why for _, why in report.left} == {"talking_head mixes the scores of all heads"}
    assert not report.adapted
    assert not any(isinstance(module, Adapted) for module in model.modules())


def test_buckets_that_never_end_are_left():
    why = "position_buckets is odd, so that the buckets never end"
    report = adapt(third_version(position_buckets=7))
    assert [reason for _, reason in report.left] == [why] * 2


@pytest.mark.filterwarnings(
    "ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning", "ignore::FutureWarning"
)
@pytest.mark.parametrize("model", [first_version, third_version])
def test_a_trace_serves_its_length(model: Any):
    class Called(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = model()

        def forward(self, ids: Tensor) -> Tensor:
            return self.encoder(input_ids=ids).last_hidden_state

    called, ids = Called(), torch.arange(18).view(2, 9)
    adapt(called)
    with torch.no_grad():
        traced = torch.jit.trace(called, ids, check_trace=False)
        torch.testing.assert_close(traced(ids.flip(1)), called(ids.flip(1)))
