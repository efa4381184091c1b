"""A case of the op on several ranks: its shards, and what each rank finds against one process."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, distributed

import relpos.distributed as cut
from relpos.distributed.ranks.exchange import count_bytes
from relpos.distributed.ranks.group import AnyGroup, resolve_group
from tests.ops.agreement import assert_within_budget, cast
from tests.ops.cases import Case
from tests.ops.grid_cases import GridCase
from tests.ops.results import ramp

__all__ = ["check_case", "check_float32", "relative_error", "world"]


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
    key_layout: cut.KeyLayout | None = None,
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
    found, sent = cut_results(
        case, named, expected, method, layout, key_layout, group=group, **changes
    )
    layouts = layouts_of(layout, key_layout)
    for name, x in found.items():
        error = relative_error(x, own(name, expected[name], group, layouts, named.get(name)))
        assert error <= tolerance, f"{name}: {error:.2e}"
    return sent


def layouts_of(layout: cut.Layout, key_layout: cut.KeyLayout | None) -> dict[str, cut.KeyLayout]:
    """Of queries and of keys."""
    return {"queries": layout, "keys": key_layout or layout}


def own(
    name: str,
    x: Tensor,
    group: AnyGroup,
    layouts: dict[str, cut.KeyLayout],
    like: Tensor | None = None,
) -> Tensor:
    """This rank's part of a tensor, which is whole if ranks share it."""
    axis = axis_of_tokens(name, x if like is None else like)
    if axis is None or (layout := layouts[axis[0]]) == "whole":
        return x
    return cut.shard(x, group, layout, axis[1])


def cut_results(
    case: Case | GridCase,
    named: dict[str, Tensor],
    expected: dict[str, Tensor],
    method: str,
    layout: cut.Layout,
    key_layout: cut.KeyLayout | None = None,
    *,
    group: AnyGroup,
    backend: str = "tiled",
    **changes: object,
) -> tuple[dict[str, Tensor], dict[str, int]]:
    """This rank's output, log-sum-exp and gradients of a case, and the bytes that it sent."""
    layouts = layouts_of(layout, key_layout)
    local = {
        name: own(name, x, group, layouts).detach().clone().requires_grad_(x.is_floating_point())
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
        output, lse = case.run(local, backend, attend, **changes)
        counts = {f"forward {kind}": count for kind, count in sent.items()}
        finite = lse.masked_fill(lse == -torch.inf, 0)
        loss = sum(
            (own(name, ramp(expected[name]), group, layouts).to(x.dtype) * x).sum()
            for name, x in (("output", output), ("lse", finite))
        )
        wanted = [name for name, x in local.items() if x.requires_grad]
        gradients = torch.autograd.grad(loss, [local[name] for name in wanted])  # type: ignore[arg-type]
    found = {"output": output.detach(), "lse": lse.detach()}
    for name, x in zip(wanted, gradients, strict=True):
        found[name] = x
        axis = axis_of_tokens(name, named[name])
        if axis is None or layouts[axis[0]] == "whole":
            found[name] = x.contiguous()  # each rank has its part
            distributed.all_reduce(
                found[name], group=resolve_group("test", group, most_dims=2).group
            )
    return found, counts | {f"both {kind}": count for kind, count in sent.items()}


def check_float32(
    rank: int, size: int, case: Case, method: str, backend: str, group: AnyGroup | None = None
) -> None:
    """A backend in float32 over a cut sequence, within the budget of one device.

    A score's gradient is a difference of two products with the output's gradient, one of which is
    taken over all keys before: what is exact there is so to the rounding of the products.
    """
    group, layouts = group or world(), layouts_of("zigzag", None)
    drawn: dict[str, list[tuple[Tensor, Tensor, Tensor]]] = {}
    products = 0.0
    for seed in range(3):
        named = cast(case.inputs(seed), torch.float32)
        exact = case.results(cast(named, torch.float64), "tiled")
        reference = case.results(named, "reference")
        output = exact["output"]
        products = max(products, (ramp(output) * output).abs().sum(-1).max().item())
        found, _ = cut_results(case, named, exact, method, "zigzag", group=group, backend=backend)
        for name, part in found.items():
            axis = axis_of_tokens(name, named.get(name, part))
            x = part if axis is None else cut.unshard(part, group, layouts[axis[0]], axis[1])
            drawn.setdefault(name, []).append((x, reference[name], exact[name]))
    for name, several in drawn.items():
        x, about, wanted = (torch.stack(each) for each in zip(*several, strict=True))
        cancels = name not in ("output", "lse", "v", "values")
        assert_within_budget(x, about, wanted, scale=products if cancels else 0.0)
