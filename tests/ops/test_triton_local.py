"""Windows, ranges of keys and softcap in the Triton kernels: what is skipped, and how far it goes.

That the results are right is tested with all other cases in `test_triton.py`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

from relpos import OffsetTable, Terms, attention, backends
from relpos.ops.locality import outside_ranges
from tests.ops import test_local, test_torch_library
from tests.ops.agreement import assert_agrees
from tests.ops.backends import ON_GPU
from tests.ops.cases import CASES, Case
from tests.ops.grid_cases import GridCase
from tests.ops.test_meaning import assert_same_with

pytestmark = [
    pytest.mark.skipif(bool(backends()["triton"]), reason=str(backends()["triton"])),
    pytest.mark.no_typecheck,
    pytest.mark.usefixtures("quick_interpreter"),
]
pytest.importorskip("triton")

from relpos.ops.triton import tile_ranges  # noqa: E402
from relpos.ops.triton.key_ranges import KeyRanges  # noqa: E402

FLOAT = torch.float32
PLACE = test_torch_library.place("triton")
M, N = 32, 16  # queries and keys of a tile in the interpreter
its_tiles = pytest.mark.skipif(ON_GPU, reason="tiles have other sizes there")

SMALL = Case(batch=1, heads=1, groups=1, queries=128, keys=128, table_window=(30, 30))
WINDOW = replace(SMALL, window=(15, 4))
RANGES = replace(SMALL, ranges="any")
# Some keys, and more than a tile of queries, are in no window.
LATE = replace(WINDOW, query_start=50, queries=40, keys=65)
EARLY = replace(WINDOW, query_start=-40, queries=50, keys=33)
BEYOND = replace(WINDOW, query_start=0, queries=120, keys=33)


def local_inputs(case: Case) -> dict[str, Tensor]:
    """The case's inputs; ranges are some that leave out a few keys, and the last tile of queries.

    They are in falling order, so that the last queries see the first keys.
    """
    named = case.inputs(dtype=FLOAT)
    if case.ranges is not None:
        first = torch.arange(case.queries).flip(0) // 10 * 6 + 3
        ranges = torch.stack([first, first + 9], 1)
        ranges[-M:] = 20
        named["key_ranges"] = ranges.unsqueeze(0)
    return named


def tiles_with_pairs(case: Case, named: dict[str, Tensor]) -> Tensor:
    """`(tiles of queries, tiles of keys)`: whether some pair of them takes part."""
    visible = test_local.visible_pairs(case, named)[0, 0]
    padded = pad(visible, (0, -case.keys % N, 0, -case.queries % M))
    return padded.unflatten(1, (-1, N)).unflatten(0, (-1, M)).any(3).any(1)


@pytest.mark.slow
@pytest.mark.parametrize("which", ["k", "v"])
@pytest.mark.parametrize(
    "case", [LATE, EARLY, replace(RANGES, queries=50, keys=201)], ids=["late", "early", "ranges"]
)
@pytest.mark.costly(3)
def test_keys_that_no_query_reaches_are_never_read(case: Case, which: str):
    check = test_local.test_keys_that_no_query_reaches_are_never_read
    check("triton", case, which, torch.nan)


@its_tiles
@pytest.mark.slow
@pytest.mark.parametrize("case", [BEYOND, RANGES], ids=["window", "ranges"])
@pytest.mark.costly(1)
def test_tiles_of_queries_without_keys_are_never_computed(case: Case):
    """Nor for the gradients of keys and values, of the tables, and of a mask."""
    case = replace(case, mask="additive", softcap=3.0)
    named = local_inputs(case)
    without_keys = ~tiles_with_pairs(case, named).any(1)
    assert without_keys.any()
    queries = without_keys.repeat_interleave(M)[: case.queries, None]
    poisoned = named | {"q": named["q"].masked_fill(queries, torch.nan)}
    assert_same_with(case, "triton", named, poisoned)
    output, lse = case.run(poisoned, "triton")
    assert output.where(queries, 0).eq(0).all()
    assert lse[..., queries[:, 0]].isneginf().all()


@its_tiles
@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "tile"), [(WINDOW, 3), (RANGES, 1), (RANGES, 3)],
    ids=["window", "ranges, early", "ranges, late"],
)  # fmt: skip
@pytest.mark.costly(1)
def test_tiles_that_no_pair_reaches_are_never_computed(case: Case, tile: int):
    """What is wrong with some keys is so for the tiles of queries that see one of them alone."""
    case = replace(case, mask="additive")
    named = local_inputs(case)
    reached = tiles_with_pairs(case, named)
    wrong = torch.arange(tile * N, (tile + 1) * N, 2)
    wrong_queries = reached[:, tile]
    wrong_keys = reached[wrong_queries].any(0)
    assert not wrong_queries.all()
    assert not wrong_keys.all()
    poisoned = named | {name: named[name].index_fill(2, wrong, torch.nan) for name in "kv"}
    clean, found = (case.results(inputs, "triton") for inputs in (named, poisoned))
    of_queries = ~wrong_queries.repeat_interleave(M)[: case.queries]
    of_keys = ~wrong_keys.repeat_interleave(N)[: case.keys]
    for name in ("output", "q", "mask", "k", "v"):
        right = of_keys if name in "kv" else of_queries
        assert torch.equal(found[name][:, :, right], clean[name][:, :, right]), name
    assert found["output"].isnan().any()


@its_tiles
@pytest.mark.slow
def test_tiles_outside_the_window_of_a_grid_are_never_computed():
    """Rows of 9 tokens, of which each sees its own row and those beside it."""
    case = GridCase(
        shape=(12, 9), heads=1, groups=1, joint_bias=True, window=((1, 1), (2, None)), softcap=2.0
    )
    named = case.inputs(dtype=FLOAT)
    wrong = torch.arange(0, N, 2)
    poisoned = named | {name: named[name].index_fill(2, wrong, torch.nan) for name in "kv"}
    clean, found = (case.results(inputs, "triton") for inputs in (named, poisoned))
    # The keys are of rows 0 and 1, so that no query after row 2 sees any of them.
    for name in ("output", "q"):
        assert torch.equal(found[name][:, :, M:], clean[name][:, :, M:]), name
    # The first tile of queries ends in row 3, and sees keys up to row 4.
    for name in ("k", "v"):
        assert torch.equal(found[name][:, :, 48:], clean[name][:, :, 48:]), name
    assert found["output"].isnan().any()


@pytest.mark.slow
def test_rows_of_tables_outside_the_window_are_never_read():
    case = replace(SMALL, queries=40, keys=40, window=(5, 3))
    named = case.inputs(dtype=FLOAT)
    poisoned = {name: tensor.clone() for name, tensor in named.items()}
    for name, table in case.tables(named).items():
        poisoned[name][:, : -5 - table.first] = torch.nan
        poisoned[name][:, 4 - table.first :] = torch.nan
        assert poisoned[name].isnan().any()
    assert_same_with(case, "triton", named, poisoned)


@pytest.mark.parametrize("far", [2**59, -(2**59)])
def test_queries_may_be_as_far_off_as_their_window_is(far: int):
    x, rows = torch.randn(1, 1, 3, 8), torch.randn(1, 4, 8)
    left, right = (2, None) if far > 0 else (None, 0)
    moved = (left and left + far, None if right is None else right - far)
    near, away = (
        attention(
            x, x, x, Terms(keys=OffsetTable(rows, first)), query_start=start, window=window,
            backend="triton",
        )
        for first, start, window in ((-2, 1, (left, right)), (-2 - far, 1 + far, moved))
    )  # fmt: skip
    everything = attention(x, x, x, Terms(keys=OffsetTable(rows, -2)), query_start=1)
    assert_agrees(near, away)
    assert not torch.equal(near, everything)


@pytest.mark.parametrize("wide", [2**31 - 1, 2**59])
def test_windows_and_ranges_may_be_wider_than_all_numbers_of_32_bits(wide: int):
    case = CASES["per head"]
    named = case.inputs(dtype=FLOAT)
    named["key_ranges"] = torch.tensor([-wide, wide]).expand(1, case.queries, 2)
    found = case.run(named, "triton", window=(wide, wide))
    assert_agrees(found, case.run(named, "triton", key_ranges=None))


def test_ranges_of_no_keys_at_all_give_zeros():
    q, none = torch.ones(1, 2, 3, 4, requires_grad=True), torch.zeros(1, 2, 0, 4)
    ranges = torch.tensor([[[0, 5], [2, 1], [-3, 0]]])
    output = attention(q, none, none, key_ranges=ranges, window=(1, 1), backend="triton")
    assert torch.equal(output, torch.zeros(1, 2, 3, 4))
    (gradient,) = torch.autograd.grad(output.sum(), q)
    assert torch.equal(gradient, torch.zeros(1, 2, 3, 4))


def random_ranges(batch: int, queries: int, keys: int) -> Tensor:
    begin = torch.randint(-9, keys + 9, (batch, queries))
    return torch.stack([begin, begin + torch.randint(-5, 20, (batch, queries))], 2)


@pytest.mark.parametrize("tiles_at_once", [1, 8, 128])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (65, 33), (33, 200), (300, 301)])
def test_tiles_see_the_hull_of_what_their_tokens_see(
    queries: int, keys: int, tiles_at_once: int, monkeypatch: pytest.MonkeyPatch
):
    """However few tiles are looked at at once."""
    monkeypatch.setattr(tile_ranges, "_SHAPE", tile_ranges._SHAPE._replace(n=tiles_at_once))
    ranges = random_ranges(3, queries, keys)
    within = KeyRanges.of(ranges.to(PLACE), 3, keys).of_queries
    tiles_of = tile_ranges.tiles_of_key_ranges(within, keys, M, N)
    by_queries, by_keys = (tiles.cpu() for tiles in tiles_of)
    for b in range(3):
        visible = ~outside_ranges(ranges[b : b + 1], torch.arange(keys))[0, 0]
        for tile, found in enumerate(by_queries[b].tolist()):
            assert range(*found) == hull(visible[tile * M : (tile + 1) * M].any(0), N)
        # A tile of queries sees all between its first key and its last one.
        tiles = by_queries[b, :, :, None]
        seen = (tiles[:, 0] <= torch.arange(0, keys, N)) & (torch.arange(0, keys, N) < tiles[:, 1])
        for tile, found in enumerate(by_keys[b].tolist()):
            assert range(*found) == hull(seen[:, tile].repeat_interleave(M), M)


@pytest.mark.parametrize(("of_queries", "of_keys"), [(1, 1), (1, 3), (3, 1), (3, 3)])
def test_tiles_see_those_whose_documents_may_be_theirs(of_queries: int, of_keys: int):
    """From the lowest of a tile to its highest; tokens of none are in no document."""
    queries, keys = (
        torch.randint(0, 9, (batch, tokens))
        .sort(1)
        .values.masked_fill(torch.rand(tokens) < 0.4, -1)
        for batch, tokens in ((of_queries, 70), (of_keys, 101))
    )
    queries[:, :M] = keys[:, -N:] = -1
    found = tile_ranges.tiles_of_documents(queries.to(PLACE), keys.to(PLACE), M, N)
    for b, by_queries in enumerate(found[0].tolist()):
        query_tiles = documents_of_tiles(queries[b % of_queries], M)
        key_tiles = documents_of_tiles(keys[b % of_keys], N)
        assert by_queries == hulls_that_meet(query_tiles, key_tiles, N)
        assert found[1][b].tolist() == hulls_that_meet(key_tiles, query_tiles, M)


def documents_of_tiles(documents: Tensor, size: int) -> list[tuple[int, int] | None]:
    """The lowest and the highest of each tile, or None."""
    tiles = [[x for x in tile.tolist() if x >= 0] for tile in documents.split(size)]
    return [(min(tile), max(tile)) if tile else None for tile in tiles]


def hulls_that_meet(
    tiles: list[tuple[int, int] | None], others: list[tuple[int, int] | None], size: int
) -> list[list[int]]:
    """Of each tile the tokens from the first other that it meets to the last."""
    found = []
    for tile in tiles:
        meets = [
            number
            for number, other in enumerate(others)
            if tile and other and tile[0] <= other[1] and other[0] <= tile[1]
        ]
        found.append([meets[0] * size, (meets[-1] + 1) * size] if meets else [0, 0])
    return found


def hull(seen: Tensor, size: int) -> range:
    """From the first to the last token that is seen, in whole tiles."""
    numbers = seen.nonzero().flatten().tolist()
    if not numbers:
        return range(0)
    return range(numbers[0] // size * size, (numbers[-1] // size + 1) * size)


def test_keys_in_any_range_are_those_that_some_query_sees():
    ranges = random_ranges(3, 20, 100)
    expected = ~outside_ranges(ranges, torch.arange(100)).all(2)[:, 0]
    assert torch.equal(KeyRanges.of(ranges.to(PLACE), 3, 100).keys_in_any.bool().cpu(), expected)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_opcheck():
    leaf = test_torch_library.leaves("triton")
    ranges = torch.tensor([[[0, 3], [4, 2], [-1, 9], [2, 6], [5, 7]]])
    arguments = test_torch_library.in_order(
        "triton", q=leaf(2, 4, 5, 3), k=leaf(2, 2, 7, 3), v=leaf(2, 2, 7, 6), keys=leaf(4, 5, 3),
        values=leaf(1, 5, 6), mask=leaf(2, 1, 5, 7), first_offsets=[-2, 0, 0, -3], query_start=2,
        key_ranges=ranges.to(test_torch_library.place("triton")), window=[4, -1], softcap=1.5,
    )  # fmt: skip
    torch.library.opcheck(test_torch_library.operator("triton"), arguments)
