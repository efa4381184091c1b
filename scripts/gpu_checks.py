"""Checks of the triton backend that a GPU alone can make, over one call of each kind of term.

    python -m scripts.gpu_checks terms          # near float64, as the suite has it
    python -m scripts.gpu_checks long           # the same for sequences of thousands
    python -m scripts.gpu_checks determinism    # the same bits each time
    python -m scripts.gpu_checks touch          # runs each once: for compute-sanitizer
    python -m scripts.gpu_checks capture        # in a CUDA graph, and compiled, as eager
    python -m scripts.gpu_checks terms --jobs 16    # in as many processes, which all compile

A line of JSON for each call, then how many are right; exits 1 if one is not. Without a GPU it runs
in Triton's interpreter (TRITON_INTERPRET=1), at a small size.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator
from functools import partial
from multiprocessing import get_context

import torch
from torch import Tensor

from benchmarks.measure.gpu import captured

from .gpu_calls import CUDA, Call, calls, outcome

ULPS = 512
SMALL = (4, 8, torch.float32)  # for the interpreter
BITS = {2: torch.int16, 4: torch.int32}
Finding = tuple[str, bool, str]  # of what, whether it is right, and what was seen


def terms(call: Call) -> Iterator[Finding]:
    """Output and gradients near float64, as the suite has it.

    In float32 up to so many roundings; in bfloat16 twice as far as the reference, and rounding.
    """
    if call.settings.get("dropout"):  # each backend draws its own
        return
    dtype = call.leaves[0].dtype
    used = []
    for found, usual, exact in zip(
        call.both(), call.reference(dtype), call.reference(torch.float64), strict=True
    ):
        eps = torch.finfo(dtype).eps
        if dtype == torch.float32:
            allowed = ULPS * eps * exact.abs().max().clamp(min=1)
        else:
            allowed = 2 * (largest_difference(usual, exact) + eps * exact.abs().max())
        used.append((largest_difference(found, exact) / allowed).item())
    yield within_the_error_allowed(used)


def within_the_error_allowed(used: list[float]) -> Finding:
    """Whether no result uses more than all of it, or is NaN."""
    most = max(used, key=lambda part: (math.isnan(part), part))
    return "", most <= 1, f"uses {most:.0%} of the error allowed"


def touch(call: Call) -> Iterator[Finding]:
    """Forward and backward once; compute-sanitizer is the judge."""
    call.both()
    if CUDA:
        torch.cuda.synchronize()
    yield "", True, "ran"


def determinism(call: Call) -> Iterator[Finding]:
    """Output and every gradient have the same bits each time."""
    times, first = 20 if CUDA else 3, call.both()
    others = sum(not same_bits(first, call.both()) for _ in range(times - 1))
    yield "", others == 0, f"{others} of {times - 1} runs differ from the first"


def capture(call: Call) -> Iterator[Finding]:
    """A CUDA graph of forward and backward gives eager's bits, torch.compile its numbers."""
    if call.settings.get("dropout"):  # a graph's draws are its own
        return
    eager = call.both()
    if CUDA:
        graph = replayed(call)
        yield ", CUDA graph", same_bits(eager, graph), describe_difference(eager, graph)
    torch.compiler.reset()
    compiled = torch.compile(call.run, fullgraph=True, backend="inductor" if CUDA else "eager")
    found = outcome(compiled(*call.leaves), call.leaves)
    yield ", compiled", equal_up_to_rounding(eager, found), describe_difference(eager, found)


def same_bits(first: list[Tensor], second: list[Tensor]) -> bool:
    """Whether all have the same bits."""
    pairs = zip(first, second, strict=True)
    return all(torch.equal(bits(one), bits(other)) for one, other in pairs)


def largest_difference(x: Tensor, y: Tensor) -> Tensor:
    """The largest difference."""
    return (x.double() - y.double()).abs().max()


def bits(x: Tensor) -> Tensor:
    """The numbers as integers, so that NaN and the sign of zero count."""
    return x.contiguous().view(BITS[x.element_size()])


def equal_up_to_rounding(first: list[Tensor], second: list[Tensor]) -> bool:
    """Whether they are as near as rounding, of the largest number, leaves them."""
    return all(
        largest_difference(one, other) <= 2 * torch.finfo(one.dtype).eps * one.abs().max()
        for one, other in zip(first, second, strict=True)
    )


def describe_difference(first: list[Tensor], second: list[Tensor]) -> str:
    """By how much they differ, in words."""
    if same_bits(first, second):
        return "the same bits"
    largest = max(
        largest_difference(one, other).item() for one, other in zip(first, second, strict=True)
    )
    return f"differ by {largest:.1e}"


def replayed(call: Call) -> list[Tensor]:
    """What a captured graph leaves behind when it is replayed over poisoned results."""

    def step() -> list[Tensor]:
        return outcome(call.run(*call.leaves), call.leaves)

    replay, results = captured(step)
    for part in results:
        part.fill_(float("nan"))
    replay()
    torch.cuda.synchronize()
    return results


def small_calls(backend: str) -> Iterator[tuple[str, Call]]:
    """Every call at a small odd size; the interpreter has no bfloat16.

    On a GPU also one whose table is wide enough that `dS` is stored.
    """
    for dtype in (torch.float32, torch.bfloat16) if CUDA else (torch.float32,):
        of_dtype = calls(backend, 5, 24, dtype)
        if CUDA:
            of_dtype["Huang, wide"] = calls(backend, 25, 24, dtype)["Huang"]
        for name, call in of_dtype.items():
            yield f"{name}, {str(dtype).removeprefix('torch.')}", call


def large_calls(backend: str) -> Iterator[tuple[str, Call]]:
    """Every call in bfloat16 at a size for a GPU; on the CPU at one for the interpreter."""
    yield from calls(backend, *((27, 64, torch.bfloat16) if CUDA else SMALL)).items()


def long_calls(backend: str) -> Iterator[tuple[str, Call]]:
    """Those of sequences of which clipped tables see a small part."""
    for name, call in calls(backend, *((48, 64, torch.bfloat16) if CUDA else SMALL)).items():
        if name not in ("joint_bias", "grid, window", "dropout"):
            yield name, call


CHECKS = {
    "terms": (terms, small_calls),
    "long": (terms, long_calls),
    "determinism": (determinism, large_calls),
    "touch": (touch, small_calls),
    "capture": (capture, large_calls),
}


def findings_of_call(check: str, backend: str, number: int) -> list[Finding]:
    """What a check finds of the call of that number; an error is a finding too."""
    judge, calls_of = CHECKS[check]
    name, call = list(calls_of(backend))[number]
    found: list[Finding] = []
    try:
        for suffix, right, detail in judge(call):
            found.append((name + suffix, right, detail))
    except Exception as error:
        line = (str(error).strip().splitlines() or [""])[0]
        found.append((name, False, f"{type(error).__name__}: {line[:300]}"))
    return found


def findings(check: str, backend: str, jobs: int = 1) -> Iterator[Finding]:
    """What it finds of all calls, in order; each of `jobs` processes takes one after another."""
    numbers = range(len(list(CHECKS[check][1](backend))))
    of_number = partial(findings_of_call, check, backend)
    if jobs == 1:
        for number in numbers:
            yield from of_number(number)
        return
    with get_context("spawn").Pool(jobs) as pool:
        for found in pool.imap(of_number, numbers):
            yield from found


def main() -> None:
    """Runs a check and prints its findings."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("check", choices=tuple(CHECKS))
    parser.add_argument("--backend", default="triton", help="another one, to try this program")
    parser.add_argument("--jobs", type=int, default=1, help="processes (1)")
    options = parser.parse_args()
    if options.jobs < 1:
        parser.error(f"argument --jobs: must be 1 or more, got {options.jobs}")
    seen = right = 0
    for name, is_right, detail in findings(options.check, options.backend, options.jobs):
        seen, right = seen + 1, right + is_right
        print(json.dumps({"call": name, "ok": is_right, "detail": detail}), flush=True)
    print(f"{right} of {seen} right")
    sys.exit(right < seen)


if __name__ == "__main__":
    main()
