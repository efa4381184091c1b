"""Implementations that are wrong, each shown to compute something else, and what.

These are no oracles. Where a test here fails after an update of the package, the mistake was
probably repaired: then the implementation moves to `oracles`.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from numpy import ndarray
from torch import Tensor, nn
from torch.testing import assert_close
from transformers import ParakeetEncoderConfig, Phi4MultimodalAudioConfig
from transformers.integrations import flex_attention as transformers_flex
from transformers.models.parakeet.modeling_parakeet import (
    ParakeetEncoderAttention,
    ParakeetEncoderRelPositionalEncoding,
)
from transformers.models.phi4_multimodal.modeling_phi4_multimodal import (
    Phi4MultimodalAudioRelativeAttentionBias,
)
from transformers.models.sam.modeling_sam import SamVisionAttention
from transformers.models.vitdet import modeling_vitdet as vitdet

from relpos import definition, positions

from ..factories import normal
from .comparison import randomized
from .oracles.inputs import HEADS, MODEL, hidden
from .oracles.self_attention_cv import RelPosEmb1D, RelPosEmb2D

sam_get_rel_pos = partial(SamVisionAttention.get_rel_pos, None)


def grid_logits(q: ndarray, down: ndarray, across: ndarray, shape: tuple[int, int]) -> ndarray:
    """`q_i . (Rh[y_j - y_i] + Rw[x_j - x_i])`, pair by pair: Srinivas et al. 2021, figure 4."""
    height, width = shape
    logits = np.zeros((*q.shape[:2], height * width, height * width))
    for i, j in np.ndindex(*logits.shape[2:]):
        (y, x), (other_y, other_x) = divmod(i, width), divmod(j, width)
        row = down[other_y - y + height - 1] + across[other_x - x + width - 1]
        logits[:, :, i, j] = q[:, :, i] @ row
    return logits


def test_rel_pos_emb_2d_takes_the_height_term_from_the_transposed_tokens_query():
    """On a square map its second term is `q_(x,y) . Rh[x_j - x_i]` where `q_(y,x) . Rh[y_j - y_i]`
    is due: it reads the map's columns back as rows."""
    size, width = 4, 5
    theirs = randomized(RelPosEmb2D((size, size), width))
    q = normal(2, 3, size * size, width)
    got = theirs(q).detach().numpy()
    # Their names are swapped: emb_h holds the rows that are meant for the first axis.
    along_x, along_y = (rows.rel_pos_emb.detach().numpy() for rows in (theirs.emb_w, theirs.emb_h))
    right = grid_logits(q.numpy(), along_y, along_x, (size, size))
    assert np.abs(got - right).max() > 0.5

    ours = positions.RelPosEmb2D((size, size), width, dtype=torch.float64)
    ours.load_state_dict(theirs.state_dict())
    np.testing.assert_allclose(ours(q).detach().numpy(), right, atol=1e-13)

    transposed = q.numpy().reshape(2, 3, size, size, width).swapaxes(2, 3).reshape(q.shape)
    first = grid_logits(q.numpy(), np.zeros_like(along_y), along_x, (size, size))
    second = grid_logits(transposed, np.zeros_like(along_x), along_y, (size, size))
    np.testing.assert_allclose(got, first + second, atol=1e-13)


def test_rel_pos_emb_2d_fails_on_a_map_that_is_not_square():
    """The table along the width is sized by the height, and the other way round."""
    theirs = RelPosEmb2D((5, 7), 4)
    assert theirs.emb_w.rel_pos_emb.shape[0] == 2 * 5 - 1
    with pytest.raises(RuntimeError, match="is invalid for input of size"):
        theirs(torch.randn(1, 2, 35, 4))
    assert positions.RelPosEmb2D((5, 7), 4)(torch.randn(1, 2, 35, 4)).shape == (1, 2, 35, 35)


def test_rel_pos_emb_1d_with_heads_has_one_table_for_all():
    """It takes the number of heads for `shared_heads`, so any number means shared."""
    theirs = RelPosEmb1D(5, 4, heads=3)
    assert theirs.rel_pos_emb.shape == (9, 4)
    q = torch.randn(1, 1, 5, 4).expand(1, 3, 5, 4)
    one, two, three = theirs(q)[0]
    assert_close(one, two)
    assert_close(one, three)


@pytest.fixture
def uncompiled_flex(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers' flex path with its own score function, without the compiler.

    Compiled for the CPU, the chain of indices in that function corrupts memory (torch 2.13).
    """

    def flex(query: Tensor, key: Tensor, value: Tensor, training: bool, **arguments) -> Tensor:
        return transformers_flex.flex_attention(query, key, value, **arguments)

    monkeypatch.setattr(transformers_flex, "compile_friendly_flex_attention", flex)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
@pytest.mark.usefixtures("uncompiled_flex")
def test_the_flex_path_of_transformers_gives_every_head_the_mask_of_head_0():
    """Its score function reads `score_mask[batch][0][q][kv]`, whatever the head is."""
    q, k, v = (normal(2, 3, 9, 8, seed=seed) for seed in range(3))
    bias = normal(2, 3, 9, 9, seed=3)
    got, _ = transformers_flex.flex_attention_forward(
        nn.Module().eval(), q, k, v, bias, scaling=8**-0.5
    )
    got = got.transpose(1, 2)
    right, of_head_0 = (
        torch.from_numpy(definition.attention(q.numpy(), k.numpy(), v.numpy(), mask=mask)[0])
        for mask in (bias.numpy(), bias[:, :1].numpy())
    )
    assert_close(got, of_head_0)
    assert_close(got[:, 0], right[:, 0])
    assert (got - right)[:, 1:].abs().max() > 0.5


def parakeet(implementation: str) -> Tensor:
    """The output of one attention layer with weights that differ per head."""
    config = ParakeetEncoderConfig(hidden_size=MODEL, num_attention_heads=HEADS)
    config._attn_implementation = implementation
    layer = randomized(ParakeetEncoderAttention(config, layer_idx=0))
    x = hidden(9).detach()
    with torch.no_grad():
        return layer(x, ParakeetEncoderRelPositionalEncoding(config)(x))[0]


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
@pytest.mark.usefixtures("uncompiled_flex")
def test_parakeets_positions_are_wrong_in_the_flex_path():
    """It hands its position term over as the mask, so all heads get the positions of head 0."""
    right = parakeet("sdpa")
    assert_close(parakeet("eager"), right, atol=1e-6, rtol=1e-6)
    assert (parakeet("flex_attention") - right).abs().max() > 0.1


@pytest.mark.parametrize("get_rel_pos", [vitdet.get_rel_pos, sam_get_rel_pos])
def test_sam_and_vitdet_cut_offsets_between_two_rows_down(get_rel_pos):
    """With 4 queries and 6 keys an offset of half a step meets the row below it."""
    rows = torch.arange(11.0)[:, None]
    got = get_rel_pos(4, 6, rows)[..., 0]
    exact = torch.arange(4)[:, None] * 1.5 - torch.arange(6) + 5
    assert_close(got, exact.floor())
    assert (got != exact).any()


def test_phi_4s_symmetric_bias_indexes_past_its_table():
    """A distance of k meets row k of k rows: it clips to `-k..k - 1`, then drops the sign."""
    config = Phi4MultimodalAudioConfig(bias_max_distance=4, bias_symmetric=True)
    theirs = Phi4MultimodalAudioRelativeAttentionBias(config)
    assert theirs.bias_values.num_embeddings == 4
    assert theirs(torch.zeros(1, 4, 1)).shape[-1] == 4
    with pytest.raises(IndexError, match="index out of range"):
        theirs(torch.zeros(1, 5, 1))
