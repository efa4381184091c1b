"""What of a call must be the same on every rank."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from ...ops.inputs import Inputs
from ...ops.locality import AnyWindow
from ...terms import GridTerms, Terms

__all__ = ["call_facts", "described"]

_NO_NAMES: Mapping[Any, str] = MappingProxyType({})


def described(x: Tensor, names: Mapping[Any, str] = _NO_NAMES) -> object:
    """What of a tensor must be the same on every rank.

    Args:
        x: on this rank.
        names: in place of sizes that may differ, by axis.
    """
    sizes = [names.get(n, size) for n, size in enumerate(x.shape)]
    learns = torch.is_grad_enabled() and x.requires_grad
    return sizes, str(x.dtype), "requires_grad" if learns else "no gradient", x.device.type


def call_facts(
    local: Inputs,
    *,
    query_start: int | None,
    layout: str,
    key_layout: str,
    method: str,
    window: AnyWindow,
    backend: str,
    return_lse: bool,
) -> dict[str, object]:
    """What must be the same on every rank, by what users call it.

    Args:
        local: this rank's arguments after checking.
        query_start: as it was given, like all that follow.
        layout: of the queries.
        key_layout: of the keys.
        method: by name.
        window: of the call.
        backend: by name.
        return_lse: whether the log-sum-exp is asked for.
    """
    facts: dict[str, object] = {}
    for name, x, axis in _named_tensors(local):
        # The tokens of a mask are looked at with the lengths of all ranks.
        axes_of_tokens = {2: "queries", 3: "keys"} if name == "mask" else {axis: "tokens"}
        facts[name] = described(x, axes_of_tokens)
    facts |= {
        "layout": layout, "key_layout": key_layout, "method": method, "causal": local.causal,
        "dropout": local.dropout, "scale": local.scale, "query_start": query_start,
        "softcap": local.softcap, "backend": backend, "return_lse": return_lse,
    }  # fmt: skip
    grid = local.terms if isinstance(local.terms, GridTerms) else None
    # That of a grid is resolved later.
    facts["window"] = local.window if grid is None else _as_tuples(window)
    if grid is not None:
        facts["terms"] = (grid.shape, grid.query_grid, grid.prefix)
    axes = grid.axes if grid is not None else (local.terms,)
    for number, axis_terms in enumerate(axes):
        assert isinstance(axis_terms, Terms)
        for name, table in axis_terms.tables.items():
            facts[f"terms: {name} of axis {number}"] = (table.first, table.beyond)
    return facts


def _as_tuples(window: object) -> object:
    """The same, however its pairs are written."""
    if isinstance(window, tuple | list):
        return tuple(_as_tuples(each) for each in window)
    return window


def _named_tensors(local: Inputs) -> list[tuple[str, Tensor, int | None]]:
    """Each tensor of a call with its name and, where it has one, the axis of this rank's tokens."""
    named: list[tuple[str, Tensor | None, int | None]] = [
        ("q", local.q, 2), ("k", local.k, 2), ("v", local.v, 2),
        ("documents", local.documents, 1), ("query_documents", local.query_documents, 1),
        ("key_ranges", local.key_ranges, 1), ("mask", local.mask, None),
    ]  # fmt: skip
    if isinstance(local.terms, GridTerms):
        named.append(("terms.joint_bias", local.terms.joint_bias, None))
        axes = [(f"terms.axes[{n}]", axis) for n, axis in enumerate(local.terms.axes)]
    else:
        axes = [("terms", local.terms)]
    for of, terms in axes:
        named += [(f"{of}.{name}.rows", table.rows, None) for name, table in terms.tables.items()]
        named.append((f"{of}.q_rel", terms.q_rel, 2))
    return [(name, x, axis) for name, x, axis in named if x is not None]
