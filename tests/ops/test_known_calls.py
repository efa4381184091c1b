"""Calls alike: from the second one on the same bits, without checks; and none that is unlike."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from relpos import GridTerms, OffsetTable, ShapeError, Terms, attention
from relpos.ops import api
from relpos.ops.bounded_cache import BoundedCache
from relpos.ops.known_calls import KNOWN, find_call
from scripts.gpu_calls import calls, outcome
from scripts.gpu_checks import same_bits
from tests.ops.backends import every_backend

pytestmark = pytest.mark.no_typecheck

SHAPE = (1, 2, 6, 4)
KINDS = calls("auto", 3, 8, torch.float32)
NOT_KEPT = {"documents", "chunks", "neighborhoods"}


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """As long as calls were checked."""
    found: list[None] = []
    prepare = api.prepare
    monkeypatch.setattr(
        api, "prepare", lambda *args, **kwargs: found.append(None) or prepare(*args, **kwargs)
    )
    return found


def tensors(*, dtype: torch.dtype = torch.float32, grad: bool = False) -> tuple[Tensor, ...]:
    return tuple(torch.randn(SHAPE).to(dtype).requires_grad_(grad) for _ in range(3))


def bias(rows: Tensor | None = None, **options: Any) -> Terms:
    return Terms(bias=OffsetTable(torch.randn(2, 5) if rows is None else rows, -2, **options))


@every_backend
@pytest.mark.parametrize("kind", KINDS)
def test_a_known_call_has_the_same_bits(kind: str, backend: str, prepared: list[None]) -> None:
    call = replace(KINDS[kind], backend=backend)
    alike = [
        replace(
            call, leaves=tuple((x.detach() * (1 + n / 7)).requires_grad_() for x in call.leaves)
        )
        for n in range(3)
    ]
    expected = []
    for each in alike:
        KNOWN.clear()
        expected.append(each.both())
    KNOWN.clear()
    prepared.clear()

    found = [each.both() for each in alike]

    assert all(same_bits(one, other) for one, other in zip(found, expected, strict=True))
    assert len(prepared) == (3 if kind in NOT_KEPT else 1)


@every_backend
def test_gradients_are_as_asked_for_each_time(backend: str) -> None:
    q, k, v = tensors()
    terms = bias()
    expected = attention(q, k, v, terms, backend=backend)
    for wanted in ((), (q,), (terms.bias.rows,), (q, k, v)):
        leaves = tuple(x.detach().requires_grad_(any(x is y for y in wanted)) for x in (q, k, v))
        rows = terms.bias.rows.detach().requires_grad_(any(terms.bias.rows is y for y in wanted))
        output = attention(*leaves, bias(rows), backend=backend)
        assert output.requires_grad == bool(wanted)
        assert same_bits([output.detach()], [expected])
        with torch.no_grad():
            assert not attention(*leaves, bias(rows), backend=backend).requires_grad
        if wanted:
            output.sum().backward()
        for x in (*leaves, rows):
            assert (x.grad is not None) == x.requires_grad


@every_backend
@pytest.mark.parametrize("axes", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("dtype", [torch.bool, torch.float32, torch.float64])
def test_masks_of_fewer_axes(
    axes: int, dtype: torch.dtype, backend: str, prepared: list[None]
) -> None:
    def masked(draw: int) -> Tensor:
        torch.manual_seed(draw)
        full = (torch.randn(1, 2, 6, 6) > 0).to(dtype)
        mask = full[(0,) * (4 - axes)].clone()
        return attention(*tensors(), bias(), mask=mask, backend=backend)

    found, expected = [masked(draw) for draw in range(4)], []
    assert len(prepared) == 1
    for draw in range(4):
        KNOWN.clear()
        expected.append(masked(draw))
    assert same_bits(found, expected)


@every_backend
def test_the_log_sum_exp_too(backend: str, prepared: list[None]) -> None:
    drawn = [tensors() for _ in range(3)]
    found = [attention(*each, return_lse=True, backend=backend) for each in drawn]
    assert len(prepared) == 1
    for each, results in zip(drawn, found, strict=True):
        KNOWN.clear()
        assert same_bits([*attention(*each, return_lse=True, backend=backend)], [*results])


@every_backend
def test_each_call_drops_other_weights(backend: str) -> None:
    q, k, v = tensors()
    torch.manual_seed(3)
    expected = []
    for _ in range(3):
        KNOWN.clear()
        expected.append(attention(q, k, v, dropout=0.5, backend=backend))
    torch.manual_seed(3)
    found = [attention(q, k, v, dropout=0.5, backend=backend) for _ in range(3)]

    assert same_bits(found, expected)
    assert not torch.equal(found[1], found[2])


def variants() -> dict[str, tuple[Any, ...]]:
    """Arguments of calls none of which is like another: `q k v terms mask window`, settings."""
    q, k, v = tensors()
    plain, grid = Terms(), GridTerms((2, 3))
    column = OffsetTable(torch.randn(1, 5, 4), -2)
    settings = (False, 0.0, None, None, None, False, "auto")

    def given(
        terms: Terms | GridTerms, mask: Tensor | None = None, window: object = None
    ) -> tuple[Any, ...]:
        return (q, k, v, terms, mask, window, *settings)

    def changed(place: int, x: object) -> tuple[Any, ...]:
        others = [*settings]
        others[place] = x
        return (q, k, v, plain, None, None, *others)

    return {
        "plain": given(plain),
        "longer": (q, k.repeat(1, 1, 2, 1), v.repeat(1, 1, 2, 1), plain, None, None, *settings),
        "strides": (q.mT.contiguous().mT, k, v, plain, None, None, *settings),
        "begins elsewhere": (torch.randn(49)[1:].view(SHAPE), k, v, plain, None, None, *settings),
        "dtype": (q.double(), k.double(), v.double(), plain, None, None, *settings),
        "fewer heads of keys": (q, k[:, :1], v[:, :1], plain, None, None, *settings),
        "bias": given(bias()),
        "bias, first": given(Terms(bias=OffsetTable(torch.ones(2, 5), -3))),
        "bias, zero": given(bias(beyond="zero")),
        "bias of all heads": given(bias(torch.ones(1, 5))),
        "keys": given(Terms(keys=column)),
        "queries": given(Terms(queries=column)),
        "values": given(Terms(values=column)),
        "q_rel": given(Terms(keys=column, q_rel=q)),
        "grid": given(grid),
        "grid, other": given(GridTerms((3, 2))),
        "grid, prefix": given(GridTerms((5, 1), prefix=1)),
        "grid, axes": given(GridTerms((2, 3), (plain, Terms(keys=column)))),
        "grid, other axis": given(GridTerms((2, 3), (Terms(keys=column), plain))),
        "joint bias": given(GridTerms((2, 3), joint_bias=torch.ones(1, 3, 5))),
        "mask": given(plain, torch.ones(6, 6)),
        "mask of booleans": given(plain, torch.ones(6, 6, dtype=torch.bool)),
        "mask of keys": given(plain, torch.ones(6)),
        "window": given(plain, None, (1, 0)),
        "window, other": given(plain, None, (1, None)),
        "window of booleans": given(plain, None, (True, False)),
        "windows": given(grid, None, ((1, 0), None)),
        "causal": changed(0, True),
        "causal as a number": changed(0, 1),
        "dropout": changed(1, 0.5),
        "dropout as an integer": changed(1, 0),
        "scale": changed(2, 1.0),
        "scale as a boolean": changed(2, True),
        "query_start": changed(3, 0),
        "softcap": changed(4, 2.0),
        "return_lse": changed(5, True),
        "backend": changed(6, "reference"),
    }  # fmt: skip


class Window(NamedTuple):
    left: int | bool
    right: int


def test_no_key_with_settings_that_may_change_or_pass_for_others() -> None:
    q, k, v = tensors()
    start = torch.tensor(0)
    for n in range(3):
        found = attention(q[:, :, :1], k, v, causal=True, query_start=start)
        assert same_bits([found], [attention(q[:, :, :1], k, v, causal=True, query_start=n)])
        start += 1
    attention(q, k, v, window=Window(1, 0))
    with pytest.raises(ValueError, match="window"):
        attention(q, k, v, window=Window(True, 0))
    for window in ([1, 0], Window(1, 0), (torch.tensor(1), 0), (np.int64(1), 0)):
        assert find_call(q, k, v, Terms(), None, window) == (None, None)
    for setting in (torch.tensor(1), np.float64(0.5), Fraction(1, 2), [1]):
        assert find_call(q, k, v, Terms(), None, None, setting) == (None, None)


def test_no_other_call_has_the_same_key() -> None:
    keys = {name: find_call(*arguments)[0] for name, arguments in variants().items()}
    assert None not in keys.values()
    assert len(set(keys.values())) == len(keys)
    again = {name: find_call(*arguments)[0] for name, arguments in variants().items()}
    del keys["begins elsewhere"], again["begins elsewhere"]  # where memory happens to lie
    assert again == keys


REFUSED: dict[str, Callable[..., Any]] = {
    "causal": lambda q, k, v: attention(q, k, v, causal=0),
    "dropout": lambda q, k, v: attention(q, k, v, dropout="0"),
    "scale": lambda q, k, v: attention(q, k, v, scale=torch.tensor(0.5)),
    "return_lse": lambda q, k, v: attention(q, k, v, return_lse=0),
    "backend": lambda q, k, v: attention(q, k, v, backend=["auto"]),
    "window": lambda q, k, v: attention(q, k, v, window=(-1, 0)),
    "mask": lambda q, k, v: attention(q, k, v, mask=torch.ones(5)),
    "mask, no tensor": lambda q, k, v: attention(q, k, v, mask=[True] * 6),
    "q": lambda q, k, v: attention(q.tolist(), k, v),
    "sparse": lambda q, k, v: attention(q.to_sparse(), k, v),
    "of oneDNN": lambda q, k, v: attention(q.to_mkldnn(), k, v),
    "nested": lambda q, k, v: attention(torch.nested.nested_tensor([q[0]]), k, v),
    "terms": lambda q, k, v: attention(q, k, v, None),
    "meta": lambda q, k, v: attention(q, k, v.to("meta")),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_stays_so_after_a_call_like_it(name: str) -> None:
    q, k, v = tensors()
    with pytest.raises((TypeError, ValueError, ShapeError)) as before:
        REFUSED[name](q, k, v)
    for _ in range(2):
        attention(q, k, v)
        attention(q, k, v, mask=torch.ones(6), window=(1, 0))
        with pytest.raises(before.type) as found:
            REFUSED[name](q, k, v)
        assert str(found.value) == str(before.value)


def test_autocast_counts(prepared: list[None]) -> None:
    q, k, v = tensors()
    terms = bias()
    for _ in range(2):
        assert attention(q, k, v, terms).dtype == torch.float32
        for dtype in (torch.bfloat16, torch.float16):
            with torch.autocast("cpu", dtype):
                found = attention(q, k, v, terms)
            cast = partial(Tensor.to, dtype=dtype)
            expected = attention(*map(cast, (q, k, v)), terms.map(cast))
            assert found.dtype == dtype
            assert same_bits([found], [expected])
    assert len(prepared) == 5


def test_the_precision_of_products_counts() -> None:
    q, k, v = tensors()
    keys, half, before = [], [], torch.get_float32_matmul_precision()
    try:
        for precision in ("highest", "high", "medium"):
            torch.set_float32_matmul_precision(precision)
            keys.append(find_call(q, k, v, Terms(), None, None)[0])
            with torch.autocast("cpu", torch.bfloat16):
                half.append(find_call(q, k, v, Terms(), None, None)[0])
    finally:
        torch.set_float32_matmul_precision(before)
    assert len({*keys, *half}) == 2 * len(keys)


def test_so_does_that_of_products_on_a_gpu() -> None:
    products = torch.backends.cuda.matmul
    before, keys = products.fp32_precision, []
    try:
        for precision in ("ieee", "tf32"):
            products.fp32_precision = precision
            keys.append(find_call(*tensors(), Terms(), None, None)[0])
    finally:
        products.fp32_precision = before
    assert keys[0] != keys[1]


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_no_key_where_somebody_looks_at_calls() -> None:
    q, k, v = tensors()

    def key(*x: Tensor) -> object:
        return find_call(*x, Terms(), None, None)[0]

    assert key(q, k, v) is not None
    with FlopCounterMode(display=False):
        assert key(q, k, v) is None
    with forward_ad.dual_level():
        assert key(forward_ad.make_dual(q, k), k, v) is None
    found = []
    torch.func.vmap(lambda x: found.append(key(x, x, x)) or x)(torch.stack((q, q)))
    torch.func.grad(lambda x: found.append(key(x, x, x)) or x.sum())(q)
    torch.jit.trace(lambda x: found.append(key(x, x, x)) or x + 1, q, check_trace=False)
    assert found == [None] * 3

    class Own(Tensor):
        pass

    assert key(q.as_subclass(Own), k, v) is None
    assert key(*(x.to("meta") for x in (q, k, v))) is None


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_transforms_of_a_known_call() -> None:
    q, k, v = tensors(dtype=torch.float64)
    for _ in range(2):
        attention(q, k, v, causal=True)
    many = torch.func.vmap(lambda x: attention(x, k, v, causal=True))(torch.stack((q, 2 * q)))
    assert torch.allclose(many[1], attention(2 * q, k, v, causal=True))
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(attention(forward_ad.make_dual(q, q), k, v, causal=True))
        assert tangent.tangent is not None


@every_backend
def test_checkpointing_computes_a_known_call_again(backend: str) -> None:
    call = replace(KINDS["dropout"], backend=backend)
    expected = call.both()
    torch.manual_seed(0)
    output = checkpoint(call.run, *call.leaves, use_reentrant=False)
    assert same_bits(outcome(output, call.leaves), expected)


@every_backend
def test_what_is_known_keeps_no_tensor(backend: str) -> None:
    q, k, v = tensors(grad=True)
    terms, mask = bias(), torch.ones(6, 6, dtype=torch.float64)
    for _ in range(2):
        attention(q, k, v, terms, mask=mask, backend=backend).sum().backward()
    gone = [weakref.ref(x) for x in (q, k, v, terms.bias.rows, mask)]
    del q, k, v, terms, mask
    gc.collect()
    assert not any(x() is not None for x in gone)


def test_what_is_of_use_is_not_forgotten_among_calls_that_never_come_again() -> None:
    cache: BoundedCache[int] = BoundedCache(8)
    cache.put("often", 1)
    for number in range(100):
        cache.put(number, number)
        assert cache.get("often") == 1
    assert cache.get(99) == 99
    assert cache.get(0) is None
    assert len(cache._found) + len(cache._before) <= 8


def test_what_is_kept_may_go_while_it_is_asked_for() -> None:
    """As in another thread, between one step of `get` and the next."""
    cache: BoundedCache[int] = BoundedCache(4)

    class Before(dict[object, int]):
        def __contains__(self, key: object) -> bool:
            cache.clear()
            return True

        def get(self, key: object, default: Any = None) -> Any:
            found = super().get(key, default)
            cache.clear()
            return found

    for number in range(4):
        cache.put(number, number)
    cache._before = Before(cache._before)
    assert cache.get(0) == 0


def test_a_call_that_fails_is_not_known() -> None:
    q, k, v = tensors()
    for _ in range(2):
        with pytest.raises(ShapeError):
            attention(q, k[..., :3], v)
