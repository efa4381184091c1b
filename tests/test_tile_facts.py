"""What the compiler says of other tiles: asked tile by tile, and all of it committed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

pytestmark = pytest.mark.no_typecheck

ROOT = Path(__file__).parents[1]


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    environment = {name: x for name, x in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, "-m", "scripts.tile_facts", *map(str, arguments)],
        capture_output=True, text=True, check=False, env=environment, cwd=ROOT,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.costly(2, of="programs that measure")
def test_facts_of_a_tile_take_the_place_of_those_before(tmp_path: Path):
    out = tmp_path / "facts.json"
    wanted = ("--architectures", "sm_80", "--kinds", "axes, 4 x 128", "--dims", "64", "--out", out)
    for tiles in (("64x16x4x2", "64x64x4x2"), ("64x16x4x2",)):
        done = run(*wanted, "--tiles", *tiles)
        assert done.returncode == 0, done.stderr[-2000:]
        assert all(tile in done.stdout for tile in tiles)
    rows = json.loads(out.read_text())["rows"]
    of_dq = {tuple(row["tile"]): row for row in rows if row["kernel"] == "dq"}
    assert len(rows) == 6
    # Sums by coordinate in a large tile are more than there are registers for.
    assert of_dq[64, 64, 4, 2]["spilled"] > 4096
    assert of_dq[64, 16, 4, 2]["spilled"] < 1024
    loops = [max(x["cycles of a pair"] for x in row["loops"]) for row in of_dq.values()]
    assert max(loops) > 5 * min(loops)


def test_what_is_committed_has_all_that_is_tried():
    from scripts.tile_facts import KINDS, TILES

    rows = json.loads((ROOT / "benchmarks" / "results" / "tile_facts.json").read_text())["rows"]
    tried = {(row["architecture"], row["kind"], row["dim"], *row["tile"]) for row in rows}
    assert tried == {
        (architecture, name, dim, *tile)
        for name, kind in KINDS.items()
        for architecture in kind.only
        for dim in (64, 128)
        for tile in TILES
    }


@pytest.mark.parametrize(
    "arguments",
    [
        ("--tiles", "64x64"), ("--kinds", "none"), ("--dims", "32"), ("--architectures", "sm_70"),
        ("--out", "."), ("--out", "/dev/null/facts.json"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named(arguments: tuple[str, ...], refusal):
    from scripts import tile_facts

    assert f"argument {arguments[0]}" in refusal(tile_facts, arguments, "get_context")
