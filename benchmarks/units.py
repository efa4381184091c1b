"""The unit on a GPU: the fastest of torch's SDPA backends at the same shape, for each pass."""

from __future__ import annotations

import warnings
from functools import cache
from statistics import median

from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from cases import Case, Run, inputs
from comparing import passes
from relpos import Terms
from scenes import Scene
from timing import Clock, interleaved

__all__ = ["SDPA", "fastest"]

SDPA = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "memory-efficient": SDPBackend.EFFICIENT_ATTENTION,
}
_SECONDS = 0.05  # after how many a backend rests


def sdpa(backend: SDPBackend, causal: bool) -> Run:
    """Plain attention by that backend, or an error where it refuses."""

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, v, is_causal=causal)

    return run


@cache
def fastest(scene: Scene, causal: bool, clock: Clock) -> dict[str, tuple[str, Run]]:
    """For each pass the name of the fastest backend, and what runs it.

    Raises:
        RuntimeError: if none runs the scene's shape.
    """
    case, tensors = Case(lambda q, k: Terms(), causal=causal), inputs(scene)
    runs: dict[str, Run] = {}
    for name, backend in SDPA.items():
        run = sdpa(backend, causal)
        try:
            with warnings.catch_warnings(action="ignore"):  # they say why it refuses
                for timed in passes(scene, case, {name: run}, tensors).values():
                    timed[name]()
        except RuntimeError:
            continue
        runs[name] = run
    if not runs:
        raise RuntimeError(f"fastest: SDPA must have a backend for {scene.name}, got none")
    found = {}
    for label, timed in passes(scene, case, runs, tensors).items():
        rounds = interleaved(timed, seconds=_SECONDS, clock=clock)
        best = min(runs, key=lambda name: median(taken[name] for taken in rounds if name in taken))
        found[label] = best, runs[best]
    return found
