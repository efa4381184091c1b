"""Check the compiled kernels of calls without a GPU: near float64, and no hazard.

    python -m scripts.emulator sm_90                          # one call of each kind of term
    python -m scripts.emulator sm_80 bias queries --dtype float32
    python -m scripts.emulator sm_90 queries --copies early --products late

The calls and the judge are those of `scripts.gpu_checks terms`. A line of JSON for each call, then
how many are right; exits 1 if one is not. Dropout, of which each backend draws its own, is compared
with the kernels of float32, which draw the same. With Triton 3.6, `--fences stores`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from ..gpu_calls import Call, calls
from ..gpu_checks import Finding, largest_difference, terms, within_the_error_allowed
from .errors import EmulationError
from .launch import SHARED_MEMORY, emulated
from .machine import Mode

_SIDE, _WIDTH = 14, 64  # 224 tokens: a few tiles


def near_float32(call: Call) -> Iterator[Finding]:
    """Results with dropout as near those of the kernels of float32 as without it to float64.

    Those of float32 themselves are to be finite.
    """
    if call.leaves[0].dtype == torch.float32:
        finite = all(result.isfinite().all() for result in call.both())
        yield "", finite, "compared with nothing" if finite else "not finite"
        return
    leaves = tuple(leaf.detach().float().requires_grad_() for leaf in call.leaves)
    keeps = replace(call, settings=call.settings | {"dropout": 0.0})
    scale = 1 / (1 - call.settings["dropout"])
    used = []
    for found, exact, usual, reference in zip(
        call.both(), replace(call, leaves=leaves).both(),
        keeps.reference(call.leaves[0].dtype), keeps.reference(torch.float64), strict=True,
    ):  # fmt: skip
        eps = torch.finfo(found.dtype).eps
        allowed = largest_difference(usual, reference) + eps * reference.abs().max()
        used.append((largest_difference(found, exact) / (2 * scale * allowed)).item())
    yield within_the_error_allowed(used)


def finding(call: Call, architecture: str, mode: Mode, tile: int) -> dict[str, Any]:
    """Whether a call's results are right, and of which kernels how much it ran."""
    began = time.monotonic()
    judge = near_float32 if call.settings.get("dropout") else terms
    with emulated(architecture, mode=mode, tile=tile) as launches:
        try:
            [(_, is_right, detail)] = judge(call)
        except (EmulationError, ValueError) as error:
            is_right, detail = False, f"{type(error).__name__}: {error}"
    seconds = round(time.monotonic() - began, 1)
    kernels = zip(launches.kernels, launches.shares, strict=False)
    return {
        "ok": is_right, "detail": detail, "seconds": seconds,
        "ran": [f"{share:.0%} of {kernel}" for kernel, share in kernels],
    }  # fmt: skip


def main() -> None:
    """Emulates some calls and prints what is found of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("architecture", choices=tuple(SHARED_MEMORY))
    parser.add_argument("calls", nargs="*", metavar="CALL", help="by name (all)")
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    parser.add_argument("--side", type=int, default=_SIDE, help="side * (side + 2) tokens (14)")
    parser.add_argument("--width", type=int, default=_WIDTH, help="of a head (64)")
    parser.add_argument("--copies", choices=("early", "late"), default="late", help="arrive (late)")
    parser.add_argument(
        "--products", choices=("early", "late"), default="late", help="read their factors (late)"
    )
    parser.add_argument("--no-hazards", action="store_true", help="results alone")
    parser.add_argument(
        "--fences", choices=("stores", "all"), default="all", help="that products need (all)"
    )
    parser.add_argument(
        "--tile", type=int, default=0, help="the first to try: 0, the best (0); -1: the least"
    )
    options = parser.parse_intermixed_args()
    for name, least, most in (("side", 2, 64), ("width", 1, 256), ("tile", -1, 16)):
        if not least <= getattr(options, name) <= most:
            parser.error(
                f"argument --{name}: must be {least} to {most}, got {getattr(options, name)}"
            )
    made = calls("triton", options.side, options.width, getattr(torch, options.dtype))
    unknown = set(options.calls) - made.keys()
    if unknown:
        known = ", ".join(map(repr, made))
        parser.error(f"argument CALL: must be of {known}, got {', '.join(map(repr, unknown))}")
    mode = Mode(
        options.copies, options.products, hazards=not options.no_hazards, fences=options.fences
    )
    names = options.calls or list(made)
    right = 0
    for name in names:
        found = finding(made[name], options.architecture, mode, options.tile)
        right += found["ok"]
        print(json.dumps({"call": name} | found), flush=True)
    print(f"{right} of {len(names)} right")
    sys.exit(right < len(names))


if __name__ == "__main__":
    main()
