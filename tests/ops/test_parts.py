"""Parts of each row's keys, put together: output and every gradient are those of one call."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from relpos import BackendError, Terms
from relpos.ops import tiled
from relpos.ops.dispatch import choose, choose_for_parts
from relpos.ops.inputs import DropoutOrigin, Inputs, prepare
from relpos.ops.parts import RowFlow, RowSums
from tests.ops.agreement import assert_agrees, assert_within_budget, cast
from tests.ops.backends import DTYPES, every_blockwise
from tests.ops.cases import CASES, Case
from tests.ops.results import ramp

NAMES = [
    name for name, case in CASES.items()
    if case.keys > 3 and not case.hide_far and case.query_start is None
]  # fmt: skip
SEED = torch.tensor(12345)


def calls(case: Case, named: dict[str, Tensor], cuts: list[int], dropout: float) -> list[Inputs]:
    """One call for each part of the keys, of which each begins at one of the cuts."""
    start, found = case.keys - case.queries, []
    for first, end in pairwise([*cuts, case.keys]):
        mask, ranges, documents = (named.get(x) for x in ("mask", "key_ranges", "documents"))
        if mask is not None and mask.shape[-1] > 1:
            mask = mask[..., first:end]
        inputs = prepare(
            "attention", named["q"], named["k"][:, :, first:end], named["v"][:, :, first:end],
            Terms(**case.tables(named), q_rel=named.get("q_rel")), mask,
            None if documents is None else documents[:, first:end],
            None if ranges is None else ranges - first,
            None if documents is None else documents[:, start : start + case.queries],
            causal=case.causal, dropout=dropout, scale=case.scale, query_start=start - first,
            window=case.window, softcap=case.softcap,
        )  # fmt: skip
        origin = DropoutOrigin(case.heads, 0, case.queries, 0, first)
        found.append(replace(inputs, seed=SEED, dropout_origin=origin))
    return found


def together(
    case: Case, named: dict[str, Tensor], backend: str, cuts: list[int], dropout: float = 0.0
) -> dict[str, Tensor]:
    """Output, log-sum-exp and gradients by name, as `HasResults.results` has them."""
    parts = calls(case, named, cuts, dropout)
    sums = RowSums.empty(named["q"], named["v"].shape[3])
    chosen = [choose_for_parts(backend, inputs) for inputs in parts]
    for number, (one, inputs) in enumerate(zip(chosen, parts, strict=True)):
        if number % 2:
            sums.add(one.part(inputs), 0, case.queries)
        else:  # the same in two runs of queries
            whole = one.part(inputs)
            middle = case.queries // 2
            for rows in (slice(0, middle), slice(middle, case.queries)):
                part = replace(
                    whole, output=whole.output[:, :, rows], softmax=whole.softmax[..., rows]
                )
                sums.add(part, rows.start, rows.stop)
    lse, softmax = sums.finish()
    output = sums.output.to(named["q"].dtype)
    finite = lse != -torch.inf
    flow = RowFlow(output, softmax, ramp(output), ramp(lse) * finite)
    wanted = [name for name, x in named.items() if x.is_floating_point()]
    found: dict[str, Tensor] = {"output": output, "lse": lse}
    for one, inputs in zip(chosen, parts, strict=True):
        of_part = one.part_gradients(inputs, flow, frozenset(wanted))
        for name in wanted:
            gradient = of_part[name]
            if name in found and (name in "kv" or (name == "mask" and named["mask"].shape[-1] > 1)):
                found[name] = torch.cat([found[name], gradient], -1 if name == "mask" else 2)
            else:
                found[name] = found[name] + gradient if name in found else gradient
    return found


@every_blockwise
@pytest.mark.parametrize("name", NAMES)
def test_parts_are_as_one_call(backend: str, name: str):
    case = CASES[name]
    named = case.inputs(dtype=DTYPES[backend])
    expected = case.results(named, backend)
    for cuts in ([0], [0, case.keys // 3, case.keys // 3 + 1], [0, case.keys - 1]):
        assert_agrees(together(case, named, backend, cuts), expected)


@every_blockwise
def test_parts_are_within_the_budget_of_half_precision(backend: str):
    case = replace(CASES["several row blocks, causal"], table_heads=2)
    for dtype in (torch.bfloat16, torch.float16):
        named = cast(case.inputs(), dtype)
        exact = case.results(cast(named, torch.float64), "reference")
        reference = case.results(named, "reference")
        found = together(case, named, backend, [0, 100, 200])
        for name, wanted in exact.items():
            assert_within_budget(found[name].to(reference[name].dtype), reference[name], wanted)


@every_blockwise
@pytest.mark.parametrize("name", ["per head", "several row blocks, causal", "grouped"])
def test_parts_drop_what_one_call_drops(backend: str, name: str):
    case = CASES[name]
    named = case.inputs(dtype=DTYPES[backend])
    whole = together(case, named, backend, [0], dropout=0.4)
    assert not torch.allclose(whole["output"], case.run(named, backend)[0])
    assert_agrees(together(case, named, backend, [0, 5, 20], dropout=0.4), whole)


@every_blockwise
def test_a_row_hidden_by_a_large_number_keeps_its_digits(backend: str):
    case = replace(CASES["plain"], mask="additive")
    named = case.inputs(dtype=DTYPES[backend])
    named["mask"] = named["mask"].masked_fill(torch.arange(33)[:, None] < 2, -1e9)
    expected = case.results(named, backend)
    found = together(case, named, backend, [0, 11, 12])
    assert expected["k"].abs().max() > 0.01
    assert_agrees(found, expected)


def test_a_backend_that_knows_no_parts_says_so():
    case = CASES["plain"]
    (inputs,) = calls(case, case.inputs(), [0], 0.0)
    with pytest.raises(BackendError, match="reference: not supported by this backend: a part of"):
        choose_for_parts("reference", inputs)
    with pytest.raises(ValueError, match="backend must be 'auto' or one of"):
        choose_for_parts("ring", inputs)


def test_the_dropout_of_a_larger_call_is_not_drawn_anew():
    """By `reference`, which "auto" takes for few scores in float64."""
    case = CASES["plain"]
    (inputs,) = calls(case, case.inputs(), [0], 0.5)
    assert inputs.dropout_origin is not None
    with pytest.raises(BackendError, match="reference: not supported by this backend: the dropout"):
        choose("reference", inputs)
    assert choose("auto", inputs) is tiled
