"""A case of the op on several ranks: its shards, and what each rank finds against one process."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, distributed

import relpos.distributed as cut
from relpos.distributed.exchange import count_bytes
from relpos.distributed.group import AnyGroup, resolve_group
from tests.ops.cases import Case
from tests.ops.grid_cases import GridCase
from tests.ops.results import ramp

__all__ = ["check_case", "relative_error", "world"]


def world() -> distributed.ProcessGroup:
    """The group of all ranks."""
    group = distributed.group.WORLD
    assert group is not None
    return group


def relative_error(found: Tensor, expected: Tensor) -> float:
    """The largest difference over the largest number, or over 1 if that is smaller."""
    if not expected.numel():
        return 0.0
    finite = expected.isfinite()
    assert torch.equal(found.isfinite(), finite)
    found, expected = found.masked_fill(~finite, 0), expected.masked_fill(~finite, 0)
    return (found - expected).abs().max().item() / max(1.0, expected.abs().max().item())


def axis_of_tokens(name: str, x: Tensor) -> tuple[str, int] | None:
    """Whose tokens a tensor has and along which axis, None where it is shared by all ranks."""
    if name in ("q", "output", "lse") or name.startswith("q_rel"):
        return "queries", 2
    if name == "mask" and x.shape[2] > 1:
        return "queries", 2
    if name == "mask" and x.shape[3] > 1:
        return "keys", 3
    found = {"k": ("keys", 2), "v": ("keys", 2), "documents": ("keys", 1)}
    return ("queries", 1) if name == "key_ranges" else found.get(name)


def check_case(
    rank: int,
    size: int,
    case: Case | GridCase,
    method: str,
    layout: cut.Layout,
    key_layout: cut.Layout | None = None,
    *,
    tolerance: float = 1e-12,
    group: AnyGroup | None = None,
    **changes: object,
) -> dict[str, int]:
    """Output, log-sum-exp and every gradient of a case in float64, against one process.

    Returns:
        The bytes sent, by kind of exchange and direction.
    """
    group = group or world()
    named = case.inputs()
    expected = case.results(named, "tiled")
    layouts = {"queries": layout, "keys": key_layout or layout}

    def own(name: str, x: Tensor, like: Tensor | None = None) -> Tensor:
        axis = axis_of_tokens(name, x if like is None else like)
        return x if axis is None else cut.shard(x, group, layouts[axis[0]], axis[1])

    local = {
        name: own(name, x).detach().clone().requires_grad_(x.is_floating_point())
        for name, x in named.items()
    }
    if "documents" in named and isinstance(case, Case):
        start = case.keys - case.queries if case.query_start is None else case.query_start
        if start or case.queries != case.keys or key_layout is not None:
            of_queries = named["documents"][:, start : start + case.queries]
            changes["query_documents"] = cut.shard(of_queries, group, layout, 1)
    attend = partial(
        cut.attention, group=group, layout=layout, key_layout=key_layout, method=method
    )
    with count_bytes() as sent:
        output, lse = case.run(local, "tiled", attend, **changes)
        counts = {f"forward {kind}": count for kind, count in sent.items()}
        finite = lse.masked_fill(lse == -torch.inf, 0)
        total = sum(
            (own(name, ramp(expected[name])) * x).sum()
            for name, x in (("output", output), ("lse", finite))
        )
        wanted = [name for name, x in local.items() if x.requires_grad]
        gradients = torch.autograd.grad(total, [local[name] for name in wanted])  # type: ignore[arg-type]
    found = {"output": output.detach(), "lse": lse.detach()}
    found |= dict(zip(wanted, gradients, strict=True))
    for name, part in found.items():
        x = part
        if name not in ("output", "lse") and axis_of_tokens(name, named[name]) is None:
            x = part.contiguous()  # each rank has its part
            distributed.all_reduce(x, group=resolve_group("test", group).group)
        error = relative_error(x, own(name, expected[name], named.get(name)))
        assert error <= tolerance, f"{name}: {error:.2e}"
    both = {f"both {kind}": count for kind, count in sent.items()}
    return counts | both
