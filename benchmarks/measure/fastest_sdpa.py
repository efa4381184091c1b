"""The unit on a GPU: the fastest of torch's SDPA backends at the same shape, for each pass."""

from __future__ import annotations

import warnings
from functools import cache
from statistics import median

from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from relpos import Terms

from ..workloads.settings import Setting
from ..workloads.workload import Run, Workload, inputs
from .passes import passes
from .timing import Clock, interleaved

__all__ = ["fastest_sdpa"]

SDPA_BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "memory-efficient": SDPBackend.EFFICIENT_ATTENTION,
}
_SECONDS = 0.05  # after how many a backend rests


def sdpa(backend: SDPBackend, causal: bool) -> Run:
    """Plain attention by that backend, or an error where it does not support the inputs."""

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, v, is_causal=causal)

    return run


@cache
def fastest_sdpa(setting: Setting, causal: bool, clock: Clock) -> dict[str, tuple[str, Run]]:
    """For each pass the name of the fastest backend, and what runs it.

    Raises:
        RuntimeError: if none supports the setting's shape.
    """
    workload, tensors = Workload(lambda q, k: Terms(), causal=causal), inputs(setting)
    runs: dict[str, Run] = {}
    for name, backend in SDPA_BACKENDS.items():
        run = sdpa(backend, causal)
        try:
            with warnings.catch_warnings(action="ignore"):  # they say why it is not supported
                for timed in passes(setting, workload, {name: run}, tensors).values():
                    timed[name]()
        except RuntimeError:
            continue
        runs[name] = run
    if not runs:
        raise RuntimeError(f"fastest_sdpa: SDPA must have a backend for {setting.name}, got none")
    fastest = {}
    for pass_name, timed in passes(setting, workload, runs, tensors).items():
        rounds = interleaved(timed, seconds=_SECONDS, clock=clock)
        medians = {
            name: median(timings[name] for timings in rounds if name in timings) for name in runs
        }
        best = min(medians, key=medians.__getitem__)
        fastest[pass_name] = best, runs[best]
    return fastest
