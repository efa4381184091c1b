"""What Conformers in transformers share: Transformer-XL's terms, projected from given sinusoids.

    s_ij = scale * ((q_i + u) . k_j + (q_i + v) . W R[j - i])        Dai et al. 2019, section 3.3
         = scale * ((q_i + u) . (k_j + W R[j - i])) + scale * (v - u) . W R[j - i]

The encoder hands each layer R, `2L - 1` rows from the offset `-(L - 1)` on; each projects it.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from ...terms import OffsetTable, Terms

__all__ = ["transformer_xl_terms"]


def transformer_xl_terms(
    projected: Float[Tensor, "r hd"],
    u: Float[Tensor, "h d"],
    v: Float[Tensor, "h d"],
    *,
    scale: float,
) -> Terms:
    """The tables of `W R` beside queries `q + u`.

    Args:
        projected: W R for the offsets `-(r - 1) / 2 .. (r - 1) / 2`.
        u: the content bias (term c).
        v: the position bias (term d).
        scale: of the attention.
    """
    rows = projected.unflatten(-1, u.shape).transpose(0, 1)  # (h, r, d)
    first = -(rows.shape[1] // 2)
    bias = (rows @ (scale * (v - u)).to(rows.dtype)[:, :, None]).squeeze(2)
    return Terms(keys=OffsetTable(rows, first), bias=OffsetTable(bias, first))
