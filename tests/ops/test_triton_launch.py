"""Whether what a launch keeps is what Triton would find, for a GPU that is not there."""

from __future__ import annotations

import gc
import json
import weakref
from math import prod
from pathlib import Path

import pytest
import torch

from relpos import BackendError, OffsetTable, backends
from relpos.ops.layouts import number_of_layouts
from tests.compiled import lines_of_script

pytestmark = [
    pytest.mark.skipif(bool(backends()["triton"]), reason=str(backends()["triton"])),
    pytest.mark.no_typecheck,
]

SCRIPT = """
import json

import torch

from relpos import OffsetTable, Terms, attention
from scripts.compile_ahead import (
    CALLS, chunks, compile_call, compile_nothing, grid, on_grid, random, sequence, shaw, table,
    wide,
)


def moved(x, by):
    \"\"\"The same numbers, so many elements after where 16 bytes begin.\"\"\"
    room = x.new_empty(x.numel() + by)
    return room[by:].view(x.shape).copy_(x.detach()).requires_grad_()


def call(b=1, h=2, g=2, i=70, j=70, d=16, by=0, width=None, seen_by=1, **settings):
    q, k, v = moved(random(b, h, i, d), by), random(b, g, j, d), moved(random(b, g, j, d), by)
    if settings.pop("strided", False):
        q = random(b, i, h, d).transpose(1, 2)
    keys = OffsetTable(moved(random(1, 20, width or d), by), -9)
    terms = Terms(keys=keys, bias=table(h, 5, 5, None))
    if width is not None:
        terms = Terms(keys=keys, q_rel=random(b, h, i, width))
    with torch.set_grad_enabled(settings.pop("learns", True)):
        out = attention(q, k, v, terms, backend="triton", **settings)
    if not out.requires_grad:
        return
    flow = torch.ones_like(out)
    if seen_by == 0:
        flow = torch.ones(()).to(out.dtype).expand(out.shape)
    elif seen_by > 1:
        flow = moved(flow, seen_by)
    out.backward(flow.detach())


CALLS_ALIKE = [
    *(dict(i=i, j=j) for i, j in ((70, 70), (1, 70), (64, 64), (33, 80), (40, 70))),
    *(dict(b=b, h=h, g=g) for b, h, g in ((1, 1, 1), (2, 1, 1), (1, 4, 2), (16, 4, 1))),
    dict(b=3, h=16, g=16),
    *(dict(by=by, seen_by=seen_by) for by in (0, 1, 8) for seen_by in (0, 1, 3)),
    *(dict(d=d) for d in (8, 24, 64)),
    *(dict(query_start=start, i=3) for start in (0, 1, 16, 67, 40, -3)),
    *(dict(window=window) for window in ((5, 5), (9, None), (16, 0))),
    *(dict(width=width) for width in (1, 4, 16)),
    dict(strided=True),
    dict(scale=1), dict(scale=1.0), dict(softcap=2.0), dict(dropout=0.5), dict(dropout=0.25),
    dict(mask=torch.zeros(1, 1, 1, 70)), dict(mask=torch.zeros(1, 2, 70, 70)),
    dict(mask=torch.zeros(1, 2, 70, 71)[..., 1:]), dict(mask=torch.ones(70, 70, dtype=torch.bool)),
    dict(documents=torch.zeros(1, 70).long()), dict(key_ranges=chunks(70, 16)),
    dict(documents=torch.zeros(1, 71).long()[:, 1:]), dict(causal=True),
]



def heads_of_tables(*wanted):
    \"\"\"Gradients of some tables alone: shared keys, values and a bias for each head.\"\"\"
    q, k, v = (random(2, 4, 70, 16) for _ in range(3))
    tables = dict(
        keys=table(1, 5, 5, 16), values=table(4, 5, 5, 16), bias=table(4, 5, 5, None)
    )
    out = attention(q, k, v, Terms(**tables), backend="triton")
    torch.autograd.grad(out.sum(), [tables[name].rows for name in wanted])


def windows(batch, heads, shape, dtype=torch.bfloat16, **options):
    \"\"\"Many small grids, with keys for heads together or apart, or a joint bias.\"\"\"
    tokens = shape[0] * shape[1]
    q, k, v = (random(batch, heads, tokens, 16, dtype=dtype) for _ in range(3))
    terms = on_grid(shape, *options.pop("names"), **options)(q)
    terms = terms.map(lambda x: x.detach().to(dtype).requires_grad_())
    attention(q, k, v, terms, backend="triton").float().sum().backward()


def keys_and_bias(*given, **options):
    windows(*given, names=("keys",), **options)
    windows(*given, names=(), bias=True, **options)


WINDOWS = [
    (1, 1, (2, 4)), (2, 3, (2, 4)), (16, 2, (2, 4)), (33, 1, (7, 7)), (300, 2, (7, 7)),
    (16, 16, (14, 14)), (2, 4, (14, 14), torch.float16), (2, 4, (14, 14), torch.float32),
    (5, 2, (3, 40)), (5, 2, (40, 3)), (1, 2, (1, 140)),
]

# It would take minutes, and nothing looks at what comes out.
compile_nothing()
kept, seen, again = {}, 0, 0
several = [
    lambda: heads_of_tables("keys"),
    lambda: heads_of_tables("keys", "values"),
    lambda: heads_of_tables("values"),
    lambda: heads_of_tables("bias", "keys"),
    lambda: heads_of_tables("keys"),
    *(lambda options=options: call(**options) for options in CALLS_ALIKE),
    *(lambda options=options: call(learns=False, **options) for options in CALLS_ALIKE[:12]),
    *(lambda n=n: sequence(16, n, terms=wide) for n in (513, 528, 700)),
    *(CALLS[name] for name in ("grid", "local grid", "decoding", "wide, in parts")),
    lambda: sequence(16, terms=shaw, dtype=torch.float16),
    *(lambda dtype=dtype: sequence(16, terms=grid, dtype=dtype) for dtype in (
        torch.float16, torch.float32)),
    *(lambda given=given: keys_and_bias(*given) for given in WINDOWS),
]
first_round = None
for number, one in enumerate(several * 2):
    if number == len(several):
        first_round = again
    for found in compile_call("sm_90", one, tiles=lambda _, shapes: shapes[-1]):
        assert found.key is not None, found.name
        seen += 1
        again += found.key in kept
        assert kept.setdefault(found.key, found.binary) is found.binary, (found.name, found.key)
print(json.dumps([seen, again, first_round, len(set(map(id, kept.values())))]))
"""


@pytest.mark.slow
def test_launches_that_are_known_to_be_alike_are_compiled_alike(tmp_path: Path):
    """For tensors that lie anywhere, of any strides, and numbers that Triton compiles for."""
    seen, again, first_round, binaries = json.loads(lines_of_script(SCRIPT, tmp_path)[-1])
    assert again == first_round + seen / 2
    assert first_round > 20  # of other numbers, which nothing is compiled for
    assert binaries > 50


def test_tensors_that_lie_alike_have_the_same_number():
    x = torch.empty(4, 40, dtype=torch.float16)
    numbers = [
        number_of_layouts(tensors)
        for tensors in (
            (x,), (x.clone(),), (x.bfloat16(),), (x[:2],), (x.mT.contiguous().mT,),
            (x.view(-1)[1:121].view(4, 30),), (x.view(-1)[:120].view(4, 30),), (x, None), (None, x),
            (x.view(-1)[8:128].view(4, 30),), (x.to("meta"),),
        )
    ]  # fmt: skip
    assert numbers[0] == numbers[1]
    assert numbers[6] == numbers[9]
    assert len(set(numbers)) == len(numbers) - 2


def prepared(first: int = -4, beyond: str = "clamp", **changes):
    """A call of 24 queries and keys with a table of keys, and what is changed of it."""
    from relpos.ops.triton.call_plan import CallSettings, matmul_precision
    from relpos.ops.triton.prepared_call import PreparedCall

    draw = torch.Generator().manual_seed(0)
    x = torch.randn(2, 2, 24, 16, generator=draw)
    names = (
        "q", "k", "v", "q_rel", "mask", "key_axis_logits", "query_axis_logits", "joint_bias",
        "documents", "query_documents", "key_ranges", "axis_ranges", "seed",
    )  # fmt: skip
    tensors = dict.fromkeys(names) | {"q": x, "k": x, "v": x}
    tensors |= {name: changes.pop(name) for name in names if name in changes}
    tables = {"keys": OffsetTable(torch.randn(1, 9, 16, generator=draw), first, beyond)}
    origin = changes.pop("dropout_origin", None)
    settings = {"causal": False, "scale": 0.25, "query_start": 0, "dropout": 0.0} | changes
    settings |= {"precision": matmul_precision(), "is_part": origin is not None}
    return PreparedCall(tensors, tables, CallSettings(None, **settings), origin)


def test_calls_share_a_plan_where_settings_and_layouts_are_equal():
    plan = prepared().plan
    assert prepared().plan is plan
    assert prepared(q=torch.zeros(2, 2, 24, 16)).plan is plan
    assert prepared(mask=None, softcap=0.0, window=()).plan is plan


@pytest.mark.parametrize(
    "changes",
    [
        {"first": -3}, {"beyond": "zero"}, {"causal": True}, {"scale": -0.25}, {"scale": 1e9},
        {"query_start": 1}, {"dropout": 0.5}, {"window": ((3, None),)}, {"window": ((None, 3),)},
        {"softcap": 2.0}, {"mask": torch.zeros(1, 1, 24, 24)}, {"mask": torch.zeros(1, 1, 1, 24)},
        {"mask": torch.ones(1, 1, 24, 24, dtype=torch.bool)},
        {"documents": torch.zeros(1, 24, dtype=torch.int64)},
        {"key_ranges": torch.zeros(1, 24, 2, dtype=torch.int64)},
        {"q": torch.zeros(2, 2, 25, 16)}, {"q": torch.zeros(2, 24, 2, 16).transpose(1, 2)},
        {"q_rel": torch.zeros(2, 2, 24, 16)}, {"seed": torch.tensor(0)},
        {"key_axis_logits": torch.zeros(1, 1, 24, 7)}, {"joint_bias": torch.zeros(1, 99)},
        {"query_axis_logits": torch.zeros(1, 1, 24, 7)}, {"need_axis_weights": True},
        {"q": torch.zeros(2, 2, 24, 16, dtype=torch.float16)},
        {"q": torch.zeros(1537)[1:].view(2, 2, 24, 16)},
        {"dropout": 0.5, "dropout_origin": (0, 0, 0, 0, 0)},
        {"documents": torch.zeros(1, 24).long(), "query_documents": torch.zeros(2, 24).long()},
    ],
    ids=", ".join,
)  # fmt: skip
def test_calls_that_differ_have_plans_of_their_own(changes: dict):
    plan, other = prepared().plan, prepared(**changes).plan
    assert other is not plan
    assert prepared(**changes).plan is other


def test_the_precision_of_products_is_asked_for_at_each_call():
    before, plan = torch.backends.cuda.matmul.fp32_precision, prepared().plan
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        assert prepared().plan.precision == "tf32" != plan.precision
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
    assert prepared().plan is plan


@pytest.mark.parametrize(("width", "expected"), [(16, "tf32x3"), (128, "tf32x3"), (144, "ieee")])
def test_float32_products_are_made_in_three_where_registers_last(width: int, expected: str):
    x = torch.zeros(2, 2, 24, width)
    assert prepared(q=x, k=x).plan.precision == expected
    assert prepared(v=x).plan.precision == expected


@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (11, 0), (12, 0)])
def test_gpus_whose_products_are_made_by_warp_have_tiles_of_their_own(capability: tuple[int, int]):
    from relpos.ops.triton.tile_table import TILES
    from relpos.ops.triton.tuning import kind_of

    x = torch.zeros(2, 2, 24, 16, dtype=torch.float16)
    kind = kind_of(prepared(q=x, k=x, v=x), capability)
    assert kind == ("narrow table" if 9 <= capability[0] <= 11 else "narrow table by warp")
    assert kind in TILES
    kind = kind_of(prepared(), capability)
    assert kind == ("float32" if 9 <= capability[0] <= 11 else "float32 by warp")
    assert kind in TILES


@pytest.mark.parametrize(
    ("kind", "shape", "has"),
    [
        ("rows of a grid", (2, 36), ("key_axis_logits",)),
        ("axes of a grid", (2, 12), ("key_axis_logits",)),  # a row is too narrow
        ("many coordinates", (2, 127), ("key_axis_logits",)),
        ("axes of a grid", (2, 12), ("key_axis_logits", "joint_bias")),
        ("axes of a grid", (2, 3, 4), ("key_axis_logits",)),
        ("queries of a grid", (2, 12), ("key_axis_logits", "query_axis_logits")),
        ("values of a grid", (2, 12), ("key_axis_logits", "need_axis_weights")),
        ("grid", (2, 12), ("joint_bias",)),
    ],
)
def test_grids_are_told_apart_by_what_is_summed_by_coordinate(
    kind: str, shape: tuple[int, ...], has: tuple[str, ...]
):
    from relpos.ops.triton.call_plan import CallSettings
    from relpos.ops.triton.call_traits import GridShape
    from relpos.ops.triton.prepared_call import PreparedCall
    from relpos.ops.triton.tile_table import TILES
    from relpos.ops.triton.tuning import kind_of

    x = torch.zeros(1, 2, prod(shape), 16, dtype=torch.float16)
    logits = torch.zeros(1, 2, prod(shape), sum(shape))
    there = {
        "key_axis_logits": logits, "query_axis_logits": logits, "joint_bias": torch.zeros(2, 999),
    }  # fmt: skip
    tensors = dict.fromkeys(
        ("q_rel", "mask", "documents", "query_documents", "key_ranges", "axis_ranges", "seed")
    )
    tensors |= {"q": x, "k": x, "v": x}
    tensors |= {name: y if name in has else None for name, y in there.items()}
    call = PreparedCall(
        tensors, {},
        CallSettings(
            GridShape(shape, shape, 0), False, 0.25, 0, 0.0, "ieee",
            need_axis_weights="need_axis_weights" in has,
        ),
    )  # fmt: skip
    assert kind_of(call, (9, 0)) == kind
    assert kind_of(call, (8, 0)) == f"{kind} by warp"
    assert {kind, f"{kind} by warp"} <= TILES.keys()


class Kernel:
    """Of a device without room for tiles of more than 32 queries."""

    __name__ = "kernel"
    arg_names = ("x", "M")

    def __init__(self):
        self.asked: list[int] = []

    def __getitem__(self, programs: tuple[int, ...]):
        from triton import OutOfResources

        def launch(x: int, *, M: int, **options: int):
            self.asked.append(M)
            if M > 32:
                raise OutOfResources(M << 10, 32 << 10, "shared memory")
            return self

        return launch if len(programs) == 1 else lambda *arguments: None


def test_what_does_not_fit_is_not_asked_for_again(monkeypatch: pytest.MonkeyPatch):
    from relpos.ops.bounded_cache import BoundedCache
    from relpos.ops.triton import launch
    from relpos.ops.triton.tuning import TileShape

    call, kernel = prepared(), Kernel()
    shapes = [TileShape(m, 16, 4, 1) for m in (128, 64, 32)]
    monkeypatch.setattr(launch, "tile_shapes", lambda *_: shapes)
    monkeypatch.setattr(launch, "_found", BoundedCache())
    ran: list[int] = []

    def run(shape: TileShape, known: int) -> None:
        launch.run_programs(kernel, 1, 0, shape=shape, known=known, M=shape.m)
        ran.append(shape.m)

    for known in (1, 1, 2, 1):
        launch.run_largest_that_fits("forward", call, lambda shape, known=known: run(shape, known))
    assert ran == [32] * 4
    assert kernel.asked == [128, 64, 32] * 2  # by each kind of launch once
    last = weakref.ref(call)
    del call
    gc.collect()
    assert last() is None  # nothing of it is kept


def test_what_fits_in_no_tile_is_refused_in_words(monkeypatch: pytest.MonkeyPatch):
    from relpos.ops.triton import launch
    from relpos.ops.triton.tuning import TileShape

    call, kernel = prepared(), Kernel()
    monkeypatch.setattr(launch, "tile_shapes", lambda *_: [TileShape(128, 16, 4, 1)])

    def run(shape: TileShape) -> None:
        launch.run_programs(kernel, 1, 0, shape=shape, M=shape.m)

    with pytest.raises(BackendError, match="at most 32768 bytes on this GPU, got 131072; backend"):
        launch.run_largest_that_fits("forward", call, run)


def test_of_several_kernels_none_runs_in_vain_twice(monkeypatch: pytest.MonkeyPatch):
    """The second one has no room in the first tiles: the first one runs in vain there, once."""
    from triton import OutOfResources

    from relpos.ops.bounded_cache import BoundedCache
    from relpos.ops.triton import launch
    from relpos.ops.triton.tuning import TileShape

    call, ran = prepared(), []
    monkeypatch.setattr(
        launch, "tile_shapes", lambda *_: [TileShape(m, 16, 4, 1) for m in (128, 64, 32)]
    )
    monkeypatch.setattr(launch, "_fitting", BoundedCache())

    def run(shape: TileShape) -> None:
        ran.append(shape.m)
        if shape.m > 32:
            raise OutOfResources(shape.m, 32, "shared memory")

    for known in (1, 1, 2, 1, 2):
        launch.run_largest_that_fits("dq, in two", call, run, known=known)
    assert ran == [128, 64, 32, 32, 128, 64, 32, 32, 32]


def test_other_calls_leave_the_tiles_of_a_call_as_they_are(monkeypatch: pytest.MonkeyPatch):
    from triton import OutOfResources

    from relpos.ops.bounded_cache import BoundedCache
    from relpos.ops.triton import launch
    from relpos.ops.triton.tuning import TileShape

    plain, capped, ran = prepared(), prepared(softcap=2.0), []
    monkeypatch.setattr(
        launch, "tile_shapes", lambda *_: [TileShape(m, 16, 4, 1) for m in (128, 64)]
    )
    monkeypatch.setattr(launch, "_fitting", BoundedCache())

    def run(shape: TileShape, call: object) -> None:
        ran.append(shape.m)
        if call is capped and shape.m > 64:
            raise OutOfResources(shape.m, 64, "shared memory")

    for call in (plain, capped, plain, capped):
        launch.run_largest_that_fits(
            "dq, in two", call, lambda shape, call=call: run(shape, call), known=1
        )
    assert ran == [128, 128, 64, 128, 64]


def test_tiles_end_with_the_least_that_products_take():
    from relpos.ops.triton.tuning import tile_shapes_on_cuda

    call = prepared()
    for capability in ((8, 0), (8, 6), (9, 0), (12, 0)):
        for kernel in ("forward", "dq", "dkdv", "dtables"):
            *_, least = tile_shapes_on_cuda(kernel, call, capability)
            assert (least.m, least.n, least.stages) == (16, 16, 1)
