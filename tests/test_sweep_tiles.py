"""The sweep of tiles, in Triton's interpreter: its times say nothing there, but all of it runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

from relpos.ops.triton.tile_table import SOURCE, TILES
from scripts import sweep_tiles

pytestmark = pytest.mark.no_typecheck

ROOT = Path(__file__).parents[1]


def row(case: str, kernel: str, tile: tuple[int, ...], us: float, dim: int = 64) -> dict:
    return {"case": case, "dim": dim, "kernel": kernel, "tile": list(tile), "us": us}


def test_the_best_tile_of_a_kind_took_least_time_of_those_that_ran():
    small, large = (64, 64, 4, 2), (128, 64, 8, 2)
    rows = [
        row("Huang, causal", "forward", small, 100), row("Huang, causal", "forward", large, 90),
        row("Inkling logits, causal", "forward", small, 10),
        row("Inkling logits, causal", "forward", large, 20),
        row("plain", "dq", large, 3, dim=128),
    ]  # fmt: skip
    rows.append({"case": "plain", "dim": 128, "kernel": "dq", "tile": list(small), "error": "no"})
    assert sweep_tiles.best_tiles(rows) == {
        "plain": {"dq": {128: large}},
        "wide table": {"forward": {64: large}},
        "short rows": {"forward": {64: small}},
    }


def test_what_was_not_timed_stays_in_the_table():
    tile = (64, 32, 4, 3)
    table = sweep_tiles.updated_table([row("plain", "dq", tile, 3, dim=128)])
    assert table["plain"]["dq"] == (TILES["plain"]["dq"][0], tile, TILES["plain"]["dq"][2])
    table["plain"]["dq"] = TILES["plain"]["dq"]
    assert table == TILES


def test_times_of_a_gpu_that_multiplies_by_warp_are_for_kinds_of_their_own():
    tile = (64, 32, 4, 3)
    for capability in ((8, 0), (8, 9), (12, 0)):
        table = sweep_tiles.updated_table([row("plain", "dq", tile, 3)], capability)
        assert table["plain by warp"]["dq"] == (tile, *TILES["plain by warp"]["dq"][1:])
        assert table["plain"] == TILES["plain"]


def test_the_table_is_as_the_sweep_writes_it():
    assert sweep_tiles.table_text(TILES, SOURCE) == sweep_tiles.TABLE.read_text()


def test_every_kind_has_tiles_for_every_kernel():
    for of_kernels in TILES.values():
        assert of_kernels.keys() == sweep_tiles.CANDIDATES.keys()
    assert sweep_tiles.CANDIDATES.keys() == sweep_tiles.CANDIDATES_BY_WARP.keys()
    assert {
        f"{kind}{end}" for kind in sweep_tiles.KINDS for end in ("", " by warp")
    } <= TILES.keys()


def test_every_tile_has_its_turn():
    for case in ("plain", "Shaw keys", "grid 64 x 64"):
        turns = list(sweep_tiles.passes(case, 64))
        for kernel in sweep_tiles.CANDIDATES:
            wanted = sweep_tiles.candidates(case, kernel, 64, (9, 0))
            assert {one[kernel] for one in turns} == set(wanted)
    for turn in sweep_tiles.passes("Huang, causal", 64):
        assert turn.keys() == {"forward", "dkdv"}


@pytest.mark.slow
@pytest.mark.costly(2, of="programs that measure")
def test_a_sweep_goes_on_where_it_was_and_writes_the_table(monkeypatch, tmp_path: Path):
    out, table = tmp_path / "tiles.json", tmp_path / "table.py"
    command = [sys.executable, "-m", "scripts.sweep_tiles", "--dims", "64", "--out", str(out)]
    environment = os.environ | {"TRITON_INTERPRET": "1"}

    def swept(*cases: str) -> list[dict]:
        subprocess.run(
            [*command, "--cases", *cases], cwd=ROOT, env=environment, check=True,
            capture_output=True,
        )  # fmt: skip
        return json.loads(out.read_text())["rows"]

    first = swept("plain")
    assert {one["kernel"] for one in first} == {"forward", "dq", "dkdv"}
    assert {tuple(one["tile"]) for one in first} == {(32, 16, 4, 1, 0), (16, 16, 4, 1, 0)}
    rows = swept("plain", "Shaw keys and values", "grid 64 x 64")
    assert rows[: len(first)] == first
    assert {one["kernel"] for one in rows[len(first) :]} == {"forward", "dq", "dkdv", "dtables"}

    command.append("--usual")
    assert len(swept("plain")) == len(rows)  # the interpreter's own is among them
    table.write_text(sweep_tiles.TABLE.read_text())
    monkeypatch.setattr(sweep_tiles, "TABLE", table)
    monkeypatch.setattr(sys, "argv", ["sweep_tiles.py", "--write", "--out", str(out)])
    sweep_tiles.main()
    found: dict = {}
    exec(table.read_text(), found)
    assert found["SOURCE"] == (
        "the interpreter, 64 tokens, up to 64 or 128 wide: plain (3 at 64), tables (4 at 64), "
        "rows of a grid (3 at 64); the rest as before, or not timed"
    )
    assert found["TILES"]["plain"]["dq"][0] in {(32, 16, 4, 1), (16, 16, 4, 1)}
    assert found["TILES"]["plain"]["dq"][1:] == TILES["plain"]["dq"][1:]


def test_without_a_gpu_or_a_file_it_says_so(tmp_path: Path):
    environment = os.environ | {"TRITON_INTERPRET": "0", "CUDA_VISIBLE_DEVICES": ""}
    for arguments, message in (
        ([], "there must be a CUDA device, got none"),
        (["--write"], "argument --out: must be a file"),
        (["--dims", "32"], "argument --dims"),
    ):
        ran = subprocess.run(
            [sys.executable, "-m", "scripts.sweep_tiles", "--out", str(tmp_path / "no.json"),
             *arguments],
            cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert ran.returncode == 2
        assert message in ran.stderr
        assert not list(tmp_path.iterdir())
