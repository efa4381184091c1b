"""A scheme of relpos beside somebody else's implementation of it, with the same weights.

Both sides are functions of the same leaves: the layer's input and the parameters of the other
implementation, which reach ours through `functional_call`. So one set of leaves has two outputs
and two gradients, and those are what is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from math import sqrt

import torch
from torch import Tensor, nn
from torch.func import functional_call

import relpos

__all__ = [
    "Comparison",
    "Difference",
    "Trial",
    "attended",
    "compare",
    "off_by_one",
    "randomized",
]

# The lengths at which a comparison runs unless it says otherwise: odd, and a single token.
LENGTHS = ({"length": 1}, {"length": 33}, {"length": 65, "padded": True})


@dataclass(frozen=True)
class Trial:
    """Two outputs from the same leaves.

    Args:
        ours: output of relpos.
        theirs: output of the other implementation.
        leaves: what both were computed from, by name.
        tables: the names among `leaves` that hold positions: their gradients may not vanish.
        plain: for positions without tables, the output without positions, which must be another.
    """

    ours: Tensor
    theirs: Tensor
    leaves: Mapping[str, Tensor]
    tables: Sequence[str] = ()
    plain: Tensor | None = None


@dataclass(frozen=True)
class Difference:
    """The largest differences of a trial, as parts of the largest value that was compared.

    Args:
        forward: of the outputs.
        gradients: of the gradients with respect to every leaf.
        tables: how large the smallest table gradient is, on the same scale; without tables, how
            far the output is from the one without positions.
        summands: size of the largest tensor among the output and the leaves; sums run over it.
    """

    forward: float
    gradients: float
    tables: float
    summands: int


@dataclass(frozen=True)
class Comparison:
    """One implementation that has the same formula as a scheme of relpos.

    Args:
        scheme: class in `relpos.positions`.
        implementation: their class or function.
        package: distribution that it is installed from.
        formula: what the scores (or values) get, as their code has it.
        run: builds both sides for a case.
        cases: arguments for `run`.
        precision: unit roundoff of the least precise step on either side.
        remark: what explains a precision below float64, or another oddity.
        wrong: arguments for `run`, beside those of the last case, with which ours is something
            else: another window, no softcap. Each must be seen.
    """

    scheme: str
    implementation: str
    package: str
    formula: str
    run: Callable[..., Trial]
    cases: Sequence[Mapping[str, object]] = LENGTHS
    precision: float = torch.finfo(torch.float64).eps
    remark: str = ""
    wrong: Sequence[Mapping[str, object]] = ()

    @property
    def name(self) -> str:
        """What tells it from the others."""
        remark = f" ({self.remark})" if self.remark else ""
        return f"{self.scheme}: {self.implementation}{remark}"

    def named(self) -> dict[str, str]:
        """What is compared, in words."""
        return {
            "scheme": self.scheme,
            "implementation": self.implementation,
            "package": self.package,
            "version": version(self.package),
            "formula": self.formula,
            "remark": self.remark,
        }

    def bound(self, summands: int) -> float:
        """What rounding explains: the errors of a sum grow with the root of its length."""
        return self.precision * sqrt(summands)


def compare(trial: Trial) -> Difference:
    """The largest difference of the two outputs and of their gradients.

    The gradients are those of one random weighting of the output. A leaf that has no part in an
    output has gradient zero there.
    """
    draw = torch.Generator().manual_seed(1)
    weights = torch.randn(trial.theirs.shape, generator=draw, dtype=trial.theirs.dtype)
    if trial.ours.shape != trial.theirs.shape:
        raise AssertionError(f"{tuple(trial.ours.shape)} is not {tuple(trial.theirs.shape)}")
    ours, theirs = (
        torch.autograd.grad(
            output, list(trial.leaves.values()), weights, allow_unused=True, materialize_grads=True
        )
        for output in (trial.ours, trial.theirs)
    )
    largest = _largest(theirs)
    named = dict(zip(trial.leaves, theirs, strict=True))
    taken = [_largest([named[name]]) / largest for name in trial.tables]
    if trial.plain is not None:
        taken.append(_largest([trial.theirs - trial.plain]) / _largest([trial.theirs]))
    return Difference(
        forward=_largest([trial.ours - trial.theirs]) / _largest([trial.theirs]),
        gradients=_largest(map(torch.sub, ours, theirs)) / largest,
        tables=min(taken),
        summands=max(tensor.numel() for tensor in (trial.theirs, *trial.leaves.values())),
    )


def _largest(tensors: Iterable[Tensor]) -> float:
    """The largest absolute value of all; a NaN anywhere stays one."""
    return torch.stack([values.detach().abs().max() for values in tensors]).max().item()


def randomized(module: nn.Module, *, seed: int = 0) -> nn.Module:
    """`module` in float64 without dropout, each parameter drawn so that scores are around 1."""
    draw = torch.Generator().manual_seed(seed)
    module = module.double().eval()
    with torch.no_grad():
        for rows in module.parameters():
            fan_in = rows[0].numel() if rows.ndim > 1 else 4
            rows.copy_(torch.randn(rows.shape, generator=draw, dtype=rows.dtype) * fan_in**-0.5)
    return module


def off_by_one(left: int, right: int) -> list[dict[str, object]]:
    """As arguments for a `run`, the windows with one token less or more on one side."""
    sides = ((left - 1, right), (left + 1, right), (left, right - 1), (left, right + 1))
    return [{"window": window} for window in sides]


def attended(
    position: nn.Module,
    tables: Mapping[str, Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    x: Tensor | None = None,
    *,
    shape: tuple[int, int] | None = None,
    **arguments: object,
) -> Tensor:
    """`relpos.attention` with a scheme whose parameters are `tables`, differentiable in them.

    `x` and `shape` are for schemes that read the layer's input, or another grid than their own.
    """
    own = dict(position.named_parameters())
    for name in own.keys() | tables.keys():
        given, wanted = (tuple(of[name].shape) if name in of else None for of in (tables, own))
        if given != wanted:
            raise AssertionError(f"{name}: {given} is not {wanted}")
    inputs = (q, k) if x is None else (q, k, x)
    grid = {} if shape is None else {"shape": shape}
    state = {**tables, **dict(position.named_buffers())}
    q, k, terms = functional_call(position, state, inputs, grid, strict=True)
    return relpos.attention(q, k, v, terms, **arguments)
