"""Rotary positions, RoPE (Su et al. 2021): queries and keys turned by angles, no terms.

    s_ij = scale * (R_i q_i) . (R_j k_j) = scale * q_i . R_(j - i) k_j       Su et al. 2021, eq. 16

- `R_p` turns pair `c` of the first `rotary_dim` numbers by `p theta^(-2c/rotary_dim)`; the others
  stay. Both sides are turned by their own positions, and the score depends on the offset alone.
- Positions: keys are `0..j-1`, queries the last `i` of them unless `query_start` says otherwise.
  Angles are exact to float32 up to about position 250 million (`angles.py`). A cache holds keys
  that are not yet turned, so that a step of decoding turns all of them anew, and agrees with one
  pass.
- Pairs: `c` and `c + rotary_dim / 2` (GPT-NeoX, Llama, transformers), or `2 c` and `2 c + 1` with
  `interleaved=True` (the paper, RoFormer, GPT-J, Meta's own Llama). Weights are trained for one.
- Scale: that of the attention. YaRN's attention factor is on both sides, so squared in the scores.
- Beyond: every position has its own angles. `scaling` is for longer texts than those of training
  (`rotary_scaling.py`).
- Elsewhere: Llama's code in transformers rounds cosines and products to the dtype of the queries;
  here they are float32 at least. Its "dynamic" and "longrope" scaling leave cached keys at the
  angles of the length at which they came; here all tokens of a call have those of its length.
  GPT-J, Cohere, GLM and Llama 4 are interleaved though their configs do not say so.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from numbers import Real
from typing import Any, ClassVar, cast

import torch
from jaxtyping import Float
from torch import Tensor

from ..checks import check_count, check_flags, check_floating
from ..terms import Terms
from .angles import angles_at
from .base import Position
from .rotary_config import rotary_arguments
from .rotary_scaling import check_share, read_scaling, scaled_frequencies
from .rotation import rotate
from .starts import start_of_queries

__all__ = ["Rotary", "check_rotary_dim", "check_rotary_inputs", "check_theta"]


class Rotary(Position):
    """`q` and `k` turned by angles that grow with the position.

    Args:
        head_dim: width of one head.
        theta: the base of the frequencies; None means `scaling["rope_theta"]`, or else 10000.
        interleaved: whether pairs lie beside each other (GPT-J), or half the width apart (Llama).
        rotary_dim: how many numbers of a head are turned, the first ones; None means
            `scaling["partial_rotary_factor"]` of them, or else all.
        scaling: a dictionary as `rope_parameters` or `rope_scaling` in configs of transformers,
            e.g. `{"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}`;
            types default, linear, dynamic, yarn, longrope, llama3 and proportional.
        max_position_embeddings: the model's longest text, in tokens, for scalings that count from
            it and do not have it in their dictionary; no other is bounded by it.

    Raises:
        TypeError: if `scaling` is no dictionary.
        ValueError: if a width is odd or out of range, `max_position_embeddings` is below 1, or
            `scaling` does not say what it needs.

    >>> q = k = torch.randn(1, 2, 5, 8)
    >>> turned, _, terms = Rotary(8)(q, k)
    >>> torch.equal(turned[:, :, 0], q[:, :, 0]), terms.tables
    (True, {})
    >>> Rotary(8, scaling={"rope_type": "linear", "factor": 4.0})
    Rotary(head_dim=8, theta=10000, rope_type='linear')
    """

    reads_query_start: ClassVar[bool] = True
    reads_key_start: ClassVar[bool] = True

    def __init__(
        self,
        head_dim: int,
        theta: float | None = None,
        *,
        interleaved: bool = False,
        rotary_dim: int | None = None,
        scaling: Mapping[str, Any] | None = None,
        max_position_embeddings: int | None = None,
    ) -> None:
        super().__init__()
        check_flags("Rotary", interleaved=interleaved)
        self.head_dim = check_count("Rotary", "head_dim", head_dim)
        self.scaling = read_scaling(
            "Rotary", scaling, max_position_embeddings=max_position_embeddings
        )
        said = {name: value for name, value in (scaling or {}).items() if value is not None}
        self.theta = check_theta("Rotary", _agreed("theta", theta, said.get("rope_theta"), 1e4))
        share = said.get("partial_rotary_factor")
        share = None if share is None else int(self.head_dim * check_share("Rotary", share))
        wanted = _agreed("rotary_dim", rotary_dim, share, self.head_dim)
        self.rotary_dim = check_rotary_dim("Rotary", wanted, self.head_dim)
        if self.scaling.rope_type == "dynamic" and self.rotary_dim == 2:
            raise ValueError("Rotary: rotary_dim must be at least 4 with dynamic scaling, got 2")
        for name in ("short_factor", "long_factor") if self.scaling.rope_type == "longrope" else ():
            if len(factors := getattr(self.scaling, name)) != self.rotary_dim // 2:
                raise ValueError(
                    f"Rotary: scaling[{name!r}] must have a number for each of the "
                    f"{self.rotary_dim // 2} pairs, got {len(factors)}"
                )
        self.interleaved = interleaved
        # Some scalings depend on how many keys there are.
        self.shift_invariant = not self.scaling.reads_length

    @classmethod
    def from_config(
        cls, config: Any, *, layer_type: str | None = None, interleaved: bool = False
    ) -> Rotary:
        """The positions of a model of transformers.

        Args:
            config: the model's, of transformers 4 or 5 (or of the same attributes).
            layer_type: of the layer, e.g. `"full_attention"`, where layers differ.
            interleaved: as in the class, since configs do not tell.

        Raises:
            TypeError: if the config has no widths, or its rotary parameters are no dictionary.
            ValueError: if the config has no such layers, a scaling that is not known here, or a
                number that is out of range.
        """
        return cls(**rotary_arguments(config, layer_type), interleaved=interleaved)

    def forward(
        self,
        q: Float[Tensor, "b h i d"],
        k: Float[Tensor, "b g j d"],
        *,
        query_start: int | None = None,
        key_start: int = 0,
    ) -> tuple[Float[Tensor, "b h i d"], Float[Tensor, "b g j d"], Terms]:
        """`q` and `k` turned, in their dtype, and no terms.

        Args:
            q: queries.
            k: keys.
            query_start: position of the first query; None means that the queries are the last.
            key_start: position of the first key.

        Raises:
            ShapeError: if `q` or `k` has another width, or is not floating point.
            ValueError: if `query_start` or `key_start` is no integer.
        """
        start, key_start, length = check_rotary_inputs(
            "Rotary", q, k, head_dim=self.head_dim, query_start=query_start, key_start=key_start
        )
        inv_freq = self.inv_freq(length, device=q.device)
        q, k = (
            rotate(
                x,
                angles_at(torch.arange(first, first + x.shape[2], device=x.device), inv_freq),
                interleaved=self.interleaved,
                factor=self.attention_factor,
            )
            for x, first in ((q, start), (k, key_start))
        )
        return q, k, Terms()

    def inv_freq(
        self, length: int = 0, *, device: torch.device | None = None
    ) -> Float[Tensor, "c"]:
        """The frequency of each pair, in radians per token, in float64.

        Args:
            length: of the text, in tokens, which only dynamic scaling and LongRoPE ask for.
            device: where the result is made.

        >>> Rotary(4, theta=100.0).inv_freq()
        tensor([1.0000, 0.1000], dtype=torch.float64)
        """
        return scaled_frequencies(
            self.scaling, self.theta, self.rotary_dim, self.head_dim, length=length, device=device
        )

    @property
    def attention_factor(self) -> float:
        """What turned numbers are multiplied by: 1 but for YaRN and LongRoPE."""
        return self.scaling.amplitude

    def head_axes(self) -> dict[str, int]:
        """No parameter differs from head to head."""
        return {}

    def extra_repr(self) -> str:
        """Width, base and non-default arguments."""
        part = "" if self.rotary_dim == self.head_dim else f", rotary_dim={self.rotary_dim}"
        pairs = ", interleaved=True" if self.interleaved else ""
        kind = self.scaling.rope_type
        scaling = "" if kind == "default" else f", rope_type={kind!r}"
        return f"head_dim={self.head_dim}, theta={self.theta:g}{part}{pairs}{scaling}"


def check_rotary_inputs(
    owner: str,
    q: Float[Tensor, "b h i d"],
    k: Float[Tensor, "b g j d"],
    *,
    head_dim: int,
    query_start: int | None,
    key_start: int,
) -> tuple[int, int, int]:
    """The positions of the first query and key, and the text's length: the last position plus one.

    Args:
        owner: the scheme's class.
        q: queries.
        k: keys.
        head_dim: width of one head.
        query_start: position of the first query; None means that the queries are the last.
        key_start: position of the first key.

    Raises:
        ShapeError: if `q` or `k` has another width, or is not floating point.
        ValueError: if `query_start` or `key_start` is no integer.
    """
    check_floating(owner, "q", q, "b h i d", {"d": head_dim})
    check_floating(owner, "k", k, "b g j d", {"d": head_dim})
    key_start = check_count(owner, "key_start", key_start, least=None)
    i, end = q.shape[2], key_start + k.shape[2]
    start = start_of_queries(owner, query_start, i, end)
    # `sym_max`, since lengths may be symbols of `torch.compile`.
    return start, key_start, cast(int, torch.sym_max(end, start + i))


def check_theta(owner: str, theta: Any) -> float:
    """`theta` as a float.

    Args:
        owner: the scheme's class.
        theta: the base of the frequencies.

    Raises:
        ValueError: if it is no finite number above 1.
    """
    if isinstance(theta, Real) and not isinstance(theta, bool) and 1 < float(theta) < inf:
        return float(theta)
    raise ValueError(f"{owner}: theta must be a number > 1, got {theta!r}")


def check_rotary_dim(owner: str, rotary_dim: Any, head_dim: int) -> int:
    """`rotary_dim` as an int.

    Args:
        owner: the scheme's class.
        rotary_dim: how many numbers are turned.
        head_dim: how many there are.

    Raises:
        ValueError: if it is odd, or not within 2 and `head_dim`.
    """
    rotary_dim = check_count(owner, "rotary_dim", rotary_dim)
    if rotary_dim % 2 or rotary_dim > head_dim:
        raise ValueError(
            f"{owner}: rotary_dim must be even and at most head_dim={head_dim}, got {rotary_dim}"
        )
    return rotary_dim


def _agreed(name: str, given: Any, of_scaling: Any, default: Any) -> Any:
    """The argument, or what the dictionary says; both must be the same if both are given."""
    if given is not None and of_scaling is not None and given != of_scaling:
        raise ValueError(f"Rotary: {name} must be None or {of_scaling}, as in scaling, got {given}")
    known = of_scaling if given is None else given
    return default if known is None else known
