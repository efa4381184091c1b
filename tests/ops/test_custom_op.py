"""The plumbing that backends share: every argument arrives, and operators are what they declare."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch

from relpos import GridTerms, OffsetTable, Terms, attention
from relpos.ops.arguments import DECLARED, arguments_of, schema_type
from relpos.ops.custom_op import CustomOp
from relpos.ops.inputs import Inputs, prepare
from relpos.ops.native import library
from relpos.ops.native.ops import NATIVE
from relpos.ops.tiled.ops import TILED
from relpos.ops.triton.ops import TRITON
from tests.ops.backends import DEVICES, DTYPES, every_blockwise, native_alone

OPERATORS = {"native": NATIVE, "tiled": TILED, "triton": TRITON}


def test_every_argument_of_the_op_is_one_of_the_operators():
    given = {each.name for each in fields(Inputs)} - {"terms"}
    assert given <= DECLARED.keys()


def test_tensors_come_first():
    """Autograd saves so many of an operator's arguments, and keeps the others as they are."""
    tensors = [schema_type(name).startswith("Tensor") for name in DECLARED]
    assert tensors == sorted(tensors, reverse=True)


@every_blockwise
def test_calls_end_with_the_last_argument_that_is_set(backend: str):
    q, op = torch.randn(1, 2, 3, 4), OPERATORS[backend]

    def last(terms: Terms, **settings: Any) -> str:
        values = op.values(arguments_of(prepare("attention", q, q, q, terms, **settings)))
        return op.names[len(values) - 1]

    table = OffsetTable(torch.randn(2, 9), -4)
    zero = replace(table, beyond="zero")
    assert last(Terms()) == "scale"
    assert last(Terms(), dropout=0.1) == "dropout"
    assert last(Terms(bias=table)) == "first_offsets"
    assert last(Terms(bias=table), window=(2, None)) == "window"
    assert last(Terms(bias=zero)) == "zero_beyond"
    assert last(GridTerms(axes=(Terms(), Terms()), shape=(1, 3))) == "query_grid"


@every_blockwise
def test_an_operator_that_is_given_tensors_alone_has_a_derivative(backend: str):
    """Torch tells autograd nothing of arguments that are left out."""
    dtype, device = DTYPES[backend], DEVICES[backend]
    leaves = [
        torch.randn(1, 2, 5, 4, dtype=dtype, device=device).requires_grad_() for _ in range(3)
    ]
    operator = getattr(torch.ops.relpos, f"{backend}_forward").default
    found, expected = operator(*leaves)[0], attention(*leaves, scale=1.0, backend="reference")
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(x.square().sum(), leaves) for x in (found, expected)]
    torch.testing.assert_close(*gradients)


def test_arguments_hold_what_was_given():
    q, mask = torch.randn(1, 2, 3, 4), torch.zeros(3, 3, dtype=torch.float64)
    terms = Terms(
        queries=OffsetTable(torch.randn(2, 5, 4), -3),
        bias=OffsetTable(torch.randn(1, 2), 1, beyond="zero"),
    )
    inputs = prepare(
        "attention", q, q, q, terms, mask, None, causal=True, dropout=0.25, scale=2.0,
        query_start=7, return_lse=True,
    )  # fmt: skip
    found = arguments_of(inputs)
    assert found.q is q
    assert found.keys is found.values is found.documents is None
    assert (found.first_offsets, found.zero_beyond) == ([0, -3, 1, 0], [0, 0, 1, 0])
    assert (found.causal, found.dropout, found.scale, found.query_start) == (True, 0.25, 2.0, 7)
    assert found.return_lse
    assert found.mask is not None
    assert found.mask.dtype == torch.float32
    assert found.terms.tables["bias"].beyond == "zero"


@every_blockwise
def test_operators_have_the_declared_schemas(backend: str):
    op = OPERATORS[backend]
    assert op.difference() is None
    other = CustomOp(backend, results=op.results, without=("mask",))
    assert f"relpos::{backend}_forward(Tensor q" in str(other.difference())


@native_alone
def test_a_kernel_with_another_schema_is_not_called(backend: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(library, "NATIVE", CustomOp(backend, results=("output", "lse")))
    reason = library._link()
    assert reason is not None
    assert reason.startswith("its compiled kernel is of another version of relpos: it has relpos::")
    monkeypatch.setattr(library, "NATIVE", CustomOp("renamed", results=("output", "lse")))
    reason = library._link()
    assert reason is not None
    assert reason.endswith("of another version of relpos: it has no renamed_forward")


@every_blockwise
def test_an_unused_log_sum_exp_costs_no_gradient(backend: str):
    """Of either result alone, or of both, the gradients add up."""
    q = torch.randn(1, 2, 5, 4, dtype=DTYPES[backend], requires_grad=True)
    output, lse = attention(q, q, q, backend=backend, return_lse=True)
    parts = [torch.autograd.grad(x.sum(), q, retain_graph=True)[0] for x in (output, lse)]
    (both,) = torch.autograd.grad(output.sum() + lse.sum(), q)
    torch.testing.assert_close(parts[0] + parts[1], both)
