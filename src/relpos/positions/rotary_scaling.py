"""Frequencies of rotary positions for longer texts than a model was trained on.

`f_c = theta^(-2c/d)` are the plain ones, `s` is `factor`, `L` the length of training:

    linear        f_c / s                                               Chen et al. 2023, "PI"
    dynamic       theta' = theta (s n / L - (s - 1))^(d / (d - 2)) for n > L tokens in the call
                  (the "dynamic NTK" rule, which Peng et al. 2024 describe)
    yarn          (1 - g_c) f_c / s + g_c f_c;  g_c = 1 - clamp((c - low) / (high - low), 0, 1)
                  and cosines and sines times 0.1 ln s + 1       Peng et al. 2024, eq. 17-22
    longrope      f_c / short_factor_c, and f_c / long_factor_c for more than L tokens in the call;
                  cosines and sines times sqrt(1 + ln s / ln L)             Ding et al. 2024
    llama3        f_c where 2 pi / f_c < L / high_freq_factor, f_c / s where it is more than
                  L / low_freq_factor, and in between linear in L f_c / (2 pi): the code of
                  Llama 3.1 (Grattafiori et al. 2024)
    proportional  theta^(-2c/head_dim) / s for the first pairs of the head, 0 for the others

- Source: the papers, and for the numbers `ROPE_INIT_FUNCTIONS` of transformers 5.23, whose words
  these are. It computes frequencies in float32, this file in float64.
- LongRoPE's factor on cosines and sines is that of Phi-3's code. The paper leaves the first tokens
  of a text as they were in training; Phi-3 and transformers do not, nor does this. Phi-3.5-MoE's
  `short_mscale` and `long_mscale` are refused.
- `low` and `high` of YaRN are the pairs that turn `beta_fast` and `beta_slow` times in L tokens,
  rounded outwards unless `truncate` is False. The ramp between them is linear in the pair `c`, as
  in the authors' code and in transformers; the paper's is linear in the turns `L f_c / (2 pi)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import ceil, floor, inf, log, pi, sqrt
from numbers import Real
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..checks import check_count
from .angles import angle_dtype, frequencies

__all__ = ["RotaryScaling", "check_share", "read_scaling", "scaled_frequencies"]

_LENGTH = "original_max_position_embeddings"
# What each type of scaling must be given, and what it may be.
_REQUIRED = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor", _LENGTH),
    "yarn": ("factor", _LENGTH),
    "longrope": ("short_factor", "long_factor", "factor", _LENGTH),
    "llama3": ("factor", _LENGTH, "low_freq_factor", "high_freq_factor"),
    "proportional": (),
}
_OPTIONAL = {
    "yarn": (
        "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate",
    ),
    "longrope": ("attention_factor",),
    "proportional": ("factor",),
}  # fmt: skip
# Read by `Rotary` itself.
_OF_ALL = ("rope_type", "type", "rope_theta", "partial_rotary_factor")


@dataclass(frozen=True)
class RotaryScaling:
    """The parameters of one scaling; the names are those of transformers.

    Args:
        rope_type: "default" (none), "linear", "dynamic", "yarn", "longrope", "llama3" or
            "proportional".
        factor: how many times longer texts may be.
        original_max_position_embeddings: length of the texts in training, in tokens.
        attention_factor: of YaRN's and LongRoPE's cosines and sines; None means the papers'.
        beta_fast: turns in training from which on pairs keep their frequency.
        beta_slow: turns in training up to which pairs are interpolated.
        mscale: with `mscale_all_dim`, another attention factor (DeepSeek).
        mscale_all_dim: see `mscale`.
        truncate: whether YaRN's range of pairs is rounded outwards.
        low_freq_factor: turns in training up to which Llama 3 interpolates.
        high_freq_factor: turns in training from which on Llama 3 leaves pairs alone.
        short_factor: what LongRoPE divides each pair's frequency by in texts as in training.
        long_factor: and in longer ones.
    """

    rope_type: str = "default"
    factor: float = 1.0
    original_max_position_embeddings: int = 0
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()

    @property
    def reads_length(self) -> bool:
        """Whether frequencies depend on how long the text is."""
        return self.rope_type in ("dynamic", "longrope")

    @property
    def amplitude(self) -> float:
        """What cosines and sines are multiplied by: 1 but for YaRN and LongRoPE."""
        if self.rope_type not in ("yarn", "longrope"):
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        if self.rope_type == "longrope":
            longer = max(self.factor, 1.0)
            return sqrt(1 + log(longer) / log(self.original_max_position_embeddings))
        if self.mscale and self.mscale_all_dim:
            return self._temperature(self.mscale) / self._temperature(self.mscale_all_dim)
        return self._temperature(1.0)

    def _temperature(self, share: float) -> float:
        return 1.0 if self.factor <= 1 else 0.1 * share * log(self.factor) + 1


def read_scaling(
    owner: str, scaling: Mapping[str, Any] | None, *, max_position_embeddings: int | None
) -> RotaryScaling:
    """The scaling that a dictionary in the words of transformers names.

    Args:
        owner: the class on whose behalf the dictionary is read.
        scaling: `rope_parameters` or `rope_scaling` of a config; None means none.
        max_position_embeddings: longest text of the model; what "dynamic" counts from, and what
            others do if the dictionary has no `original_max_position_embeddings`.

    Raises:
        TypeError: if `scaling` is no dictionary.
        ValueError: if a parameter is missing, unknown or out of range.
    """
    if scaling is not None and not isinstance(scaling, Mapping):
        raise TypeError(f"{owner}: scaling must be a dictionary or None, got {scaling!r}")
    given = {name: value for name, value in (scaling or {}).items() if value is not None}
    rope_type = given.get("rope_type", given.get("type", "default"))
    if not isinstance(rope_type, str) or rope_type not in _REQUIRED:
        raise ValueError(
            f"{owner}: scaling['rope_type'] must be one of {', '.join(_REQUIRED)}, "
            f"got {rope_type!r}"
        )
    required, optional = _REQUIRED[rope_type], _OPTIONAL.get(rope_type, ())
    known = (*required, *optional)
    found = {name: value for name, value in given.items() if name not in _OF_ALL}
    if max_position_embeddings is not None:
        # Whatever the type: a wrong one is wrong where nothing counts from it, too.
        longest = check_count(owner, "max_position_embeddings", max_position_embeddings)
        if _LENGTH in required:
            _fill_in_length(owner, rope_type, found, longest)
    missing = [name for name in required if name not in found]
    unknown = [name for name in found if name not in known]
    if missing or unknown:
        allowed = "".join(f", {name}" for name in optional)
        raise ValueError(
            f"{owner}: scaling of type {rope_type!r} must have {', '.join(required) or 'nothing'}"
            f"{f' and may have{allowed[1:]}' if allowed else ''}, got "
            f"{f'no {missing[0]}' if missing else unknown[0]}"
        )
    for name, value in found.items():
        found[name] = _checked(owner, name, value)
    parameters = RotaryScaling(rope_type=rope_type, **found)
    if rope_type == "llama3":
        _check_range(owner, parameters, "low_freq_factor", "high_freq_factor")
    if rope_type == "longrope" and parameters.original_max_position_embeddings < 2:
        # The attention factor divides by its logarithm.
        raise ValueError(
            f"{owner}: scaling[{_LENGTH!r}] must be at least 2 with longrope, "
            f"got {parameters.original_max_position_embeddings}"
        )
    if rope_type == "yarn":
        _check_range(owner, parameters, "beta_slow", "beta_fast")
    return parameters


def _fill_in_length(owner: str, rope_type: str, found: dict[str, Any], longest: int) -> None:
    """Fill in what a config says outside its dictionary, as transformers does."""
    if rope_type == "longrope":
        found.setdefault(_LENGTH, longest)
    if rope_type in ("yarn", "longrope") and "factor" not in found and _LENGTH in found:
        found["factor"] = longest / _checked(owner, _LENGTH, found[_LENGTH])
    if rope_type == "dynamic":
        found[_LENGTH] = longest
    else:
        found.setdefault(_LENGTH, longest)


def _checked(owner: str, name: str, value: Any) -> Any:
    shown = f"scaling[{name!r}]"
    if name == _LENGTH:
        return check_count(owner, shown, value)
    if name in ("short_factor", "long_factor"):
        if isinstance(value, list | tuple):
            return tuple(_positive(owner, f"{shown}[{n}]", each) for n, each in enumerate(value))
        raise ValueError(f"{owner}: {shown} must be a list of positive numbers, got {value!r}")
    if name == "truncate":
        if isinstance(value, bool):
            return value
        raise ValueError(f"{owner}: {shown} must be True or False, got {value!r}")
    return _positive(owner, shown, value)


def _positive(owner: str, shown: str, value: Any) -> float:
    if isinstance(value, Real) and not isinstance(value, bool):
        with suppress(OverflowError):  # of an integer beyond all floats
            if 0 < float(value) < inf:
                return float(value)
    raise ValueError(f"{owner}: {shown} must be a positive number, got {value!r}")


def _check_range(owner: str, parameters: RotaryScaling, low: str, high: str) -> None:
    """Between both, pairs are partly interpolated; the wrong way round, the slow ones are kept."""
    lower, upper = getattr(parameters, low), getattr(parameters, high)
    if not lower < upper:
        raise ValueError(
            f"{owner}: scaling[{high!r}] must be more than scaling[{low!r}]={lower:g}, "
            f"got {upper:g}"
        )


def check_share(owner: str, share: Any) -> float:
    """`scaling["partial_rotary_factor"]` as a float.

    Args:
        owner: the class on whose behalf the check is made.
        share: of the numbers of a head, how many are rotated.

    Raises:
        ValueError: if it is no number in `0 < share <= 1`.
    """
    if isinstance(share, Real) and not isinstance(share, bool) and 0 < float(share) <= 1:
        return float(share)
    raise ValueError(
        f"{owner}: scaling['partial_rotary_factor'] must be a number in 0 < share <= 1, "
        f"got {share!r}"
    )


def scaled_frequencies(
    scaling: RotaryScaling,
    theta: float,
    dim: int,
    head_dim: int,
    *,
    length: int,
    device: torch.device | None = None,
) -> Float[Tensor, "c"]:
    """The frequency of each pair, in radians per token, in float64.

    Args:
        scaling: how they are scaled.
        theta: the base.
        dim: numbers that are rotated.
        head_dim: width of one head, in which "proportional" counts.
        length: of the text, in tokens, for "dynamic" and "longrope".
        device: where the result is made.
    """
    found = frequencies(theta, dim, device=device)
    match scaling.rope_type:
        case "linear":
            found = found / scaling.factor
        case "dynamic":
            found = _dynamic(scaling, theta, dim, length, device)
        case "yarn":
            found = _yarn(scaling, theta, dim, found)
        case "longrope":
            found = _longrope(scaling, found, length)
        case "llama3":
            found = _llama3(scaling, found)
        case "proportional":
            whole = frequencies(theta, head_dim, device=device)
            pair = torch.arange(head_dim // 2, device=device)
            found = whole.where(pair < dim // 2, 0) / scaling.factor
    return found


def _dynamic(
    scaling: RotaryScaling, theta: float, dim: int, length: int, device: torch.device | None
) -> Tensor:
    trained, wide = scaling.original_max_position_embeddings, angle_dtype(device)
    # A tensor: a length may be a symbol of `torch.compile`, which takes no such power of one.
    tokens = torch.full((), length, device=device, dtype=torch.int64).clamp(min=trained).to(wide)
    longer = scaling.factor * tokens / trained - (scaling.factor - 1)
    even = torch.arange(0, dim, 2, device=device, dtype=wide)
    return (theta * longer ** (dim / (dim - 2))) ** (-even / dim)


def _yarn(scaling: RotaryScaling, theta: float, dim: int, plain: Tensor) -> Tensor:
    def pair_of(turns: float) -> float:
        per_turn = scaling.original_max_position_embeddings / (turns * 2 * pi)
        return dim * log(per_turn) / (2 * log(theta))

    low, high = pair_of(scaling.beta_fast), pair_of(scaling.beta_slow)
    if scaling.truncate:
        low, high = floor(low), ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    # As in transformers, where a range of one pair would divide by zero.
    high = high + 0.001 if high == low else high
    pair = torch.arange(dim // 2, device=plain.device, dtype=plain.dtype)
    interpolated = ((pair - low) / (high - low)).clamp(0, 1)
    return plain * (1 - interpolated) + plain / scaling.factor * interpolated


def _longrope(scaling: RotaryScaling, plain: Tensor, length: int) -> Tensor:
    short, long = (
        torch.tensor(factors, device=plain.device, dtype=plain.dtype)
        for factors in (scaling.short_factor, scaling.long_factor)
    )
    # A tensor: a length may be a symbol of `torch.compile`.
    tokens = torch.full((), length, device=plain.device, dtype=torch.int64)
    return plain / torch.where(tokens > scaling.original_max_position_embeddings, long, short)


def _llama3(scaling: RotaryScaling, plain: Tensor) -> Tensor:
    turns = scaling.original_max_position_embeddings * plain / (2 * pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return plain * kept + plain / scaling.factor * (1 - kept)
