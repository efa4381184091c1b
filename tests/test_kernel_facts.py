"""What is read off machine code, and what that says of the kernels: no GPU is needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

from scripts import kernel_facts
from scripts.kernel_facts import CASES, LENGTH, predicted, turns
from scripts.sass import inner_loops

pytestmark = pytest.mark.no_typecheck

ROOT = Path(__file__).parents[1]

CODE = """
.L_x_0:
        /*0000*/                   HMMA.16816.F32.BF16 R4, R8, R10, R4 ;
.L_x_1:
        /*0010*/              @!P3 LDGSTS.E.BYPASS.128 [R23+0x4000], desc[UR30][R40.64], P1 ;
        /*0020*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*0030*/               @P0 BRA `(.L_x_2) ;
        /*0040*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR16], R24, gsb0 ;
        /*0050*/                   MUFU.EX2 R26, R92 ;
        /*0060*/                   LDG.E.64 R2, desc[UR4][R2.64] ;
        /*0070*/                   LDSM.16.MT88.4 R8, [R8] ;
        /*0080*/                   STL.128 [R1+0x10], R4 ;
        /*0090*/               @P2 BRA `(.L_x_1) ;
.L_x_2:
        /*00a0*/                   SHFL.BFLY PT, R3, R2, 0x2, 0x1f ;
        /*00b0*/              @!P1 BRA `(.L_x_1) ;
        /*00c0*/               @P1 BRA `(.L_x_0) ;
.L_x_3:
        /*00d0*/                   BRA `(.L_x_3);
"""


def test_an_inner_loop_ends_at_the_last_branch_to_its_beginning():
    inner, trap = inner_loops(CODE)
    assert len(trap.opcodes) == 1
    assert inner.counts() == {
        "instructions": 11, "tensor core": 1, "barrier": 1, "special function": 1, "shuffle": 1,
        "synchronous load": 1, "asynchronous copy": 1, "global store": 0, "shared load": 1,
        "shared store": 0, "local": 1,
    }  # fmt: skip


def test_what_a_warp_moves_and_multiplies():
    inner = inner_loops(CODE)[0]
    assert inner.tensor_flops() == 2 * 64 * 128 * 16 / 4
    assert inner.bytes_of("asynchronous copy") == 32 * 16
    assert inner.bytes_of("synchronous load") == 32 * 8
    assert inner.bytes_of("shared load", "local") == 32 * (16 + 16)
    (other,) = inner_loops(
        ".L_x_7:\n    /*0000*/    HMMA.1688.F32 R4, R8 ;\n    /*0010*/    BRA `(.L_x_7) ;"
    )
    assert other.tensor_flops() == 2 * 16 * 8 * 8


def kernel(name: str, *regions: str, m: int = 128, n: int = 64, cycles: float = 100) -> dict:
    loops = [{"region": region, "cycles": {"issue": cycles, "tensor": 1.0}} for region in regions]
    return {
        "architecture": "sm_90", "case": "plain", "dim": 64, "kernel": name,
        "tile": {"m": m, "n": n}, "loops": loops,
    }  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_every_tile_is_in_one_region(case: str):
    counts = turns(kernel("forward_kernel"), CASES[case])
    tiles = [
        (i0, j0)
        for i0 in range(0, LENGTH, 128)
        for j0 in range(0, LENGTH, 64)
        if not CASES[case].causal or j0 < i0 + 128
    ]
    assert sum(counts[region] for region in ("left", "band", "right")) == len(tiles)
    first, last = CASES[case].offsets or (LENGTH, LENGTH)
    inside = sum(
        any(first < j - i < last for j in (j0, j0 + 63) for i in (i0, i0 + 127)) for i0, j0 in tiles
    )
    assert counts["band"] >= inside
    assert counts["band"] <= inside + 2 * LENGTH // 128


@pytest.mark.parametrize("kind", ["dtables_kernel", "stored_dtables_kernel"])
def test_the_gradient_of_a_table_of_all_offsets_takes_each_pair_once(kind: str):
    counts = turns(kernel(kind, m=64, n=64), CASES["Huang, causal"])
    assert counts["all"] * 64 * 64 == pytest.approx(LENGTH**2 / 2, rel=0.05)


@pytest.mark.parametrize("case", ["Huang, causal", "Inkling logits, causal"])
def test_stored_scores_are_read_by_key_and_by_offset(case: str):
    counts = turns(kernel("stored_dq_kernel", m=64, n=64), CASES[case])
    rows = 1 - (CASES[case].offsets or (0, 0))[0]
    assert counts["keys"] * 64 * 64 == pytest.approx(LENGTH**2 / 2, rel=0.05)
    assert counts["offsets"] * 64 * 64 == pytest.approx(rows * LENGTH - rows**2 / 2, rel=0.08)


def test_a_prediction_is_the_sum_of_the_turns():
    rows = [kernel(f"{name}_kernel", "left") for name in ("forward", "dq", "dkdv")]
    rows.append(kernel("end_rows_kernel", "other"))
    # A tile of 128 x 64 pairs takes 256 cycles a product at the peak, of which half is reached.
    assert predicted(rows) == {
        "forward": pytest.approx(100 / (2 * 512)), "both": pytest.approx(300 / (7 * 512)),
    }  # fmt: skip


def facts(path: Path, *arguments: str) -> list[dict[str, Any]]:
    """Of a run of the script: the kernels of all cases, and what it printed goes unread."""
    environment = {name: x for name, x in os.environ.items() if name != "TRITON_INTERPRET"}
    run = subprocess.run(
        [sys.executable, "-m", "scripts.kernel_facts", "--architectures", "sm_90", "--dims", "64",
         "--out", path, *arguments],
        capture_output=True, text=True, check=False, env=environment, cwd=ROOT,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:]
    assert "predicted, against flash attention" in run.stdout
    result = json.loads(path.read_text())
    return [row for case in result.values() if "kernels" in case for row in case["kernels"]]


# Products of a tile and the head's width in each turn: beyond the ends of tables, and in the band
# or in the kernel's other loop. A tile of as many queries as keys needs two blocks of a table's
# rows, one with twice as many three.
PLAIN = {"forward_kernel": (2, None), "dq_kernel": (3, None), "dkdv_kernel": (4, None)}
STORED = {"stored_dq_kernel": (1, 1), "stored_dtables_kernel": (1, None)}
PRODUCTS_OF_TURNS = {
    "plain": PLAIN,
    "Shaw keys": {
        "forward_kernel": (2, 4), "dq_kernel": (3, 7), "dkdv_kernel": (4, 6),
        "dtables_kernel": (6, None),
    },
    "Shaw keys and values": {
        "forward_kernel": (2, 6), "dq_kernel": (3, 9), "dkdv_kernel": (4, 8),
        "dtables_kernel": (8, None),
    },
    "T5 bias": {"forward_kernel": (2, 2), "dq_kernel": (3, 3), "dkdv_kernel": (4, 4)},
    "Huang, causal": {"forward_kernel": (2, 4), "dkdv_kernel": (4, 6), **STORED},
    "Inkling logits, causal": {
        "forward_kernel": (2, 2.5), "dq_kernel": (3, 4), "dkdv_kernel": (4, 4.5),
        "dtables_kernel": (4.5, None),
    },
    "grid 64 x 64": PLAIN,
}  # fmt: skip
# Instructions that spill registers to memory or fetch them, in one turn; counted as below. A limit
# of registers costs some in a short band, for which the loops beside it have more programs.
SPILLING = {
    # Since it keeps what rounding takes off its output.
    ("T5 bias", "forward_kernel", "band"): 2,
    ("T5 bias", "forward_kernel", "right"): 1,
    ("Shaw keys and values", "forward_kernel", "band"): 50,
    ("Shaw keys and values", "dkdv_kernel", "band"): 16,
    ("Shaw keys and values", "dkdv_kernel", "left"): 2,
    ("Shaw keys and values", "dkdv_kernel", "right"): 2,
    ("Shaw keys and values", "dtables_kernel", "all"): 10,
    ("grid 64 x 64", "forward_kernel", "grid"): 8,
    ("grid 64 x 64", "dkdv_kernel", "left"): 7,
}
# Instructions of a turn at most, for 128 x 64 pairs and 8 warps, or as many pairs for each warp.
BUDGETS = {
    ("plain", "forward_kernel", "left"): 345,
    ("plain", "dq_kernel", "left"): 280,
    ("plain", "dkdv_kernel", "left"): 415,
    ("Shaw keys", "forward_kernel", "left"): 380,
    ("Shaw keys", "forward_kernel", "band"): 550,
    ("Shaw keys", "dq_kernel", "band"): 1000,
    ("Shaw keys", "dkdv_kernel", "band"): 630,
    ("Shaw keys", "dtables_kernel", "all"): 1150,
    ("Shaw keys and values", "forward_kernel", "band"): 960,
    ("Shaw keys and values", "dq_kernel", "band"): 1400,
    ("Shaw keys and values", "dkdv_kernel", "band"): 850,
    ("Shaw keys", "dkdv_kernel", "left"): 415,
    ("T5 bias", "forward_kernel", "left"): 385,
    ("T5 bias", "forward_kernel", "band"): 440,
    ("T5 bias", "dq_kernel", "band"): 760,
    ("T5 bias", "dkdv_kernel", "band"): 550,
    ("Huang, causal", "forward_kernel", "band"): 620,
    ("Huang, causal", "dkdv_kernel", "band"): 730,
    ("Huang, causal", "stored_dq_kernel", "keys"): 500,
    ("Huang, causal", "stored_dq_kernel", "offsets"): 300,
    ("Huang, causal", "stored_dtables_kernel", "all"): 320,
    ("grid 64 x 64", "forward_kernel", "grid"): 450,
    ("grid 64 x 64", "dq_kernel", "grid"): 450,
}


@pytest.mark.slow
@pytest.mark.parametrize("case", PRODUCTS_OF_TURNS)
@pytest.mark.costly(2, of="programs that measure")
def test_loops_compute_nothing_twice_and_hardly_spill(case: str, tmp_path: Path):
    products_of = PRODUCTS_OF_TURNS[case]
    budgets = {at: limit for at, limit in BUDGETS.items() if at[0] == case}
    ran = set()
    for row in facts(tmp_path / "facts.json", "--cases", case):
        kernel, tile = row["kernel"], row["tile"]
        assert row["case"] == case
        assert bool(row["serialized"]) == (kernel == "stored_dq_kernel"), row["serialized"]
        share = tile["warps"] * 1024 / (tile["m"] * tile["n"])
        for loop in row["loops"]:
            at = (case, kernel, loop["region"])
            assert loop["local"] * share <= SPILLING.get(at, 0), (at, loop)
            assert loop["instructions"] * share <= budgets.pop(at, 1e9), (at, loop)
            if products := products_of.get(kernel):
                wanted = products[loop["region"] in ("band", "offsets")]
                assert loop["products"] == wanted, (at, loop)
        ran.add(kernel)
    assert ran >= products_of.keys()
    assert not budgets


def test_every_case_has_its_products():
    assert PRODUCTS_OF_TURNS.keys() == CASES.keys()
    assert {case for case, _, _ in (*BUDGETS, *SPILLING)} <= CASES.keys()


@pytest.mark.slow
@pytest.mark.costly(2, of="programs that measure")
def test_a_table_of_all_offsets_takes_thirteen_products(tmp_path: Path):
    """Forward and backward together, of which plain attention takes nine."""
    rows = facts(tmp_path / "facts.json", "--cases", "Huang, causal")
    in_band = {"forward_kernel", "dkdv_kernel"}
    loops = [
        loop["products"]
        for row in rows
        for loop in row["loops"]
        if loop["region"] == "band" or row["kernel"] not in in_band
    ]
    assert len(loops) == 5
    assert sum(loops) == 13


@pytest.mark.slow
@pytest.mark.costly(2, of="programs that measure")
def test_a_tile_whose_warps_share_rows_computes_scores_twice(tmp_path: Path):
    rows = facts(tmp_path / "facts.json", "--cases", "plain", "--tiles", "dkdv=64x64x8x2")
    (dkdv,) = (row for row in rows if row["kernel"] == "dkdv_kernel")
    assert dkdv["tile"] == {"m": 64, "n": 64, "warps": 8, "stages": 2, "registers": 0}
    assert {loop["products"] for loop in dkdv["loops"]} == {6}


@pytest.mark.parametrize(
    "arguments",
    [
        ("--tiles", "dkdv=64x64"),
        ("--tiles", "dkdv=64x64x4x2"),
        ("--tiles", "dkdv=0x0x0x0", "--out", "facts.json"),
        ("--tiles", "dkdv=64x128x8x2", "--out", "facts.json"),
        ("--tiles", "dkdv=100x60x8x2", "--out", "facts.json"),
        ("--tiles", "forward=256x64x8x2", "--out", "facts.json"),
        ("--tiles", "forward=128x128x8x2", "--out", "facts.json"),
        ("--out", "/dev/null/facts.json"),
        ("--out", "README.md"),
        ("--cases", "none"),
        ("--dims", "32"),
        ("--out", "."),
    ],
)
def test_wrong_arguments_are_named(arguments: tuple[str, ...], refusal, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert f"argument {arguments[0]}" in refusal(kernel_facts, arguments, "get_context")
