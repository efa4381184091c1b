"""Scripts in which Triton compiles: a process of their own, without its interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["RACING_KERNEL", "lines_of_script"]

ROOT = Path(__file__).parents[1]


def lines_of_script(script: str, folder: Path) -> list[str]:
    """What a script prints, which may import relpos and `scripts`; Triton needs it as a file."""
    path = folder / "script.py"
    path.write_text(script)
    environment = {name: x for name, x in os.environ.items() if name != "TRITON_INTERPRET"}
    paths = [str(ROOT), str(ROOT / "src"), environment.get("PYTHONPATH", "")]
    run = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, check=False, cwd=ROOT,
        env=environment | {"PYTHONPATH": os.pathsep.join(paths)},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]
    return run.stdout.splitlines()


#: Of a script: a kernel that Triton's pipeline lets race, unless `AGAIN` (`scripts/pipelines.py`).
RACING_KERNEL = """

@triton.jit
def summed(x, y, sums, count, AGAIN: tl.constexpr):
    rows = tl.arange(0, 64)[:, None] * 64 + tl.arange(0, 64)[None, :]
    acc = tl.zeros((64, 64), tl.float32)
    q = tl.load(y + rows)
    for start in tl.range(0, count, num_stages=3):
        k = tl.load(x + start * 4096 + rows)
        again = k
        if AGAIN:
            again = tl.load(x + start * 4096 + rows, eviction_policy="evict_last")
        scores = tl.dot(q, tl.trans(k)) + tl.sum(again.to(tl.float32), 1)[None, :]
        acc += tl.dot(scores.to(k.dtype), k)
    tl.store(sums + rows, acc)
"""
