"""How the tokens of a layer of some heads lie on the ranks: whole on each, or cut among them.

Attention needs all tokens; what lies between layers (norms, dropout, residuals) acts on each token
by itself, and where tokens are cut there, every rank keeps and computes a share of it: Megatron's
sequence parallelism (Korthikanti et al. 2022, section 4.2.2), torch's `SequenceParallel`. In 32
bits no more is sent: a gather and a scattered sum are together what a sum is. In 16 it is half as
much again, since scattered sums are taken in 32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from ...checks import check_tensor, one_line
from ..ranks.exchange import SpansOfRanks

__all__ = [
    "INPUTS",
    "LocalTokens",
    "TokenLayouts",
    "check_token_layouts",
    "cut_axis",
    "cut_evenly",
    "local_tokens",
    "spans_of_lengths",
]

INPUTS = ("query", "key", "value")


@dataclass(frozen=True)
class TokenLayouts:
    """Where a layer finds its tokens, and leaves them.

    Args:
        mesh: of the ranks.
        inputs: of query, key and value, those that are plain tensors: `Replicate()`, or `Shard` of
            the axis of tokens. DTensors say it themselves.
        output: likewise.
        use_local_output: whether the output is a plain tensor, or else a DTensor.
    """

    mesh: DeviceMesh
    inputs: tuple[Placement, Placement, Placement]
    output: Placement
    use_local_output: bool

    def __deepcopy__(self, memo: dict[int, object]) -> TokenLayouts:
        # A copied model is of the same processes.
        return self


@dataclass(frozen=True)
class LocalTokens:
    """What this rank was given as query, key or value.

    Args:
        x: plain tensor, the whole or this rank's tokens.
        axis: along which it is cut; None where it is whole.
    """

    x: Tensor
    axis: int | None


def check_token_layouts(
    function: str, inputs: object, output: object
) -> tuple[Placement, Placement, Placement]:
    """One for each input.

    Raises:
        TypeError: if one is no placement.
        ValueError: if there are not three, or one is neither `Replicate()` nor `Shard`.
    """
    each = inputs if isinstance(inputs, tuple | list) else (inputs,) * 3
    if len(each) != 3:
        raise ValueError(
            f"{function}: input_layouts must be one placement, or three of query, key and value, "
            f"got {len(each)}"
        )
    _checked(function, "output_layouts", output)
    query, key, value = (_checked(function, "input_layouts", placement) for placement in each)
    return query, key, value


def _checked(function: str, name: str, placement: object) -> Placement:
    said = f"{function}: {name} must be Replicate() or Shard(axis of tokens), got "
    if not isinstance(placement, Placement):
        raise TypeError(f"{said}{one_line(placement)}")
    if not isinstance(placement, Replicate | Shard):
        raise ValueError(f"{said}{placement}")
    return placement


def local_tokens(
    name: str, x: object, layout: Placement, mesh: DeviceMesh, *, batch_first: bool
) -> LocalTokens:
    """What a layer is given as query, key or value.

    Args:
        name: of the argument.
        x: the argument.
        layout: of plain tensors.
        mesh: of the ranks.
        batch_first: of the layer.

    Raises:
        TypeError: if it is no tensor.
        ValueError: if it is cut along another axis than that of tokens, or over other ranks.
    """
    function = "MultiheadAttention"
    check_tensor(function, name, x)
    assert isinstance(x, Tensor)
    if isinstance(x, DTensor):
        if x.device_mesh != mesh:
            raise ValueError(
                f"{function}: {name} must be a DTensor over the mesh of HeadParallel, {mesh}, "
                f"got one over {x.device_mesh}"
            )
        (layout,) = x.placements
        x = x.to_local()
    return LocalTokens(x, cut_axis(name, layout, x.ndim, batch_first=batch_first))


def cut_axis(name: str, layout: Placement, ndim: int, *, batch_first: bool) -> int | None:
    """The axis of tokens, or None where they are whole.

    Args:
        name: of the argument or result.
        layout: of the tokens.
        ndim: of the tensor: `(i, e)`, `(b, i, e)`, or `(i, b, e)` without `batch_first`. One with
            other axes, which the layer refuses, passes for whole.
        batch_first: of the layer.
    """
    if isinstance(layout, Replicate) or ndim not in (2, 3):
        return None
    axis = 1 if batch_first and ndim == 3 else 0
    if not isinstance(layout, Shard) or layout.dim not in (axis, axis - ndim):
        raise ValueError(
            f"MultiheadAttention: {name} must be whole on every rank, Replicate(), or cut along "
            f"its tokens, Shard({axis}), got {layout}"
        )
    return axis


def spans_of_lengths(lengths: Sequence[int]) -> SpansOfRanks:
    """What each rank has of a sequence, in the order of the ranks."""
    return tuple((span,) for span in pairwise(accumulate(lengths, initial=0)))


def cut_evenly(length: int, size: int) -> SpansOfRanks:
    """What each of `size` ranks has of a sequence that DTensors cut: as `torch.chunk`."""
    each = -(-length // size)
    ends = [min(each * rank, length) for rank in range(size + 1)]
    return tuple((span,) for span in pairwise(ends))
