"""Implementations that compute something else than their formula says: no oracles.

Each comes with what it gives and what is right, computed by the NumPy definition or a double loop.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from unittest.mock import patch

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor, nn
from transformers import ParakeetEncoderConfig
from transformers.integrations import flex_attention as transformers_flex
from transformers.models.parakeet.modeling_parakeet import (
    ParakeetEncoderAttention,
    ParakeetEncoderRelPositionalEncoding,
)
from transformers.models.vitdet.modeling_vitdet import get_rel_pos

from relpos import definition
from tests.factories import normal
from tests.parity.comparison import randomized
from tests.parity.oracles.inputs import HEADS, MODEL, hidden
from tests.parity.oracles.self_attention_cv import RelPosEmb2D

with contextlib.redirect_stdout(io.StringIO()):
    from espnet.nets.pytorch_backend.transformer.attention import (
        LegacyRelPositionMultiHeadedAttention,
    )


@dataclass(frozen=True)
class Mistake:
    """An implementation that is wrong.

    Args:
        implementation: their class or function.
        package: distribution that it is installed from.
        reason: what it does instead.
        test: the name of the test that shows it.
        show: what it gives, and what is right; None where it raises or has no such thing.
    """

    implementation: str
    package: str
    reason: str
    test: str
    show: Callable[[], tuple[Tensor, Tensor]] | None = None

    def named(self) -> dict[str, str]:
        """What is wrong, in words."""
        return {
            "implementation": self.implementation,
            "package": self.package,
            "version": version(self.package),
            "reason": self.reason,
            "test": self.test,
        }

    def difference(self) -> float | None:
        """The largest difference, as a part of the largest right value."""
        if self.show is None:
            return None
        theirs, right = self.show()
        return ((theirs - right).abs().max() / right.abs().max()).item()


def grid_logits(q: ndarray, down: ndarray, across: ndarray, shape: tuple[int, int]) -> ndarray:
    """`q_i . (Rh[y_j - y_i] + Rw[x_j - x_i])`, pair by pair: Srinivas et al. 2021, figure 4."""
    height, width = shape
    logits = np.zeros((*q.shape[:2], height * width, height * width))
    for i, j in np.ndindex(*logits.shape[2:]):
        (y, x), (other_y, other_x) = divmod(i, width), divmod(j, width)
        row = down[other_y - y + height - 1] + across[other_x - x + width - 1]
        logits[:, :, i, j] = q[:, :, i] @ row
    return logits


def square_map(size: int = 4, width: int = 5) -> tuple[nn.Module, Tensor]:
    """AI Summer's module for a square map, and queries for it."""
    return randomized(RelPosEmb2D((size, size), width)), normal(2, 3, size * size, width)


def rel_pos_emb_2d() -> tuple[Tensor, Tensor]:
    theirs, q = square_map()
    rows = [table.rel_pos_emb.detach().numpy() for table in (theirs.emb_h, theirs.emb_w)]
    right = grid_logits(q.numpy(), *rows, (theirs.h, theirs.w))
    return theirs(q).detach(), torch.from_numpy(right)


@contextmanager
def flex_without_the_compiler() -> Iterator[None]:
    """Transformers' flex path with its own score function, uncompiled.

    Compiled for the CPU, the chain of indices in that function corrupts memory (torch 2.13).
    """

    def flex(query: Tensor, key: Tensor, value: Tensor, training: bool, **arguments) -> Tensor:
        return transformers_flex.flex_attention(query, key, value, **arguments)

    with (
        patch.object(transformers_flex, "compile_friendly_flex_attention", flex),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings(
            "ignore", "flex_attention called without torch.compile", UserWarning
        )
        yield


def flex_with_a_mask(heads: slice = slice(None)) -> tuple[Tensor, Tensor]:
    """A float mask that differs per head; right is what these heads of the mask give."""
    q, k, v = (normal(2, 3, 9, 8, seed=seed) for seed in range(3))
    mask = normal(2, 3, 9, 9, seed=3)
    with flex_without_the_compiler():
        got, _ = transformers_flex.flex_attention_forward(
            nn.Module().eval(), q, k, v, mask, scaling=8**-0.5
        )
    right, _ = definition.attention(q.numpy(), k.numpy(), v.numpy(), mask=mask[:, heads].numpy())
    return got.transpose(1, 2), torch.from_numpy(right)


def parakeet(implementation: str) -> Tensor:
    """The output of one attention layer with weights that differ per head."""
    config = ParakeetEncoderConfig(
        hidden_size=MODEL, num_attention_heads=HEADS, attn_implementation=implementation
    )
    layer = randomized(ParakeetEncoderAttention(config, layer_idx=0))
    x = hidden(9).detach()
    with torch.no_grad(), flex_without_the_compiler():
        return layer(x, ParakeetEncoderRelPositionalEncoding(config)(x))[0]


def unshifted() -> Tensor:
    """Scores of 7 queries with the rows of the distances 6 to 0."""
    return normal(1, 1, 7, 7)


def legacy_shift() -> tuple[Tensor, Tensor]:
    """A score for each pair of a query and a row, shifted; right has nothing ahead of a query."""
    layer, scores = LegacyRelPositionMultiHeadedAttention(1, 4, 0.0), unshifted()
    right = torch.zeros(1, 1, 7, 7, dtype=torch.float64)
    for i, j in np.ndindex(7, 7):
        if j <= i:
            right[..., i, j] = scores[..., i, 6 - (i - j)]
    return layer.rel_shift(scores), right


def vitdet_coordinates(queries: int = 4, keys: int = 6) -> tuple[Tensor, Tensor]:
    """Rows that hold their own number, for queries whose grid does not divide that of the keys."""
    rows = torch.arange(2.0 * keys - 1)[:, None]
    wanted = torch.arange(queries)[:, None] * (keys / queries) - torch.arange(keys) + keys - 1
    return get_rel_pos(queries, keys, rows)[..., 0], wanted


MISTAKES = [
    Mistake(
        "RelPosEmb2D", "self-attention-cv",
        "Along the height it takes the query of the transposed token, on square maps too. Its "
        "tables are sized by the other side, so other maps fail.",
        "test_rel_pos_emb_2d_takes_the_height_term_from_the_transposed_tokens_query",
        rel_pos_emb_2d,
    ),
    Mistake(
        "RelPosEmb1D(heads=n)", "self-attention-cv",
        "It reads the number of heads as `shared_heads`, so there is one table for all.",
        "test_rel_pos_emb_1d_with_heads_has_one_table_for_all",
    ),
    Mistake(
        "LegacyRelPositionMultiHeadedAttention", "espnet",
        "Without a causal mask from its caller keys ahead of a query get the scores of the next "
        "one (`zero_triu=False` is the default).",
        "test_the_legacy_shift_gives_keys_ahead_the_scores_of_the_next_query",
        legacy_shift,
    ),
    Mistake(
        "flex_attention_forward", "transformers",
        "A float mask is read as `mask[batch][0]`: every head gets that of head 0.",
        "test_the_flex_path_of_transformers_gives_every_head_the_mask_of_head_0",
        flex_with_a_mask,
    ),
    Mistake(
        "ParakeetEncoderAttention", "transformers",
        "On the flex path it hands its positions over as that mask, so every head gets those of "
        "head 0.",
        "test_parakeets_positions_are_wrong_in_the_flex_path",
        lambda: (parakeet("flex_attention"), parakeet("sdpa")),
    ),
    Mistake(
        "Phi4MultimodalAudioRelativeAttentionBias", "transformers",
        "With `symmetric`: clipped to -k..k - 1 before the sign is dropped, a distance of k asks "
        "for row k of k rows and fails.",
        "test_phi_4s_symmetric_bias_indexes_past_its_table",
    ),
    Mistake(
        "get_rel_pos", "transformers",
        "In SAM and ViTDet: where one grid is no multiple of the other, an offset between two "
        "rows selects the lower one.",
        "test_sam_and_vitdet_cut_offsets_between_two_rows_down",
        vitdet_coordinates,
    ),
]  # fmt: skip
