"""Implementations that are wrong, each shown to compute something else, and what.

Where a test here fails after an update of the package, the mistake was probably repaired: then the
implementation moves from `mistakes` to `oracles`.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from torch.testing import assert_close
from transformers import Phi4MultimodalAudioConfig
from transformers.models.phi4_multimodal.modeling_phi4_multimodal import (
    Phi4MultimodalAudioRelativeAttentionBias,
)
from transformers.models.sam.modeling_sam import SamVisionAttention

from relpos import positions
from tests.parity.mistakes import (
    MISTAKES,
    flex_with_a_mask,
    grid_logits,
    legacy_shift,
    parakeet,
    rel_pos_emb_2d,
    square_map,
    unshifted,
    vitdet_coordinates,
)
from tests.parity.oracles.self_attention_cv import RelPosEmb1D, RelPosEmb2D


def test_rel_pos_emb_2d_takes_the_height_term_from_the_transposed_tokens_query():
    """On a square map its second term is `q_(x,y) . Rh[x_j - x_i]` where `q_(y,x) . Rh[y_j - y_i]`
    is due: it reads the map's columns back as rows.
    """
    got, right = rel_pos_emb_2d()
    assert (got - right).abs().max() > 0.5

    theirs, q = square_map()
    down, across = (rows.rel_pos_emb.detach().numpy() for rows in (theirs.emb_h, theirs.emb_w))
    shape = (theirs.h, theirs.w)
    transposed = q.unflatten(2, shape).transpose(2, 3).flatten(2, 3).numpy()
    first = grid_logits(q.numpy(), np.zeros_like(down), across, shape)
    second = grid_logits(transposed, np.zeros_like(across), down, shape)
    np.testing.assert_allclose(got, first + second, atol=1e-13)


def test_our_rel_pos_emb_2d_is_right_with_their_weights():
    theirs, q = square_map()
    ours = positions.RelPosEmb2D((theirs.h, theirs.w), q.shape[3], dtype=torch.float64)
    ours.load_state_dict(theirs.state_dict())
    assert_close(ours(q), rel_pos_emb_2d()[1])


def test_rel_pos_emb_2d_fails_on_a_map_that_is_not_square():
    """The table along the width is sized by the height, and the other way round."""
    theirs = RelPosEmb2D((5, 7), 4)
    q = torch.randn(1, 2, 35, 4)
    assert theirs.emb_w.rel_pos_emb.shape[0] == 2 * 5 - 1
    with pytest.raises(RuntimeError, match="is invalid for input of size"):
        theirs(q)
    assert positions.RelPosEmb2D((5, 7), 4)(q).shape == (1, 2, 35, 35)


def test_rel_pos_emb_1d_with_heads_has_one_table_for_all():
    """It takes the number of heads for `shared_heads`, so any number means shared."""
    theirs = RelPosEmb1D(5, 4, heads=3)
    assert theirs.rel_pos_emb.shape == (9, 4)
    one, two, three = theirs(torch.randn(1, 1, 5, 4).expand(1, 3, 5, 4))[0]
    assert_close(one, two)
    assert_close(one, three)


def test_the_legacy_shift_gives_keys_ahead_the_scores_of_the_next_query():
    got, right = legacy_shift()
    behind = torch.ones(7, 7, dtype=torch.bool).tril()
    assert torch.equal(got[..., behind], right[..., behind])
    for i in range(5):
        # Two ahead stands what the next query has for the first row, and so on.
        assert torch.equal(got[..., i, i + 2 :], unshifted()[..., i + 1, : 5 - i])


def test_the_flex_path_of_transformers_gives_every_head_the_mask_of_head_0():
    """Its score function reads `score_mask[batch][0][q][kv]`, whatever the head is."""
    got, right = flex_with_a_mask()
    _, of_head_0 = flex_with_a_mask(slice(1))
    assert_close(got, of_head_0)
    assert_close(got[:, 0], right[:, 0])
    assert (got - right)[:, 1:].abs().max() > 0.5


def test_parakeets_positions_are_wrong_in_the_flex_path():
    """It hands its position term over as the mask, so all heads get the positions of head 0."""
    right = parakeet("sdpa")
    # The eager softmax is in float32.
    assert_close(parakeet("eager"), right, atol=1e-6, rtol=1e-6)
    assert (parakeet("flex_attention") - right).abs().max() > 0.1


@pytest.mark.parametrize(
    "get_rel_pos", [None, partial(SamVisionAttention.get_rel_pos, None)], ids=["vitdet", "sam"]
)
def test_sam_and_vitdet_cut_offsets_between_two_rows_down(get_rel_pos):
    """With 4 queries and 6 keys an offset of half a step selects the row below it."""
    got, right = vitdet_coordinates()
    if get_rel_pos is not None:
        got = get_rel_pos(4, 6, torch.arange(11.0)[:, None])[..., 0]
    assert_close(got, right.floor())
    assert (got != right).any()


def test_phi_4s_symmetric_bias_indexes_past_its_table():
    """A distance of k asks for row k of k rows: it clips to `-k..k - 1`, then drops the sign."""
    config = Phi4MultimodalAudioConfig(bias_max_distance=4, bias_symmetric=True)
    theirs = Phi4MultimodalAudioRelativeAttentionBias(config)
    assert theirs.bias_values.num_embeddings == 4
    assert theirs(torch.zeros(1, 4, 1)).shape[-1] == 4
    with pytest.raises(IndexError, match="index out of range"):
        theirs(torch.zeros(1, 5, 1))


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.implementation)
def test_every_mistake_has_its_test_and_is_larger_than_rounding(mistake):
    assert mistake.test in globals()
    difference = mistake.difference()
    assert difference is None or difference > 0.01
