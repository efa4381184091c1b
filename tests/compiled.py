"""Scripts in which Triton compiles: a process of their own, without its interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["lines_of_script"]

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
