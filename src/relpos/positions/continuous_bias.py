"""The continuous bias of Swin Transformer v2: a small network of the offset, and cosine attention.

    s_ij = t * cos(q_i, k_j) + B[j_h - i_h, j_w - i_w]                    Liu et al. 2022, eq. 2
    B[o] = 16 sigmoid(G(g(-o_h), g(-o_w))),  g(x) = sign(x) log2(1 + 8 |x| / (n - 1)) / log2(8)
    t    = exp(min(logit_scale, ln 100)), learned for each head

- Source: Swin v2 (Liu et al. 2022), sections 3.2 (cosine attention, with `1/t` above 0.01) and 3.3;
  `G` has one hidden layer with ReLU. `16 sigmoid`, and in `g` the window and the factor 8, are of
  the authors' code: log-spaced coordinates in the paper are `sign(x) log(1 + |x|)` (eq. 4).
- Offset: key minus query along each axis; the network is given query minus key, as in that code.
- Rows: computed, `2 size - 1` along each axis.
- Scale: queries and keys are normalised, so the attention's is 1 (`attention_scale`), with `t` on
  the queries. None on the bias.
- Beyond: the network has a value for every offset, so nothing is resized for another window; `n` is
  that of `pretrained_shape`, the window that it was trained on.
- Elsewhere: `cpb_mlp` and `logit_scale` of the authors' code and of timm are those here;
  transformers calls the first `continuous_position_bias_mlp`. A side of 1 divides by zero there.
"""

from __future__ import annotations

from math import log

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import normalize

from ..checks import check_count, check_dtype, check_flags, check_sizes
from ..terms import GridTerms
from .joint_bias import JointBiasPosition
from .quantized import input_dtype

__all__ = ["ContinuousBias"]


class ContinuousBias(JointBiasPosition):
    """`B = 16 sigmoid(G(log-spaced offset))`, with `q` and `k` normalised.

    Args:
        heads: query heads.
        shape: the window, e.g. `(height, width)`; its tokens come in row-major order.
        hidden: width of the network's hidden layer.
        pretrained_shape: the window whose largest offset is 1 to the network; None means `shape`.
        cosine: whether attention is by cosine, with a learned scale; if not, `q` and `k` stay as
            they are and there is the bias alone.
        prefix: number of tokens before the window (class tokens), which are given no bias.
        device: of the parameters.
        dtype: of the parameters.

    Raises:
        ValueError: if a size is out of range.

    >>> position = ContinuousBias(4, (7, 7))
    >>> position.dense().shape, position.dense((8, 12)).shape, position.attention_scale
    (torch.Size([4, 49, 49]), torch.Size([4, 96, 96]), 1.0)
    """

    logit_scale: nn.Parameter | None

    def __init__(
        self,
        heads: int,
        shape: tuple[int, ...],
        *,
        hidden: int = 512,
        pretrained_shape: tuple[int, ...] | None = None,
        cosine: bool = True,
        prefix: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(heads, shape, prefix=prefix)
        check_flags("ContinuousBias", cosine=cosine)
        name, axes = "ContinuousBias", len(self.shape)
        self.pretrained_shape = self.shape
        if pretrained_shape is not None:
            self.pretrained_shape = check_sizes(name, "pretrained_shape", pretrained_shape, axes)
        hidden = check_count(name, "hidden", hidden)
        check_dtype(name, dtype)
        self.attention_scale = 1.0 if cosine else None
        self.reads_content = cosine
        self.cpb_mlp = nn.Sequential(
            nn.Linear(axes, hidden, device=device, dtype=dtype),
            nn.ReLU(),
            nn.Linear(hidden, self.heads, bias=False, device=device, dtype=dtype),
        )
        scale = torch.empty(self.heads, 1, 1, device=device, dtype=dtype)
        self.register_parameter("logit_scale", nn.Parameter(scale) if cosine else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the network as `nn.Linear` does; the scale of the cosine begins at 10."""
        for layer in self.cpb_mlp:
            if isinstance(layer, nn.Linear):
                layer.reset_parameters()
        if self.logit_scale is not None:
            nn.init.constant_(self.logit_scale, log(10))

    def forward(
        self,
        q: Float[Tensor, "b h i d"],
        k: Float[Tensor, "b g j d"],
        *,
        shape: tuple[int, ...] | None = None,
    ) -> tuple[Float[Tensor, "b h i d"], Float[Tensor, "b g j d"], GridTerms]:
        """`q` normalised and scaled, `k` normalised, and the bias.

        Args:
            q: queries, the prefix and then the window.
            k: keys, likewise.
            shape: another window; None means the one this was made for.

        Raises:
            ShapeError: if `q` has another number of heads, or `q` or `k` of tokens.
            ValueError: if `shape` has another number of axes.
        """
        q, k, terms = super().forward(q, k, shape=shape)
        if self.logit_scale is None:
            return q, k, terms
        # In float32 at least: a norm in half precision overflows, or loses most of its digits.
        work = torch.promote_types(q.dtype, torch.float32)
        scale = self.logit_scale.to(work).clamp(max=log(100)).exp()
        unit_q, unit_k = (normalize(x.to(work), dim=-1) for x in (q, k))
        return (scale * unit_q).to(q.dtype), unit_k.to(k.dtype), terms

    def extra_repr(self) -> str:
        """Heads, window and non-default arguments."""
        other = self.pretrained_shape != self.shape
        trained = f", pretrained_shape={self.pretrained_shape}" if other else ""
        cosine = "" if self.logit_scale is not None else ", cosine=False"
        prefix = f", prefix={self.prefix}" if self.prefix else ""
        return f"heads={self.heads}, shape={self.shape}{trained}{cosine}{prefix}"

    def _bias_for(
        self, shape: tuple[int, ...], device: torch.device, dtype: torch.dtype
    ) -> Float[Tensor, "h ..."]:
        dtype = input_dtype(self.cpb_mlp[0], self, dtype)
        work = torch.promote_types(dtype, torch.float32)
        axes = []
        for size, trained in zip(shape, self.pretrained_shape, strict=True):
            # Query minus key, as the network was trained.
            back = torch.arange(size - 1, -size, -1, device=device).to(work)
            steps = 8 * back.abs() / max(trained - 1, 1)
            axes.append(back.sign() * (steps + 1).log2() / 3)
        coordinates = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).to(dtype)
        return 16 * self.cpb_mlp(coordinates).sigmoid().movedim(-1, 0)
