"""The most memory that was held at once while a model was trained."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import torch

from ..machine import status_mib

__all__ = ["PeakMemory"]

_CLEAR = Path("/proc/self/clear_refs")
_FORGET_PEAK = "5"


class PeakMemory:
    """The largest resident set of this process, or the most that a GPU held, over all runs.

    The resident set contains everything that the process has in memory: Python, torch, the data,
    and what trainings before this one left. So it says how much a run needs, and does not compare
    the models of one run; `benchmarks.steps` measures each in a process of its own.
    """

    def __init__(self) -> None:
        self.mib: float | None = None
        self._forgot = False
        self._device: torch.device | None = None

    def start(self, device: torch.device) -> None:
        """Forget earlier peaks of this process.

        Args:
            device: on which the model is trained.
        """
        self._device, self._forgot = device, False
        # Where an earlier peak cannot be forgotten there is no figure.
        with suppress(OSError):
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(device)
            else:
                _CLEAR.write_text(_FORGET_PEAK)
            self._forgot = True

    def stop(self) -> None:
        """Take the peak since `start` into account."""
        if (device := self._device) is None or not self._forgot:
            return
        with suppress(OSError):
            found = (
                torch.cuda.max_memory_allocated(device) / 2**20
                if device.type == "cuda"
                else status_mib("VmHWM")
            )
            self.mib = max(found, self.mib or 0.0)

    def state_dict(self) -> dict[str, float | None]:
        """The peak so far, for a checkpoint."""
        self.stop()
        return {"mib": self.mib}

    def load_state_dict(self, state: dict[str, float | None]) -> None:
        """Go on from the peak in a checkpoint."""
        self.mib = state["mib"]
