"""Disentangled attention of DeBERTa (He et al. 2021): content to position and position to content.

    s_ij = scale * (q_i . k_j + q_i . W_k P[x(j - i)] + k_j . W_q P[x(j - i)])     He et al., eq. 4
    x(o) = clip(n + f(-o), 0, 2n - 1)                              eq. 3, with f the identity there

- Source: He et al. 2021, eq. 2-4; the log buckets `f` are those of the v2 and v3 models (He et al.
  2023), of which the papers have no formula (`relpos.offsets.deberta_buckets` has it).
- Offset: the embedding P counts query minus key; the tables handed to attention count key minus
  query as everywhere, so they are P read backwards.
- Both terms take the same row of P. The paper's eq. 4 writes delta(j, i) in the second; its code,
  and thus every checkpoint, has delta(i, j), and implementations that follow the paper break them.
- Rows: P has `2n`, with `n = position_buckets` or else `n = max_relative_positions = k`. Distance k
  behind the query has no row of its own; it shares that of `k - 1`. Unrolled to one row for each
  offset, a table has `2k` rows, for `-(k - 1)..k`.
- Scale: `1 / sqrt(d * (1 + number of terms))`, so `1 / sqrt(3d)` for both (section 3.1). It acts on
  the content as well: it is the `attention_scale`, which layers take from here.
- Beyond the table: clamps, by definition; the buckets do not change there.
- Elsewhere: `encoder.rel_embeddings.weight` is `embedding.weight`, as it is. v1 has no buckets; its
  `pos_proj`, without a bias, is `key_proj`, its `pos_q_proj` is `query_proj`. v2 and v3 put P
  through a LayerNorm (`encoder.LayerNorm` is `embedding.norm`) and share the projections of the
  content (`share_att_key`); where not, theirs are `pos_key_proj` and `pos_query_proj`. Their
  configurations have `max_relative_positions=-1`, which means `max_position_embeddings`.
  transformers takes the root of the scale in float32, and in its p2c term needs as many queries as
  keys.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import ClassVar

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from ..checks import (
    check_count,
    check_dtype,
    check_flags,
    check_floating,
    check_like_parameter,
    check_module,
    check_probability,
)
from ..offsets import deberta_buckets
from ..summed_rows import picked_rows
from ..terms import OffsetTable, Terms
from .base import Position
from .quantized import is_packed

__all__ = ["Deberta", "DebertaEmbedding"]

Projection = Callable[[Tensor], Tensor]


class DebertaEmbedding(nn.Module):
    """P, the `2n` embeddings of relative positions, which the layers of a model share.

    Args:
        dim: width e of the model.
        span: n, the buckets on one side, or the largest distance where there are none.
        norm: whether a LayerNorm follows (`norm_rel_ebd="layer_norm"`, v2 and v3).
        dropout: probability that an entry is dropped in training, anew for each layer.
        device: of the parameters.
        dtype: of the parameters.

    Raises:
        ValueError: if a size is below 1, or `dropout` not in `0 <= dropout < 1`.

    >>> tuple(DebertaEmbedding(64, span=256, norm=True)().shape)
    (512, 64)
    """

    def __init__(
        self,
        dim: int,
        span: int,
        *,
        norm: bool = False,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_flags("DebertaEmbedding", norm=norm)
        self.dim = check_count("DebertaEmbedding", "dim", dim)
        self.span = check_count("DebertaEmbedding", "span", span)
        check_dtype("DebertaEmbedding", dtype)
        self.weight = nn.Parameter(torch.empty(2 * span, dim, device=device, dtype=dtype))
        # The small constant is that of the published models.
        self.norm = nn.LayerNorm(dim, eps=1e-7, device=device, dtype=dtype) if norm else None
        self.dropout = nn.Dropout(check_probability("DebertaEmbedding", "dropout", dropout))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the rows from a normal distribution around 0 with variance `1 / dim`."""
        nn.init.normal_(self.weight, std=self.dim**-0.5)
        if self.norm is not None:
            self.norm.reset_parameters()

    def forward(self) -> Float[Tensor, "r e"]:
        """P; row `n + f(x)` belongs to the distance `x`, query minus key."""
        return self.dropout(self.weight if self.norm is None else self.norm(self.weight))

    def extra_repr(self) -> str:
        """Width and rows."""
        return f"dim={self.dim}, span={self.span}"


class Deberta(Position):
    """`K = W_k P` and `Q = W_q P`, unrolled to one row for each offset up to the last bucket.

    Args:
        head_dim: width d of one head.
        heads: query heads h, each with its own rows.
        max_relative_positions: k, in tokens: from this distance on, all share a row.
        position_buckets: log buckets on one side, even and at least 4; None means one for each
            distance.
        dim: width e of P; None means `heads * head_dim`.
        c2p: whether the queries are dotted with positions.
        p2c: whether the keys are.
        embedding: gives P `(2n, e)` when called, e.g. the `DebertaEmbedding` of all layers; None
            means one of its own.
        key_proj: W_k, from `(2n, e)` to `(2n, h * d)`, e.g. `MultiheadAttention.project_keys`
            (`share_att_key`), in which case the layer comes first and is given its position then;
            None means an `nn.Linear` of its own. A module is registered here, a plain function or
            method is not.
        query_proj: W_q, likewise.
        device: of the parameters.
        dtype: of the parameters.

    Raises:
        TypeError: if `embedding` is given and no module.
        ValueError: if a size is out of range, there is neither c2p nor p2c, or a projection is
            given for the one that there is not.

    >>> position = Deberta(16, heads=4, max_relative_positions=512, position_buckets=256)
    >>> q = torch.zeros(1, 4, 5, 16)
    >>> _, _, terms = position(q, q)
    >>> terms.keys.first, terms.queries.last, tuple(position.embedding().shape)
    (-511, 512, (512, 64))
    >>> round(1 / position.attention_scale**2)
    48

    With the projections of its layer:

    >>> from relpos.layers import MultiheadAttention
    >>> layer = MultiheadAttention(64, 4)
    >>> shared = {"key_proj": layer.project_keys, "query_proj": layer.project_queries}
    >>> layer.position = Deberta(16, 4, max_relative_positions=512, **shared)
    >>> [name for name, _ in layer.position.named_parameters()]
    ['embedding.weight']
    """

    shift_invariant: ClassVar[bool] = True
    keeps_content: ClassVar[bool] = True
    attention_scale: float
    embedding: nn.Module
    key_proj: Projection | None
    query_proj: Projection | None

    def __init__(
        self,
        head_dim: int,
        heads: int,
        max_relative_positions: int,
        *,
        position_buckets: int | None = None,
        dim: int | None = None,
        c2p: bool = True,
        p2c: bool = True,
        embedding: nn.Module | None = None,
        key_proj: Projection | None = None,
        query_proj: Projection | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_flags("Deberta", c2p=c2p, p2c=p2c)
        self.head_dim = check_count("Deberta", "head_dim", head_dim)
        self.heads = check_count("Deberta", "heads", heads)
        inner = self.heads * self.head_dim
        self.dim = check_count("Deberta", "dim", inner if dim is None else dim)
        if max_relative_positions == -1:
            raise ValueError(
                "Deberta: max_relative_positions must be an integer >= 1, got -1, which in a "
                "configuration means its max_position_embeddings"
            )
        self.max_relative_positions = check_count(
            "Deberta", "max_relative_positions", max_relative_positions
        )
        self.position_buckets = position_buckets
        self._check_buckets()
        check_dtype("Deberta", dtype)
        if not c2p and not p2c:
            raise ValueError("Deberta: c2p or p2c must be True, got False for both")
        self.attention_scale = 1 / sqrt(self.head_dim * (1 + c2p + p2c))
        if embedding is not None:
            check_module("Deberta", "embedding", embedding)
        self._created: list[str] = [] if embedding is not None else ["embedding"]
        self.embedding = (
            DebertaEmbedding(self.dim, self.span, device=device, dtype=dtype)
            if embedding is None
            else embedding
        )
        for name, term, present, given in (
            ("key_proj", "c2p", c2p, key_proj),
            ("query_proj", "p2c", p2c, query_proj),
        ):
            if given is not None and not present:
                raise ValueError(f"Deberta: {name} must be None without {term}, got one")
            if given is None and present:
                self._created.append(name)
                given = nn.Linear(self.dim, inner, device=device, dtype=dtype)  # noqa: PLW2901
            setattr(self, name, given)
        self.reset_parameters()

    @property
    def span(self) -> int:
        """n: half the number of rows of P."""
        buckets = self.position_buckets
        return self.max_relative_positions if buckets is None else buckets

    def reset_parameters(self) -> None:
        """Draw the modules that were not given, each as it does itself."""
        for name in self._created:
            getattr(self, name).reset_parameters()

    def forward(
        self, q: Float[Tensor, "b h i d"], k: Float[Tensor, "b g j d"]
    ) -> tuple[Float[Tensor, "b h i d"], Float[Tensor, "b g j d"], Terms]:
        """`q` and `k` unchanged, and the tables.

        Args:
            q: queries.
            k: keys.

        Raises:
            ShapeError: if `q`, `k` or what a given module returns has another width, number, dtype
                or device.
        """
        width = {"d": self.head_dim}
        check_floating("Deberta", "q", q, "b h i d", {"h": self.heads} | width)
        check_floating("Deberta", "k", k, "b g j d", width)
        p = self.embedding()
        check_floating("Deberta", "embedding()", p, "r e", {"r": 2 * self.span, "e": self.dim})
        first = 1 - self.max_relative_positions
        index = deberta_buckets(
            torch.arange(first, self.max_relative_positions + 1, device=p.device),
            max_distance=self.max_relative_positions,
            buckets=self.position_buckets,
        )
        keys = self._unrolled("key_proj", self.key_proj, p, index)
        queries = self._unrolled("query_proj", self.query_proj, p, index)
        return (
            q,
            k,
            Terms(
                keys=None if keys is None else OffsetTable(keys, first),
                queries=None if queries is None else OffsetTable(queries, first),
            ),
        )

    def _unrolled(
        self, name: str, project: Projection | None, p: Tensor, index: Int64[Tensor, "r"]
    ) -> Float[Tensor, "h r d"] | None:
        if project is None:
            return None
        if isinstance(project, nn.Linear) and not is_packed(project):
            check_like_parameter("Deberta", "embedding()", p, project.weight)
        projected, inner = project(p), self.heads * self.head_dim
        check_floating("Deberta", f"{name}(P)", projected, "r hd", {"r": len(p), "hd": inner})
        rows = picked_rows(projected, index)
        return rows.unflatten(1, (self.heads, self.head_dim)).transpose(0, 1)

    def head_axes(self) -> dict[str, int]:
        """The projections, whose outputs are the heads one after the other.

        One that was given and is no module is taken to be that of the layer, whose heads are cut.
        """
        own = {
            name: project
            for name, project in (("key_proj", self.key_proj), ("query_proj", self.query_proj))
            if isinstance(project, nn.Module)
        }
        return {
            f"{name}.{parameter}": 0
            for name, project in own.items()
            for parameter, _ in project.named_parameters()
        }

    def extra_repr(self) -> str:
        """Widths, heads, distances and terms."""
        terms = {"c2p": self.key_proj, "p2c": self.query_proj}
        buckets = self.position_buckets
        parts = [f"head_dim={self.head_dim}, heads={self.heads}, dim={self.dim}"]
        parts.append(f"max_relative_positions={self.max_relative_positions}")
        parts += [] if buckets is None else [f"position_buckets={buckets}"]
        parts.append("terms=" + " and ".join(name for name, p in terms.items() if p is not None))
        return ", ".join(parts)

    def _check_buckets(self) -> None:
        buckets = self.position_buckets
        if buckets is None:
            return
        self.position_buckets = check_count("Deberta", "position_buckets", buckets, least=4)
        if self.position_buckets % 2:
            raise ValueError(f"Deberta: position_buckets must be even, got {buckets}")
        if self.max_relative_positions <= buckets // 2 + 1:
            raise ValueError(
                "Deberta: max_relative_positions must be more than position_buckets / 2 + 1 = "
                f"{buckets // 2 + 1}, got {self.max_relative_positions}"
            )
