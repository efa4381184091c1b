"""Every wrong argument is named, with the rule and what was given."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
import torch

import relpos
from relpos import BackendError, GridTerms, OffsetTable, ShapeError, Terms, attention
from relpos.ops import native
from relpos.ops.native.library import MISSING
from tests.ops.backends import every_blockwise, native_alone

pytestmark = pytest.mark.no_typecheck

Q = torch.zeros(2, 4, 3, 8)


def table(*shape: int) -> OffsetTable:
    return OffsetTable(torch.zeros(*shape), first=-1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"q": Q[0]}, r"q must be \(b, h, i, d\), got \(4, 3, 8\)"),
        ({"k": Q[..., :5]}, r"k must be \(b, g, j, d\) with b=2, d=8, got \(2, 4, 3, 5\)"),
        ({"k": Q[:1]}, r"k must be .* got \(1, 4, 3, 8\)"),
        ({"v": Q[:, :2]}, r"v must be .* with b=2, g=4, j=3, got \(2, 2, 3, 8\)"),
        ({"k": Q[:, :3], "v": Q[:, :3]}, r"multiple of k's heads, got 4 query and 3 key heads"),
        ({"q": Q.long()}, r"q must be floating point .* got torch.int64"),
        ({"q": Q.to(torch.float8_e5m2)}, r"q must be floating point .* got torch.float8_e5m2"),
        ({"q": Q[:, :0]}, r"multiple of k's heads, got 0 query and 4 key heads"),
        ({"q": Q[..., :0], "k": Q[..., :0]}, r"at least one number wide, got \(2, 4, 3, 0\)"),
        ({"query_start": 2.5}, r"query_start must be an integer, got 2.5"),
        ({"dropout": None}, r"dropout must be in 0 <= dropout < 1, got None"),
        ({"mask": [True]}, r"mask must be a tensor, got list"),
        ({"k": Q.double()}, r"k must be torch.float32 on cpu as q is, got torch.float64"),
        ({"terms": Terms(keys=table(1, 3, 5))}, r"terms.keys.rows must be .* d=8, got \(1, 3, 5\)"),
        ({"terms": Terms(keys=table(3, 3, 8))}, r"h in \(1, 4\).* got \(3, 3, 8\)"),
        ({"terms": Terms(bias=table(2, 3))}, r"terms.bias.rows must be \(h, r\).* got \(2, 3\)"),
        (
            {"terms": Terms(keys=table(1, 3, 5), q_rel=Q)},
            r"terms.keys.rows must be .* d=8, got \(1, 3, 5\)",
        ),
        (
            {"terms": Terms(keys=table(1, 3, 8), q_rel=Q[:, :, :2])},
            r"terms.q_rel must be \(b, h, i, d_rel\) with b=2, h=4, i=3, got \(2, 4, 2, 8\)",
        ),
        (
            {"terms": Terms(values=OffsetTable(torch.zeros(1, 3, 8).double(), 0))},
            r"terms.values.rows must be torch.float32",
        ),
        ({"terms": {"keys": 1}}, r"terms must be Terms or GridTerms, got dict"),
        ({"mask": torch.ones(2, 4, 3, 4)}, r"mask must broadcast to .* = \(2, 4, 3, 3\), got"),
        ({"mask": torch.ones(3, 3).long()}, r"mask must be boolean .* got torch.int64"),
        ({"dropout": 1.0}, r"dropout must be in 0 <= dropout < 1, got 1.0"),
        ({"dropout": -0.1}, r"dropout must be in 0 <= dropout < 1, got -0.1"),
        ({"q": None}, "q must be a tensor, got NoneType"),
        ({"v": None}, "v must be a tensor, got NoneType"),
        ({"k": Q.long()}, r"k must be floating point .* got torch.int64"),
        ({"causal": "no"}, "causal must be True or False, got 'no'"),
        ({"scale": float("nan")}, "scale must be a finite number or None"),
        ({"scale": torch.tensor(0.5)}, "scale must be a finite number or None"),
        ({"scale": True}, "scale must be a finite number or None"),
        ({"query_start": 10**30}, r"integer and less than 2\*\*60 in size, got 10{30}$"),
        ({"query_start": -(2**60)}, r"integer and less than 2\*\*60 in size, got -\d+$"),
        ({"return_lse": 1}, "return_lse must be True or False, got 1"),
        ({"scale": 10**400}, "scale must be a finite number or None, got an integer of 1329 bits"),
        ({"mask": torch.ones(3, 3).to(torch.float8_e5m2)}, "mask must be boolean"),
        ({"documents": torch.zeros(1, 3, dtype=torch.uint16)}, "documents must be integers"),
        ({"terms": Terms(keys=table(1, 3, 0), q_rel=Q[..., :0])}, "q_rel must be at least one"),
        ({"window": 5}, r"window must be \(left, right\) in tokens, None for no limit, got 5"),
        ({"window": (5,)}, r"window must be \(left, right\) .* got \(5,\)"),
        ({"window": (-1, 0)}, r"window\[0\] must be an integer >= 0, or None for no limit, got -1"),
        ({"window": (3, 2.5)}, r"window\[1\] must be an integer.*, got 2.5"),
        ({"window": (True, 0)}, r"window\[0\] must be an integer.*, got True"),
        (
            {"window": ((1, 1), (2, 2))},
            r"window must be one \(left, right\) for a sequence.* got \(\(1, 1\)",
        ),
        (
            {"key_ranges": [(0, 3)] * 3},
            "key_ranges must be a tensor for a sequence, whose terms are no .*, got list",
        ),
        ({"key_ranges": torch.zeros(1, 3, 2)}, "key_ranges must be integers, got torch.float32"),
        (
            {"key_ranges": torch.zeros(3, 2).long()},
            r"key_ranges must be \(b, i, 2\) with .*i=3.*, got \(3, 2\)",
        ),
        ({"key_ranges": torch.zeros(1, 4, 2).long()}, r"key_ranges must be .* got \(1, 4, 2\)"),
        ({"key_ranges": torch.zeros(3, 3, 2).long()}, r"key_ranges must be .* got \(3, 3, 2\)"),
        ({"softcap": 0}, "softcap must be a positive number.*, got 0"),
        ({"softcap": -5.0}, "softcap must be a positive number.*, got -5.0"),
        ({"softcap": float("inf")}, "softcap must be a positive number.*, got inf"),
        (
            {"softcap": 1e300},
            r"softcap must be .* in 1e-20..1e\+20, or None for no cap, got 1e\+300",
        ),
        ({"softcap": 1e-300}, r"softcap must be a positive number.*, got 1e-300"),
        ({"softcap": "30"}, "softcap must be a positive number.*, got '30'"),
        ({"backend": ["tiled"]}, "backend must be 'auto' or one of"),
        (
            {"backend": "cuda"},
            r"backend must be 'auto' or one of 'native', 'triton', 'tiled', .*, got 'cuda'",
        ),
    ],
)
def test_wrong_arguments_are_named(arguments: dict, message: str):
    with pytest.raises((ValueError, TypeError), match="attention: .*" + message):
        attention(**{"q": Q, "k": Q, "v": Q, **arguments})


def test_shape_errors_are_value_errors():
    assert issubclass(ShapeError, ValueError)
    assert issubclass(BackendError, RuntimeError)


@every_blockwise
def test_a_backend_asked_for_by_name_says_why_it_refuses(backend: str):
    def run(q: torch.Tensor, backend: str) -> torch.Tensor:
        return attention(q[None], Q[:1], Q[:1], backend=backend)

    message = rf"attention: .*{backend}: not supported by this backend: torch\.func transforms"
    with pytest.raises(BackendError, match=message):
        torch.func.vmap(run, in_dims=(0, None))(Q, backend)
    assert torch.func.vmap(run, in_dims=(0, None))(Q, "auto")[:, 0].shape == Q.shape


@native_alone
@pytest.mark.parametrize(
    ("q", "terms", "message"),
    [
        (Q.double(), Terms(), "it computes in float32, which is not enough for float64"),
        (Q.to("meta"), Terms(), "it runs on the CPU, not on meta"),
        (Q[:, :, :1], GridTerms((1,) * 9), "its grids have at most 8 axes"),
    ],
    ids=["float64", "device", "axes"],
)
def test_native_refuses_what_tiled_takes(
    backend: str, q: torch.Tensor, terms: Terms | GridTerms, message: str
):
    with pytest.raises(BackendError, match=f"attention: .*{backend}: {message}"):
        attention(q, q, q, terms, backend=backend)
    plain = attention(q, q, q, terms, backend="tiled")
    assert (plain.dtype, plain.device) == (q.dtype, q.device)
    assert attention(q, q, q, terms).shape == plain.shape


def test_the_weights_speak_in_their_own_name():
    with pytest.raises(ShapeError, match=r"^attention_weights: k must be"):
        relpos.attention_weights(Q, Q[..., :2])


def test_numpy_integers_are_integers():
    np = pytest.importorskip("numpy")
    shifted = OffsetTable(torch.randn(1, 3, 8), np.int64(-1))
    assert attention(Q, Q, Q, Terms(keys=shifted), query_start=np.int64(0)).shape == Q.shape


def test_terms_compare_by_identity():
    terms = Terms(keys=table(1, 3, 8))
    assert terms == terms  # noqa: PLR0124
    assert terms != Terms(keys=table(1, 3, 8))


def test_backends_names_each_with_none_where_it_runs_and_else_the_reason():
    found = relpos.backends()
    assert list(found) == ["native", "triton", "tiled", "reference"]
    assert found | {"triton": None} == {"native": MISSING} | dict.fromkeys([*found][1:])


@pytest.mark.slow
def test_without_a_gpu_or_triton_the_triton_backend_says_so():
    script = """
import sys
import importlib.util
find, found = importlib.util.find_spec, None if "without" in sys.argv else "somewhere"
importlib.util.find_spec = lambda name, *rest: found if name == "triton" else find(name, *rest)
import torch
torch.cuda.is_available = lambda: False
import relpos
print(relpos.backends()["triton"])
"""
    environment = {name: x for name, x in os.environ.items() if name != "TRITON_INTERPRET"}
    for option, words in (("with", "there is no CUDA device"), ("without", "not installed")):
        run = subprocess.run(
            [sys.executable, "-c", script, option],
            capture_output=True, text=True, check=True, env=environment,
        )  # fmt: skip
        assert words in run.stdout


@pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="there is no C++ compiler"
)
def test_native_is_there_where_a_compiler_is():
    """So that its tests are not skipped in silence."""
    assert MISSING is None


def test_a_kernel_that_is_missing_is_refused_by_its_reason(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(native.entry, "MISSING", "it was left at home")
    assert relpos.backends()["native"] == "it was left at home"
    message = "attention: backend='native' cannot run these inputs: native: it was left at home"
    with pytest.raises(BackendError, match=message):
        attention(Q, Q, Q, backend="native")
    assert torch.equal(attention(Q, Q, Q), attention(Q, Q, Q, backend="tiled"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: OffsetTable(torch.zeros(3), 0), r"OffsetTable: rows must be .* got \(3,\)"),
        (lambda: OffsetTable(torch.zeros(1, 0, 4), 0), r"r >= 1, got \(1, 0, 4\)"),
        (lambda: OffsetTable(torch.zeros(1, 2), 0, "wrap"), r"'clamp' or 'zero', got 'wrap'"),
        (lambda: OffsetTable(torch.zeros(1, 2), 1.5), r"first must be an integer, got 1.5"),
        (lambda: Terms(keys=Q), r"Terms: keys must be an OffsetTable or None, got Tensor"),
        (lambda: Terms(keys=table(1, 3)), r"Terms: keys.rows must be \(h or 1, r, d\), got"),
        (lambda: Terms(bias=table(1, 3, 8)), r"Terms: bias.rows must be \(h or 1, r\), got"),
        (lambda: Terms(q_rel=Q), r"q_rel must come with keys"),
        (
            lambda: GridTerms((2, 3), (Terms(),)),
            r"axes must have one entry per axis of shape \(2, 3\), got 1",
        ),
    ],
)
def test_wrong_tables_are_named(make, message: str):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


GRID = torch.zeros(1, 4, 6, 8)


@pytest.mark.parametrize(
    ("terms", "arguments", "message"),
    [
        (GridTerms((2, 4)), {}, r"q must have 8 tokens, 0 and the whole grid \(2, 4\), got 6"),
        (GridTerms((2, 3)), {"query_start": 0}, "query_start must be None with GridTerms"),
        (GridTerms((2, 6), query_shape=(2, 3)), {}, "k must have 12 tokens"),
        (
            GridTerms((2, 3), joint_bias=torch.zeros(3, 3, 5)), {},
            r"terms.joint_bias must be \(h, r0, r1\) with h in \(1, 4\), got \(3, 3, 5\)",
        ),
        (
            GridTerms((2, 3), joint_bias=torch.zeros(1, 3, 5).double()), {},
            "terms.joint_bias must be torch",
        ),
        (
            GridTerms((2, 3), (Terms(), Terms(keys=table(1, 3, 5)))), {},
            r"terms.axes\[1\].keys.rows must be .* d=8",
        ),
        (
            GridTerms((2, 3)), {"window": (1, 1)},
            r"window must have one .* for each axis of the grid \(2, 3\), got \(1, 1\)",
        ),
        (
            GridTerms((2, 3)), {"window": ((1, 1),)},
            r"window must have one \(left, right\) or None for each axis of the grid \(2, 3\), got",
        ),
        (GridTerms((2, 3)), {"window": 1}, r"window must have one .* got 1"),
        (GridTerms((2, 3)), {"window": (None, (1, -1))}, r"window\[1\]\[1\] must be .* got -1"),
        (
            GridTerms((2, 3)), {"key_ranges": [None]},
            r"key_ranges must be one tensor, or have one \(or None\) for each axis of the grid "
            r"\(2, 3\), got 1",
        ),
        (
            GridTerms((2, 3)), {"key_ranges": [None, torch.zeros(1, 2, 2).long()]},
            r"key_ranges\[1\] must be \(b, n, 2\) with .*n=3.*, got \(1, 2, 2\)",
        ),
        (
            GridTerms((2, 3)), {"key_ranges": [torch.zeros(2, 2, 2).long(), None]},
            r"key_ranges\[0\] must be \(b, n, 2\) with .*, got \(2, 2, 2\)",
        ),
        (
            GridTerms((2, 3)), {"key_ranges": [torch.zeros(1, 2, 2), None]},
            r"key_ranges\[0\] must be integers, got torch.float32",
        ),
        (
            GridTerms((2, 3)), {"key_ranges": torch.zeros(1, 5, 2).long()},
            r"key_ranges must be \(b, i, 2\) with .*i=6.*, got \(1, 5, 2\)",
        ),
    ],
)  # fmt: skip
def test_wrong_grids_are_named(terms: GridTerms, arguments: dict, message: str):
    with pytest.raises(ValueError, match="attention: " + message):
        attention(GRID, GRID, GRID, terms, **arguments)


@pytest.mark.no_typecheck
@pytest.mark.parametrize("ranges", [[[(0, 1)] * 2, None], ["all", None], 3])
def test_ranges_that_are_no_tensors_are_named(ranges: object):
    with pytest.raises(TypeError, match=r"attention: key_ranges(\[0\])? must be a tensor, got"):
        attention(GRID, GRID, GRID, GridTerms((2, 3)), key_ranges=ranges)


@pytest.mark.parametrize(
    "given",
    [{"causal": True}, {"documents": torch.zeros(1, 6).long()}, {"window": ((1, 1), None)}],
    ids=["causal", "documents", "window"],
)
def test_pooled_queries_have_no_order_no_documents_and_no_window(given: dict):
    terms = GridTerms((2, 3), query_shape=(1, 3))
    with pytest.raises(ValueError, match=f"{next(iter(given))} must be left out where queries"):
        attention(GRID[:, :, :3], GRID, GRID, terms, **given)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: OffsetTable([[1.0]], 0), TypeError, "OffsetTable: rows must be a tensor"),
        (lambda: Terms(keys=table(1, 3, 8), q_rel=[1]), TypeError, "Terms: q_rel must be a tensor"),
        (lambda: GridTerms((1, 3), joint_bias=[1]), TypeError, "joint_bias must be a tensor"),
        (lambda: GridTerms((1, 3), Terms()), TypeError, "GridTerms: axes must be a tuple of Terms"),
        (lambda: GridTerms((1, 3), (None, None)), TypeError, "axes must hold Terms, got NoneType"),
        (lambda: GridTerms((3, 0)), ValueError, "GridTerms: shape must be an integer >= 1, got 0"),
        (lambda: GridTerms(3), ValueError, "GridTerms: shape must be one size per axis, got 3"),
        (lambda: GridTerms((3,), prefix=-1), ValueError, "prefix must be an integer >= 0, got -1"),
        (
            lambda: GridTerms((2, 3), joint_bias=torch.zeros(1, 3, 4)), ShapeError,
            r"GridTerms: joint_bias must be \(h or 1, 3, 5\) for a grid of shape \(2, 3\)",
        ),
        (
            lambda: GridTerms((2, 3), joint_bias=torch.zeros(1, 3, 5), query_shape=(1, 3)),
            ValueError,
            "query_shape must be None or shape with a joint bias",
        ),
    ],
)  # fmt: skip
def test_terms_of_the_wrong_kind_are_named(make, error: type, message: str):
    with pytest.raises(error, match=message):
        make()


def test_autocast_hides_no_mistake():
    with torch.autocast("cpu", torch.bfloat16):
        with pytest.raises(
            ShapeError, match=r"attention: q must be floating point .* got torch.int64"
        ):
            attention(Q.long(), Q, Q)
        with pytest.raises(TypeError, match="attention: terms must be Terms or GridTerms"):
            attention(Q, Q, Q, {})
