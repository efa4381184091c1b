"""`relpos plan`: how a long sequence is best cut among devices, on paper."""

# ruff: noqa: PLC0415
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from relpos.distributed.cost import Cluster, Cost, Shape

__all__ = ["plan_command"]

_GIB = 1 << 30


class Dtype(StrEnum):
    """What queries, keys and values are in."""

    bf16 = "bf16"
    fp16 = "fp16"
    fp32 = "fp32"


_BYTES = {Dtype.bf16: 2, Dtype.fp16: 2, Dtype.fp32: 4}


def plan_command(
    *,
    length: Annotated[int, typer.Option(min=1, help="Tokens of the whole sequence.")],
    ranks: Annotated[int, typer.Option(min=1, help="Devices that share it.")],
    heads: Annotated[int, typer.Option(min=1, help="Query heads.")],
    kv_heads: Annotated[
        int | None, typer.Option(min=1, help="Key and value heads; as many by default.")
    ] = None,
    head_dim: Annotated[int, typer.Option(min=1, help="Width of a head.")] = 128,
    batch: Annotated[int, typer.Option(min=1, help="Sequences at a time.")] = 1,
    dtype: Annotated[Dtype, typer.Option(help="Of queries, keys and values.")] = Dtype.bf16,
    causal: Annotated[
        bool, typer.Option("--causal/--no-causal", help="Whether keys ahead are left out.")
    ] = True,
    window: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Tokens before the query that it sees, without --causal as many after it; all by "
            "default.",
        ),
    ] = None,
    inner: Annotated[
        int,
        typer.Option(
            min=1,
            help="Devices along the last dimension of a mesh of two, which exchange tokens for "
            "heads, while a ring or gathering goes over the first; 1 has no such dimension.",
        ),
    ] = 1,
    flops: Annotated[
        float, typer.Option(help="FLOP/s of a device in attention: measured, not its peak.")
    ] = 4e14,
    bandwidth: Annotated[float, typer.Option(help="Bytes/s from a device to the next.")] = 5e10,
    inner_bandwidth: Annotated[
        float | None,
        typer.Option(
            help="Bytes/s among the --inner devices, or in any mesh that is named; that of all by "
            "default."
        ),
    ] = None,
    latency: Annotated[float, typer.Option(help="Seconds until a first byte arrives.")] = 1e-5,
    memory: Annotated[
        float | None, typer.Option(help="GiB of a device for one attention; any by default.")
    ] = None,
) -> None:
    """Print for each method of `relpos.distributed.attention` what one attention costs a device.

    Time and bytes forward and backward, whether sending is hidden behind computing, memory, and
    which method is the fastest that fits. The formulas are those of `relpos.distributed.cost`.
    """
    from relpos.distributed.cost import PLAN_ERROR, Cluster, Shape, cost, hidden_from
    from relpos.distributed.methods.choice import METHODS

    if memory is not None and not memory > 0:
        raise ValueError(f"--memory: must be above 0, got {memory:g}")
    try:
        shape = Shape(
            length, ranks, heads, kv_heads, head_dim, batch, _BYTES[dtype], causal, window, inner
        )
        cluster = Cluster(flops, bandwidth, latency, inner_bandwidth)
    except ValueError as error:
        # In the words of the options.
        what, _, rule = str(error).partition(": ")[2].partition(" ")
        raise ValueError(f"--{what.replace('_', '-')}: {rule}") from error
    costs = [cost(shape, cluster, method) for method in METHODS]
    devices, tokens = "device" if ranks == 1 else "devices", "token" if length == 1 else "tokens"
    mesh = "" if inner == 1 else f", in a mesh of {ranks // inner} x {inner}"
    typer.echo(
        f"{length:,} {tokens} on {ranks} {devices}, {length // ranks:,} each"
        f"{' or one more' if length % ranks else ''}{mesh}; {heads} query and "
        f"{shape.kv_heads} key heads of width {head_dim}, {dtype}{', causal' if causal else ''}"
        f"{'' if window is None else f', under a window of {window:,} tokens'}"
    )
    typer.echo("per device and attention, forward + backward:")
    for one in costs:
        typer.echo(f"  {one.method:<7} {_words(one)}")
    if window is None and inner < ranks:
        least = hidden_from(shape, cluster)
        typer.echo(f"a ring hides what it sends from {least:,.0f} tokens a device on")
    typer.echo(
        "measured on 2 and 4 processes of one machine, on gloo, without a window, "
        f"these times and tensors were up to {PLAN_ERROR:.0%} off"
    )
    best = _fastest(costs, memory)
    if best is None:
        least = min((one for one in costs if one.impossible is None), key=lambda one: one.memory)
        typer.echo(
            f"none fits {memory:g} GiB: {least.method} needs {_bytes(least.memory)}; take more "
            "devices, or fewer sequences at a time"
        )
    else:
        others = f" of those that fit {memory:g} GiB" if memory is not None else ""
        typer.echo(f"fastest{others}: {_arguments(best, shape)}")
    if inner == 1:
        typer.echo(_faster_mesh(shape, cluster, best, memory), nl=False)


def _words(one: Cost) -> str:
    if one.impossible is not None:
        return f"not possible: {one.impossible}"
    seconds, sent = (" + ".join(map(unit, pair)) for unit, pair in (
        (_seconds, one.seconds), (_bytes, one.sent)
    ))  # fmt: skip
    busy = sum(one.computing) / sum(one.seconds)
    hidden = "hidden behind computing" if one.hidden else f"computing {busy:.0%} of the time"
    return f"{seconds}, sends {sent}, {hidden}; {_bytes(one.memory)} of tensors"


def _fastest(costs: Iterable[Cost], memory: float | None) -> Cost | None:
    """The one that takes the least time of those that fit."""
    fitting = (
        one for one in costs
        if one.impossible is None and (memory is None or one.memory <= memory * _GIB)
    )  # fmt: skip
    return min(fitting, key=_time_and_memory, default=None)


def _time_and_memory(one: Cost) -> tuple[float, float]:
    return sum(one.seconds), one.memory


def _arguments(best: Cost, shape: Shape) -> str:
    """What `relpos.distributed.attention` is to be given."""
    layout = "zigzag" if shape.causal else ""
    others = shape.ranks // shape.inner - 1
    # Where keys go all the way round, contiguous work would be uneven.
    if best.method == "ring" and replace(shape, ranks=others + 1, inner=1).visits < others:
        layout = "contiguous"
    return f"method={best.method!r}" + (f", layout={layout!r}" if layout else "")


def _faster_mesh(shape: Shape, cluster: Cluster, best: Cost | None, memory: float | None) -> str:
    """A line on the mesh of two dimensions that is faster than one of one, or nothing."""
    from relpos.distributed.cost import cost

    sizes = [n for n in range(2, min(shape.heads, shape.ranks) + 1) if shape.ranks % n == 0]
    shapes = {
        cost(each, cluster, method): each
        for each in (replace(shape, inner=n) for n in sizes) for method in ("gather", "ring")
    }  # fmt: skip
    found = _fastest(shapes, memory)
    if found is None or (best is not None and sum(found.seconds) >= sum(best.seconds)):
        return ""
    inner = shapes[found].inner
    return (
        f"{'it fits' if best is None else 'faster'} on a mesh of {shape.ranks // inner} x {inner} "
        f"(--inner {inner}): {_arguments(found, shape)}, "
        f"{' + '.join(map(_seconds, found.seconds))}\n"
    )


def _seconds(seconds: float) -> str:
    for unit, size in (("s", 1), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"


def _bytes(count: float) -> str:
    for unit, size in (("GiB", _GIB), ("MiB", 1 << 20)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count / 1024:.3g} KiB"
