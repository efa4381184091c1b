"""A window with global tokens is attention under one dense mask, gradients included."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

import relpos
from relpos import GridTerms, ShapeError, Terms, global_local_attention
from tests.ops.agreement import assert_agrees
from tests.ops.backends import DTYPES, every_backend, every_cpu_blockwise
from tests.ops.cases import CASES, Case, any_case

WINDOWS = [(3, 5), (0, 0), (4, 0), (None, 2), (2, None)]


def allowed(case: Case, window: tuple, tokens: set[int]) -> Tensor:
    """`(i, j)`: True where a pair is in the window, or one of the two is global."""
    i, j = case.queries, case.keys
    at = torch.arange(j - i, j)[:, None]
    offset = torch.arange(j) - at
    left, right = (i + j if side is None else side for side in window)
    of = torch.zeros(i + j, dtype=torch.bool)
    of[list(tokens)] = True
    # Queries before the first key are no token that could be global.
    queries = of[at.clamp(min=0)] & (at >= 0)
    return (-left <= offset) & (offset <= right) | of[:j] | queries


def dense(case: Case, named: dict[str, Tensor], window: tuple, tokens: set[int]) -> tuple:
    """Output and log-sum-exp of the reference under the mask of all pairs."""
    pairs, mask = allowed(case, window, tokens), named.get("mask")
    if mask is None:
        mask = pairs[None, None]
    else:
        mask = mask & pairs if mask.dtype == torch.bool else mask.masked_fill(~pairs, -torch.inf)
    return case.run(named, "reference", mask=mask)


def run(case: Case, named: dict[str, Tensor], backend: str, window: tuple, tokens) -> tuple:
    return global_local_attention(
        named["q"], named["k"], named["v"], Terms(**case.tables(named), q_rel=named.get("q_rel")),
        window=window, global_tokens=tokens, causal=case.causal, mask=named.get("mask"),
        scale=case.scale, softcap=case.softcap, backend=backend, return_lse=True,
    )  # fmt: skip


def alone(case: Case) -> Case:
    return replace(case, documents=None, ranges=None, window=None, query_start=None)


@every_backend
@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    case=any_case(),
    window=st.sampled_from(WINDOWS),
    tokens=st.sets(st.integers(0, 23), max_size=4),
    first=st.booleans(),
    seed=st.integers(0, 999),
)
def test_any_global_tokens_equal_one_dense_mask(
    backend: str, case: Case, window: tuple, tokens: set[int], first: bool, seed: int
):
    case, named = alone(case), alone(case).inputs(seed, DTYPES[backend])
    tokens = {token for token in tokens if token < case.keys}
    if first:
        tokens = set(range(len(tokens)))
    found = run(case, named, backend, window, len(tokens) if first else sorted(tokens)[::-1])
    assert_agrees(found, dense(case, named, window, tokens))


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("all offsets", 2),
        ("per head", [0, 1, 9, 30, 31]),
        ("grouped, per head", range(0, 33, 8)),
        ("q_rel, zero beyond, causal", 3),
        ("additive, hiding", [4, 32]),
        ("fewer queries", [1, 40, 64]),
        ("softcap", 1),
    ],
)
@every_backend
def test_gradients_equal_those_of_one_dense_mask(name: str, tokens, backend: str):
    case = CASES[name]
    named = case.inputs(dtype=DTYPES[backend])
    named = {n: x.requires_grad_(x.is_floating_point()) for n, x in named.items()}
    leaves = [x for x in named.values() if x.requires_grad]
    where = set(range(tokens)) if isinstance(tokens, int) else set(tokens)

    def gradients(output: Tensor, lse: Tensor) -> tuple[Tensor, ...]:
        ramp = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)
        total = (ramp * output).sum() + lse.masked_fill(lse == -torch.inf, 0).sum()
        return torch.autograd.grad(total, leaves)

    found = gradients(*run(case, named, backend, (4, 2), tokens))
    assert_agrees(found, gradients(*dense(case, named, (4, 2), where)))


@every_backend
def test_dropped_weights_are_those_of_the_pairs_scaled(backend: str):
    case = replace(CASES["plain"], value_width=33)
    named = case.inputs(dtype=DTYPES[backend])
    # With the identity as values, the output is the weights.
    q, k, v = named["q"], named["k"], torch.eye(33, dtype=named["q"].dtype).expand(2, 2, 33, 33)
    arguments = {"window": (5, 2), "global_tokens": [3, 20], "backend": backend}
    want = global_local_attention(q, k, v, **arguments)
    torch.manual_seed(0)
    found = global_local_attention(q, k, v, dropout=0.3, **arguments)
    kept = found != 0
    assert_close(found[kept], (want / 0.7)[kept], rtol=1e-4, atol=1e-5)
    pairs = allowed(case, (5, 2), {3, 20}).expand(2, 2, 33, 33)
    assert not kept[~pairs].any()
    # Five standard deviations.
    share, count = kept[pairs].double().mean(), int(pairs.sum())
    assert abs(share - 0.7) < 5 * (0.7 * 0.3 / count) ** 0.5


@every_cpu_blockwise
def test_what_no_pair_needs_is_not_read(backend: str):
    """Far keys and values count for the global queries alone."""
    x = torch.randn(1, 2, 600, 8, dtype=DTYPES[backend])
    far = x.clone()
    far[:, :, 400:] = torch.nan
    arguments = {"window": (20, 0), "global_tokens": 4, "backend": backend}
    found = global_local_attention(x, far, far, **arguments)
    assert_agrees(found[:, :, 4:300], global_local_attention(x, x, x, **arguments)[:, :, 4:300])
    assert found[:, :, :4].isnan().all()


def test_a_window_without_global_tokens_is_a_window():
    q = CASES["plain"].inputs()["q"]
    want = relpos.attention(q, q, q, window=(3, 1))
    for none in (0, [], ()):
        assert torch.equal(global_local_attention(q, q, q, window=(3, 1), global_tokens=none), want)


@pytest.mark.slow
@pytest.mark.no_typecheck
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@pytest.mark.costly(4, of="compiled models")
def test_it_compiles_to_one_graph_for_all_lengths():
    torch._dynamo.reset()

    def attend(q: Tensor) -> Tensor:
        return global_local_attention(q, q, q, window=(3, 2), global_tokens=[0, 3, 4])

    compiled = torch.compile(attend, fullgraph=True, dynamic=True, backend="aot_eager")
    for length in (17, 33, 65):
        q = torch.randn(2, 2, length, 8)
        with torch.compiler.set_stance("default" if length == 17 else "fail_on_recompile"):
            assert_close(compiled(q), attend(q))


@pytest.mark.no_typecheck
@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"global_tokens": 6}, ValueError, "global_tokens must be at most the 5 tokens, got 6"),
        ({"global_tokens": -1}, ValueError, "global_tokens must be an integer >= 0, got -1"),
        (
            {"global_tokens": [1, 5]},
            ValueError,
            "global_tokens must be positions of the 5 .* got 5",
        ),
        ({"global_tokens": [-1]}, ValueError, "global_tokens must be an integer >= 0, got -1"),
        ({"global_tokens": torch.tensor([2])}, TypeError, r"which tolist\(\) makes of a tensor"),
        ({"global_tokens": "ab"}, ValueError, "global_tokens must be an integer >= 0, got 'a'"),
        ({"window": 4}, ValueError, r"window must be \(left, right\) in tokens"),
        ({"mask": torch.ones(4, dtype=torch.bool)}, ShapeError, "mask must"),
        ({"terms": GridTerms((5,))}, ValueError, "terms must be Terms, of a sequence"),
    ],
)
def test_what_it_cannot_take_is_named(arguments, error, words):
    q = torch.zeros(1, 1, 5, 2)
    given = {"window": (1, 1), "global_tokens": 1} | arguments
    with pytest.raises(
        error, match=f"^global_local_attention: {'.*' if error is TypeError else ''}{words}"
    ):
        global_local_attention(q, q, q, **given)
