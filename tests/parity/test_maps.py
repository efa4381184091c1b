"""Offsets select exactly the rows of checkpoints: buckets and slopes, to the last one."""

from __future__ import annotations

import pytest
import torch
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position
from transformers.models.t5.modeling_t5 import T5Attention
from transformers.models.wavlm.modeling_wavlm import WavLMAttention

from relpos.offsets import deberta_buckets, t5_buckets
from relpos.positions import Alibi, T5Bias
from tests.parity.oracles.bias import AlibiPositionalBias, RelativePositionBias

FAR = torch.arange(-3000, 3001)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(
    ("buckets", "max_distance"), [(32, 128), (64, 128), (320, 800), (12, 40), (8, 9)]
)
def test_every_distance_selects_t5s_bucket(buckets, max_distance, bidirectional):
    settings = {"num_buckets": buckets, "max_distance": max_distance}
    ours = t5_buckets(FAR, buckets, max_distance, bidirectional=bidirectional)
    theirs = T5Attention._relative_position_bucket(FAR, bidirectional, **settings)
    others = RelativePositionBias._relative_position_bucket(FAR, not bidirectional, **settings)
    assert torch.equal(ours, theirs)
    assert torch.equal(ours, others)


def test_every_distance_selects_wavlms_bucket():
    """It truncates after adding where T5 adds after truncating."""
    theirs = WavLMAttention(8, 2, num_buckets=320, max_distance=800)._relative_positions_bucket(FAR)
    assert torch.equal(t5_buckets(FAR, 320, 800), theirs)


@pytest.mark.parametrize("bidirectional", [True, False])
def test_the_unrolled_buckets_lose_none(bidirectional):
    """Rows up to the last bucket's start, clamped, are the buckets of every distance."""
    scheme = T5Bias(2, bidirectional=bidirectional)
    buckets = T5Attention._relative_position_bucket(
        torch.arange(700) - torch.arange(700)[:, None], bidirectional
    )
    assert torch.equal(scheme.dense(700), scheme.bias[:, buckets])


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 6, 8, 12, 16, 20, 25, 32, 40])
def test_slopes_are_those_of_the_authors_code(heads):
    theirs = torch.tensor(AlibiPositionalBias._get_slopes(heads), dtype=torch.float64)
    ours = Alibi(heads, dtype=torch.float64).slopes
    assert (ours / theirs - 1).abs().max() <= 8 * torch.finfo(torch.float64).eps


@pytest.mark.parametrize(
    ("buckets", "max_distance"),
    [(256, 512), (8, 50), (32, 128), (64, 2048), (4, 9), (32, 129), (20, 81)],
)
def test_every_distance_selects_debertas_row(buckets, max_distance):
    """(256, 512) is that of all published models."""
    query_minus_key = make_log_bucket_position(-FAR, buckets, max_distance).long()
    theirs = (query_minus_key + buckets).clamp(0, 2 * buckets - 1)
    ours = deberta_buckets(FAR, max_distance=max_distance, buckets=buckets)
    assert torch.equal(ours, theirs)
