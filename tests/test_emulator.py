"""Whether the emulator of compiled kernels computes as a GPU would, and sees what is wrong."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.compiled import RACING_KERNEL, lines_of_script

pytest.importorskip("triton")

from scripts.emulator import (
    AccessError,
    EmulationError,
    HazardError,
    Mode,
    UnsupportedError,
    run_kernel,
)
from scripts.emulator.__main__ import main
from scripts.gpu_checks import within_the_error_allowed

pytestmark = pytest.mark.no_typecheck

THREADS = 64


def run(
    body: str,
    *arguments: Any,
    shared: int = 0,
    programs: int = 1,
    threads: int = THREADS,
    mode: Mode | None = None,
    with_margins: tuple[str, ...] = (),
) -> None:
    """Runs instructions of two warps, with arguments as %rd0, %rd1, ... and %tid.x as %r0."""
    kinds = {
        f"x{i}": "*" if isinstance(x, torch.Tensor) else "i64" for i, x in enumerate(arguments)
    }
    parameters = ",\n".join(f".param .u64 k_param_{i}" for i in range(len(kinds)))
    loads = "\n".join(f"ld.param.b64 %rd{i}, [k_param_{i}];" for i in range(len(kinds)))
    text = f"""
.extern .shared .align 16 .b8 global_smem[];
.visible .entry k(
{parameters}
)
.reqntid {threads}
{{
    .reg .pred %p<8>;
    .reg .b16 %rs<8>;
    .reg .b32 %r<16>;
    .reg .b64 %rd<16>;
{loads}
    mov.u32 %r0, %tid.x;
    mad.wide.u32 %rd8, %r0, 4, %rd0;   // the thread's number of the first tensor
    mad.lo.s32 %r1, %r0, 4, 1024;      // and of shared memory
{body}
    ret;
}}
"""
    metadata = SimpleNamespace(
        global_scratch_size=0, profile_scratch_size=0, num_ctas=1, num_warps=threads // 32,
        shared=shared,
    )  # fmt: skip
    binary = SimpleNamespace(
        asm={"ptx": text}, metadata=metadata, src=SimpleNamespace(signature=kinds)
    )
    named = dict(zip(kinds, arguments, strict=True))
    run_kernel(binary, programs, named, mode or Mode(), with_margins=with_margins)


def numbers(value: float = 0, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.full((THREADS,), value, dtype=dtype)


def computed(body: str) -> list[int]:
    """What each thread leaves in %r2."""
    out = numbers()
    run(body + "\nst.global.b32 [ %rd8 + 0 ], { %r2 };", out)
    return out.tolist()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("sub.s32 %r3, %r0, 40; div.s32 %r2, %r3, 7;", [int((i - 40) / 7) for i in range(64)]),
        ("sub.s32 %r3, %r0, 40; rem.s32 %r2, %r3, 7;", np.fmod(np.arange(64) - 40, 7).tolist()),
        ("bfe.s32 %r2, %r0, 2, 3;", [((i >> 2 & 7) ^ 4) - 4 for i in range(64)]),
        ("bfe.u32 %r2, %r0, 2, 3;", [i >> 2 & 7 for i in range(64)]),
        ("shl.b32 %r2, 1, %r0;", [1 << i if i < 31 else -(1 << 31) * (i == 31) for i in range(64)]),
        ("mul.hi.u32 %r2, %r0, 0x80000000;", [i >> 1 for i in range(64)]),
        ("shfl.sync.bfly.b32 %r2, %r0, 16, 31, -1;", [i ^ 16 for i in range(64)]),
        ("shfl.sync.down.b32 %r2, %r0, 3, 31, -1;",
         [i + 3 if i % 32 < 29 else i for i in range(64)]),
        ("sub.s32 %r3, %r0, 40; mov.b32 %r4, -1; redux.sync.min.s32 %r2, %r3, %r4;",
         [i // 32 * 32 - 40 for i in range(64)]),
        ("redux.sync.add.u32 %r2, %r0, -1;", [496 + i // 32 * 1024 for i in range(64)]),
        ("cvt.u16.u32 %rs1, %r0; mov.b32 %r2, {%rs1, 1};", [i + (1 << 16) for i in range(64)]),
        ("prmt.b32 %r2, %r0, 0x12CD, 0x4C50U;",
         [i + 0xCDFF1200 - (1 << 32) for i in range(64)]),
    ],
)  # fmt: skip
def test_integers(body: str, expected: list[int]):
    assert computed(body) == expected


def test_a_product_and_sum_is_rounded_once():
    # 1 + 2^-23 squared is 1 + 2^-22 + 2^-46, of which one rounding less keeps the last.
    body = "mov.b32 %r3, 0f3F800001; mov.b32 %r4, 0fBF800002; fma.rn.f32 %r2, %r3, %r3, %r4;"
    assert np.array(computed(body), np.int32).view(np.float32).tolist() == [2.0**-46] * THREADS


def test_bfloat16_rounds_to_even_and_keeps_nan():
    for bits, rounded in ((0x3F808000, 0x3F80), (0x3F818000, 0x3F82), (0x7FFFFFFF, 0x7FFF)):
        body = f"mov.b32 %r3, {bits}; cvt.rn.bf16.f32 %rs1, %r3; cvt.u32.u16 %r2, %rs1;"
        assert set(computed(body)) == {rounded}


def test_integers_are_converted_by_what_they_are():
    for kind, number, bits in (("u32", 3, 0x4040), ("s32", -2, 0xC000), ("u16", 1, 0x3F80)):
        source = "%rs2" if kind == "u16" else "%r3"
        body = f"mov.b{kind[1:]} {source}, {number}; cvt.rn.bf16.{kind} %rs1, {source};"
        assert set(computed(f"{body} cvt.u32.u16 %r2, %rs1;")) == {bits}


@pytest.mark.parametrize(
    ("bits", "expected"),
    [
        (0x3F800FFF, 0x3F800000), (0x3F801000, 0x3F802000), (0xBF801000, 0xBF802000 - (1 << 32)),
        (0x7F7FFFFF, 0x7F800000), (0x7F800000, 0x7F800000), (0x7FC00001, 0x7FC00001),
    ],
)  # fmt: skip
def test_numbers_of_tf32_are_the_nearest_and_of_two_the_farther_from_zero(bits: int, expected: int):
    assert set(computed(f"mov.b32 %r3, {bits}; cvt.rna.tf32.f32 %r2, %r3;")) == {expected}


def test_whole_numbers_may_stay_numbers():
    for how, expected in (("rpi", 0x40400000), ("rmi", 0x40000000), ("rzi", 0x40000000)):
        body = f"mov.b32 %r3, 0f40200000; cvt.{how}.ftz.f32.f32 %r2, %r3;"  # 2.5
        assert set(computed(body)) == {expected}


def test_nan_is_in_no_order():
    nan = "mov.b32 %r3, 0f7FC00000; mov.b32 %r4, 0f3F800000; mov.b32 %r2, 0;"
    for how, holds in (("lt", 0), ("ne", 0), ("neu", 1), ("geu", 1), ("eq", 0), ("nan", 1)):
        assert set(computed(f"{nan} setp.{how}.f32 %p1, %r3, %r4; @%p1 mov.b32 %r2, 1;")) == {holds}


def test_threads_of_a_warp_part_and_meet():
    body = """
    mov.b32 %r2, 0;
$L__again:
    add.s32 %r2, %r2, 3;
    setp.lt.s32 %p1, %r2, %r0;
    @%p1 bra $L__again;
    bar.sync 0;
"""
    assert computed(body) == [max(3, -(-i // 3) * 3) for i in range(THREADS)]


def test_a_shuffle_without_the_whole_warp_raises():
    body = "setp.lt.s32 %p1, %r0, 5; @%p1 shfl.sync.bfly.b32 %r2, %r0, 1, 31, -1;"
    with pytest.raises(EmulationError, match="whole warps"):
        computed(body)


def test_threads_that_have_ended_are_not_waited_for():
    run("setp.lt.s32 %p1, %r0, 32;\n@%p1 bra $L__end;\nbar.sync 0;\n$L__end:", numbers())


def test_threads_that_wait_at_different_barriers_raise():
    body = "setp.lt.s32 %p1, %r0, 32;\n@%p1 bra $L__1;\nbar.sync 0;\nret;\n$L__1: bar.sync 0;"
    with pytest.raises(EmulationError, match=r"k: threads of a program wait at different barriers"):
        run(body, numbers())


def test_an_address_outside_of_every_tensor_raises():
    x = numbers()
    run("ld.global.b32 { %r2 }, [ %rd8 + 0 ];", x)
    with pytest.raises(AccessError, match=r"^k: global access of 4 bytes .*`ld.global"):
        run("ld.global.b32 { %r2 }, [ %rd8 + 4 ];", x)
    with pytest.raises(AccessError, match=r"outside of its bytes 0\.\.128"):
        run("ld.global.b32 { %r2 }, [ %rd8 + 0 ];", x[:32])
    run("ld.global.b32 { %r2 }, [ %rd8 + 0 ];", x[:32], with_margins=("x0",))
    with pytest.raises(AccessError, match="in no tensor"):
        run("ld.global.b32 { %r2 }, [ %rd9 + 0 ];", x)
    with pytest.raises(AccessError, match="not aligned"):
        run("ld.global.b32 { %r2 }, [ %rd8 + 2 ];", numbers(dtype=torch.int64))


def test_an_address_outside_of_shared_memory_raises():
    run("st.shared::cta.b32 [ %r1 + 0 ], %r0;", numbers(), shared=4 * THREADS)
    for offset in (4, -4):
        with pytest.raises(AccessError, match="shared access of 4 bytes"):
            run(f"st.shared::cta.b32 [ %r1 + {offset} ], %r0;", numbers(), shared=4 * THREADS)


def test_what_is_not_known_is_named():
    with pytest.raises(UnsupportedError, match=r"k: .*`brev\.b32 %r2, %r0`"):
        run("brev.b32 %r2, %r0;", numbers())
    with pytest.raises(UnsupportedError, match=r"`add\.sat\.s32"):
        run("add.sat.s32 %r2, %r0, 1;", numbers())


REVERSED = """
    st.shared::cta.b32 [ %r1 + 0 ], %r0;
    {barrier}
    mul.lo.s32 %r4, %r0, -4;
    ld.shared.b32 %r2, [%r4+{last}];
    {barrier_again}
    st.shared::cta.b32 [ %r1 + 0 ], 7;
    st.global.b32 [ %rd8 + 0 ], {{ %r2 }};
"""


@pytest.mark.parametrize("missing", ["barrier", "barrier_again", None])
def test_a_missing_barrier_is_a_hazard(missing: str | None):
    names = {
        name: "" if name == missing else "bar.sync 0;" for name in ("barrier", "barrier_again")
    }
    body = REVERSED.format(last=1024 + 4 * (THREADS - 1), **names)
    out = numbers()
    if missing:
        with pytest.raises(HazardError, match=r"k: (reads|writes) what another warp"):
            run(body, out, shared=4 * THREADS)
        run(body, numbers(), shared=4 * THREADS, mode=Mode(hazards=False))
    else:
        run(body, out, shared=4 * THREADS)
        assert out.tolist() == list(range(THREADS))[::-1]


STORE = "st.global.b32 [ %rd8 + 0 ], { %r3 };"
LOAD = "ld.global.b32 { %r2 }, [ %rd8 + 0 ];"


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (STORE, "two programs write to one place"),
        (
            f"setp.eq.s32 %p1, %r3, 1; @%p1 {STORE} {LOAD}",
            "a program reads what another one writes",
        ),
        (
            f"{LOAD} setp.eq.s32 %p1, %r3, 1; @%p1 {STORE}",
            "a program writes what another one reads",
        ),
        (f"mov.b32 %r3, -1; {STORE}", None),
        (f"mad.wide.u32 %rd8, %r3, 256, %rd8; {STORE} {LOAD}", None),
    ],
)
def test_programs_do_not_disturb_one_another(body: str, what: str | None):
    body, x = f"mov.u32 %r3, %ctaid.x; {body}", numbers(-1).repeat(2)
    if what is None:
        run(body, x, programs=2)
        return
    with pytest.raises(HazardError, match=what):
        run(body, x, programs=2)


COPY = """
    setp.lt.s32 %p1, %r0, 60;
    selp.b32 %r3, 4, 0, %p1;
    cp.async.ca.shared.global [ %r1 + 0 ], [ %rd8 + 0 ], 0x4, %r3;
    cp.async.commit_group;
    {wait}
    ld.shared.b32 %r2, [%r1];
    mad.wide.u32 %rd9, %r0, 4, %rd1;
    st.global.b32 [ %rd9 + 0 ], {{ %r2 }};
    cp.async.wait_group 0;
"""


@pytest.mark.parametrize("copies", ["early", "late"])
def test_a_copy_arrives_when_it_is_waited_for(copies: str):
    x, out = torch.arange(THREADS, dtype=torch.int32) + 1, numbers()
    late, blind = Mode(copies=copies), Mode(copies=copies, hazards=False)
    run(COPY.format(wait="cp.async.wait_group 0;"), x, out, shared=4 * THREADS, mode=late)
    arrived = [*range(1, 61), 0, 0, 0, 0]
    assert out.tolist() == arrived
    with pytest.raises(HazardError, match="reads what a copy is on its way to"):
        run(COPY.format(wait="cp.async.wait_group 1;"), x, out, shared=4 * THREADS, mode=late)
    run(COPY.format(wait="cp.async.wait_group 1;"), x, out, shared=4 * THREADS, mode=blind)
    assert out.tolist() == (arrived if copies == "early" else [-1] * THREADS)


PRODUCT = """
    mov.b32 %r2, 0x3F803F80;    // two ones
    setp.lt.s32 %p1, %r0, 64;
    @%p1 st.shared::cta.b32 [ %r1 + 0 ], %r2;
    bar.sync 0;
    fence.proxy.async.shared::cta;
    mov.b64 %rd9, {descriptor};
    wgmma.fence.sync.aligned;
    wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {{%r3,%r4,%r5,%r6}}, {{%r2,%r2,%r2,%r2}},
        %rd9, 0, 1, 1, 0;
    wgmma.commit_group.sync.aligned;
    {before}
    wgmma.wait_group.sync.aligned 0;
    {after}
    st.global.b32 [ %rd8 + 0 ], {{ %r7 }};
"""
BLOCKS = 1024 >> 4 | 128 >> 4 << 16 | 128 >> 4 << 32  # 8 by 8 numbers, one beside another


@pytest.mark.parametrize("products", ["early", "late"])
@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("", "mov.b32 %r7, %r3;", 16),
        ("mov.b32 %r7, %r6;", "", 16),  # the wait is then of the copy
        ("add.f32 %r7, %r3, %r3;", "", math.nan),
    ],
)
def test_a_sum_is_there_when_its_product_is_waited_for(
    before: str, after: str, expected: float, products: str
):
    out = torch.zeros(128)
    body = PRODUCT.format(before=before, after=after, descriptor=BLOCKS)
    run(body, out, shared=256, threads=128, mode=Mode(products=products))
    torch.testing.assert_close(out, torch.full((128,), float(expected)), equal_nan=True)


def test_a_product_needs_a_fence_a_wait_and_its_memory():
    body, out = PRODUCT.format(before="", after="", descriptor=BLOCKS), torch.zeros(128)
    run(body, out, shared=256, threads=128)
    with pytest.raises(HazardError, match="a product reads what no fence has followed"):
        run(body.replace("fence.proxy.async.shared::cta;", ""), out, shared=256, threads=128)
    with pytest.raises(HazardError, match="a product reads what another warp wrote"):
        run(body.replace("bar.sync 0;", ""), out, shared=256, threads=256)
    with pytest.raises(AccessError, match=r"a product reads bytes 0\.\.256 of 128"):
        run(body.replace("%r0, 64", "%r0, 32"), out, shared=128, threads=128)


KERNELS = """
import json
import sys
from types import SimpleNamespace

import torch
import triton
import triton.language as tl

from scripts.emulator import EmulationError, HazardError, Mode, compiled, run_kernel


def outcome(binary, arguments, mode=Mode(), programs=1):
    try:
        run_kernel(binary, programs, arguments, mode)
    except EmulationError as error:
        return f"{type(error).__name__}: {error}"
    return "ran"


def say(*what):
    print(json.dumps(what))
"""

SMALL = (
    KERNELS
    + """

@triton.jit
def gathered_sum(x, index, out, n, SIZE: tl.constexpr):
    i = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    rows = tl.load(index + i, i < n, 0)
    tl.store(out + i, tl.load(x + rows) + tl.load(x + i, i < n), i < n)


x, out = torch.randn(1000), torch.empty(1000)
index = torch.randint(1000, (1000,))
for architecture in ("sm_80", "sm_90"):
    arguments = dict(x=x, index=index, out=out, n=1000, SIZE=128)
    binary = compiled(architecture, gathered_sum, arguments)
    out.fill_(float("nan"))
    ran = outcome(binary, arguments, programs=8)
    say(ran == "ran" and torch.equal(out, x[index] + x))
    wrong = arguments | dict(index=torch.where(index == index[5], 1000, index))
    say(outcome(binary, wrong, programs=8))
"""
)

DOTS = (
    KERNELS
    + """

@triton.jit
def dots(
    a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, LEFT: tl.constexpr,
    RIGHT: tl.constexpr, STEP: tl.constexpr,
):
    m, n = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    acc = tl.zeros((M, N), tl.float32)
    for start in range(0, K, STEP):
        k = start + tl.arange(0, STEP)
        if LEFT:
            x = tl.trans(tl.load(a + k[:, None] * M + tl.arange(0, M)[None, :]))
        else:
            x = tl.load(a + m * K + k[None, :])
        if RIGHT:
            y = tl.trans(tl.load(b + tl.arange(0, N)[:, None] * K + k[None, :]))
        else:
            y = tl.load(b + k[:, None] * N + n)
        acc = tl.dot(x, y, acc)
    tl.store(c + m * N + n, acc)


def without(binary, line):
    lines = binary.asm["ptx"].splitlines()
    kept = "\\n".join(x for x in lines if not x.strip().startswith(line))
    return SimpleNamespace(asm={"ptx": kept}, metadata=binary.metadata, src=binary.src)


torch.manual_seed(0)
SHAPES = (
    ("sm_80", torch.bfloat16, 64, 64, 128, 32, False, False),
    ("sm_80", torch.float16, 32, 128, 64, 32, True, True),
    ("sm_80", torch.float32, 64, 32, 64, 32, False, True),
    ("sm_90", torch.bfloat16, 64, 64, 256, 64, False, False),
    ("sm_90", torch.bfloat16, 128, 32, 128, 32, True, False),
    ("sm_90", torch.float16, 64, 128, 64, 16, False, True),
    ("sm_90", torch.float16, 64, 16, 128, 64, True, True),
    ("sm_90", torch.float32, 64, 64, 128, 32, False, True),
)
for architecture, dtype, M, N, K, step, left, right in SHAPES:
    # Of few bits, so that every product and sum is exact.
    x, y = (torch.randint(-8, 9, shape).to(dtype) for shape in ((M, K), (K, N)))
    found = torch.empty(M, N)
    arguments = dict(
        a=x.T.contiguous() if left else x, b=y.T.contiguous() if right else y, c=found,
        M=M, N=N, K=K, LEFT=left, RIGHT=right, STEP=step,
    )
    binary = compiled(architecture, dots, arguments, num_stages=3)
    right = []
    for copies in ("early", "late"):
        for products in ("early", "late"):
            found.fill_(float("nan"))
            ran = outcome(binary, arguments, Mode(copies, products))
            right.append(ran == "ran" and torch.equal(found, x.float() @ y.float()))
    say(str(dtype), architecture, "wgmma" in binary.asm["ptx"], all(right))
for line in ("bar.sync", "cp.async.wait_group", "wgmma.wait_group", "fence.proxy.async"):
    say(line, outcome(without(binary, line), arguments).split(":")[0])
"""
)


def test_a_gather_by_triton_and_a_row_that_is_not_there(tmp_path: Path):
    lines = [json.loads(line)[0] for line in lines_of_script(SMALL, tmp_path)]
    assert lines[::2] == [True, True]
    for line in lines[1::2]:
        assert line.startswith("AccessError: gathered_sum: global access")


@pytest.mark.slow
def test_products_of_matrices_in_every_mode_and_without_what_orders_them(tmp_path: Path):
    found = [json.loads(line) for line in lines_of_script(DOTS, tmp_path)]
    dots, broken = found[:-4], dict(found[-4:])
    assert all(right for *_, right in dots), dots
    assert [group for _, architecture, group, _ in dots if architecture == "sm_90"] == [True] * 5
    assert broken == dict.fromkeys(broken, "HazardError"), broken


OVERWRITTEN = (
    KERNELS
    + RACING_KERNEL
    + """


torch.manual_seed(0)
x = torch.randint(-1, 2, (6, 64, 64)).bfloat16()
y = torch.randint(-1, 2, (64, 64)).bfloat16()
scores = [y.float() @ k.float().T + k.float().sum(1) for k in x]
exact = sum(s.bfloat16().float() @ k.float() for s, k in zip(scores, x))
for again in (False, True):
    found = torch.empty(64, 64)
    arguments = dict(x=x, y=y, sums=found, count=6, AGAIN=again)
    binary = compiled("sm_90", summed, arguments)
    say(outcome(binary, arguments))
    for products in ("early", "late"):
        outcome(binary, arguments, Mode("early", products, hazards=False))
        say(torch.equal(found, exact))
"""
)


def test_a_copy_over_what_a_product_still_reads_is_seen(tmp_path: Path):
    """A race of Triton's pipeline (`scripts/pipelines.py`); it may be gone one day."""
    lines = [json.loads(line)[0] for line in lines_of_script(OVERWRITTEN, tmp_path)]
    assert lines[0].startswith("HazardError: summed: writes what a product may still read")
    assert lines[1:] == [True, False, "ran", True, True]


ATTENTION = """
import json

import torch

from scripts.emulator.__main__ import finding
from scripts.emulator.machine import Mode
from scripts.gpu_calls import calls

made = calls("triton", 9, 32, torch.bfloat16)
for name, architecture in (("queries", "sm_80"), ("queries", "sm_90"), ("grid, all", "sm_90")):
    print(json.dumps(finding(made[name], architecture, Mode(), 0)))
"""


@pytest.mark.slow
@pytest.mark.costly(2, of="programs that measure")
def test_attention_and_its_gradients_near_float64(tmp_path: Path):
    found = [json.loads(line) for line in lines_of_script(ATTENTION, tmp_path)]
    assert all(x["ok"] for x in found), found
    first = [x["ran"][0].split()[-1] for x in found]
    assert first == ["forward_kernel", "forward_kernel", "axis_logits_kernel"]


def test_a_result_that_is_not_a_number_is_not_right():
    assert within_the_error_allowed([0.5, 0.75]) == ("", True, "uses 75% of the error allowed")
    for used in ([0.5, math.nan], [math.nan, 0.5]):
        assert within_the_error_allowed(used) == ("", False, "uses nan% of the error allowed")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("sm_70",), "argument architecture: invalid choice: 'sm_70'"),
        (("sm_90", "gri"), "argument CALL: must be of 'no terms', 'Shaw keys + values', "),
        (("sm_90", "--side", "0"), "argument --side: must be 2 to 64, got 0"),
        (("sm_90", "--width", "-8"), "argument --width: must be 1 to 256, got -8"),
        (("sm_90", "--tile", "-99"), "argument --tile: must be -1 to 16, got -99"),
        (("sm_90", "--fences", "none"), "argument --fences: invalid choice: 'none'"),
    ],
)
def test_wrong_arguments_are_named(
    arguments: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.setattr("sys.argv", ["emulator", *arguments])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", ["copies", "products", "fences"])
def test_a_mode_that_is_not_known_raises(name: str):
    with pytest.raises(ValueError, match=f"Mode: {name} must be .*, got never"):
        Mode(**{name: "never"})  # type: ignore[arg-type]


def test_what_copies_need_no_fence_for():
    """A product of what copies have brought, without a fence; of threads' stores it needs one."""
    body, out = PRODUCT.format(before="", after="", descriptor=BLOCKS), torch.zeros(128)
    store = "@%p1 st.shared::cta.b32 [ %r1 + 0 ], %r2;"
    assert store in body
    copied = body.replace(
        store,
        "@%p1 cp.async.ca.shared.global [ %r1 + 0 ], [ %rd8 + 0 ], 0x4, 4;\n"
        "cp.async.commit_group;\ncp.async.wait_group 0;",
    ).replace("fence.proxy.async.shared::cta;", "")
    stores = Mode(fences="stores")
    with pytest.raises(HazardError, match="a product reads what no fence has followed"):
        run(copied, out, shared=256, threads=128)
    run(copied, out, shared=256, threads=128, mode=stores)
    with pytest.raises(HazardError, match="a product reads what no fence has followed"):
        run(body.replace("fence.proxy.async.shared::cta;", ""), out, shared=256, threads=128,
            mode=stores)  # fmt: skip
