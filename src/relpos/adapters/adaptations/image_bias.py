"""What BEiT and Data2Vec's vision share: a bias for each offset between patches, and a class token.

    s_ij = scale * q_i . k_j + B[y_j - y_i, x_j - x_i]      (y, x): row and column of a patch

Bao et al. 2022, "BEiT"; for images of any size Birkl et al. 2023, "MiDaS v3.1". Of the class token,
which comes before the patches, three biases belong to no offset: of it for the patches, of the
patches for it, and of it for itself.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...terms import GridTerms
from ..adapted import Adapted
from ..attend import attend
from ..masks import check_mask

__all__ = ["ImageBias", "RelativePositionBias", "attend_to_image"]


class ImageBias(NamedTuple):
    """The biases of an image of one size, which adapted modules hand on in place of `(1, h, i, j)`.

    Args:
        patches: `(h, 2 height - 1, 2 width - 1)`, in the order of key minus query.
        class_token: `(3, h)`: for the patches, of the patches for it, for itself; None: there is
            no class token.
        mask: what the model adds to them; None: nothing.
    """

    patches: Tensor
    class_token: Tensor | None = None
    mask: Tensor | None = None

    def __add__(self, other: Any) -> Any:
        """With the biases of all layers, or with a mask, as a layer of the original adds them."""
        if isinstance(other, ImageBias):
            mine, theirs = self.class_token, other.class_token
            class_token = None if mine is None or theirs is None else mine + theirs
            both = ImageBias(self.patches + other.patches, class_token, self.mask)
            return both if other.mask is None else both + other.mask
        return self._replace(mask=other if self.mask is None else self.mask + other)

    @property
    def image_shape(self) -> tuple[int, int]:
        """The image's size, in patches."""
        return (self.patches.shape[1] + 1) // 2, (self.patches.shape[2] + 1) // 2


class RelativePositionBias(Adapted):
    """For `BeitRelativePositionBias` and its kin; it makes `ImageBias`."""

    signatures = {
        "forward": ("self", "window_size", "interpolate_pos_encoding", "dim_size"),
    }
    together = True
    window_size: tuple[int, int]
    relative_position_bias_table: nn.Parameter

    def forward(
        self,
        window_size: tuple[int, int],
        interpolate_pos_encoding: bool = False,
        dim_size: int | None = None,
    ) -> Any:
        height, width = window_size
        if interpolate_pos_encoding and dim_size != height * width + 1:
            # A bias of all pairs, stretched to so many tokens.
            return self.original_forward(window_size, interpolate_pos_encoding, dim_size)
        rows, columns = (2 * size - 1 for size in self.window_size)
        table = self.relative_position_bias_table
        # In the order of query minus key; with sides that differ the original reads it like this.
        patches = table[:-3].unflatten(0, (columns, rows)).permute(2, 0, 1)[None]
        patches = nn.functional.interpolate(
            patches, size=(2 * height - 1, 2 * width - 1), mode="bilinear"
        )
        return ImageBias(patches[0].flip(1, 2), table[-3:])


def attend_to_image(
    q: Float[Tensor, "b h i d"],
    k: Float[Tensor, "b h i d"],
    v: Float[Tensor, "b h i d"],
    bias: ImageBias,
    *,
    scale: float,
    dropout: float,
    weights: bool,
) -> tuple[Float[Tensor, "b i h d"], Float[Tensor, "b h i i"] | None]:
    """`attend`, of the patches, most often with a class token before them.

    Args:
        q: queries.
        k: keys.
        v: values.
        bias: added to the scores.
        scale: of the products.
        dropout: probability that a weight is dropped.
        weights: whether to build the `i x j` weights.
    """
    check_mask(bias.mask)
    joint = bias.patches.to(q.dtype)
    if bias.class_token is None:
        return attend(
            q, k, v, GridTerms(bias.image_shape, joint_bias=joint), mask=bias.mask, scale=scale,
            dropout=dropout, weights=weights,
        )  # fmt: skip
    for_patches, for_class_token, for_itself = bias.class_token.to(q.dtype)[:, None, :, None, None]
    others = for_patches.expand(1, -1, 1, k.shape[2] - 1)
    # The class token's row, which a grid leaves without biases, is attended for by itself.
    patches = attend(
        q, k, v, GridTerms(bias.image_shape, joint_bias=joint, prefix=1),
        mask=_masked(torch.cat([for_class_token, torch.zeros_like(others)], -1), bias.mask),
        scale=scale, dropout=dropout, weights=weights,
    )  # fmt: skip
    first = bias.mask if bias.mask is None else bias.mask[:, :, :1]
    class_token = attend(
        q[:, :, :1], k, v, mask=_masked(torch.cat([for_itself, others], -1), first),
        scale=scale, dropout=dropout, weights=weights,
    )  # fmt: skip
    output = torch.cat([class_token[0], patches[0][:, 1:]], 1)
    if class_token[1] is None or patches[1] is None:
        return output, None
    return output, torch.cat([class_token[1], patches[1][:, :, 1:]], 2)


def _masked(bias: Float[Tensor, "1 h 1 j"], mask: Tensor | None) -> Tensor:
    """A bias of keys and a mask, True for what takes part or added, as one mask."""
    if mask is None:
        return bias
    if mask.dtype == torch.bool:
        return bias.masked_fill(~mask, -torch.inf)
    return bias + mask
