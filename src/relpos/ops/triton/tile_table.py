"""The best tile of each kernel, by kind of call: what `tuning.py` begins with.

A tile is `(m, n, warps, stages)` of `tuning.TileShape`, with its limit of registers where it has
one, for heads up to 64, 128 and 256 wide. The kinds are those of `tuning.kind_of`.
`python -m scripts.sweep_tiles --write` puts in what a GPU took least time for, as `SOURCE` says.
What was not timed has the tile of what is most like it, or, among those tried, the shortest loops
that do not spill registers, where that can be had (`python -m scripts.kernel_facts`). With fewer
than 16 queries for each warp some warps compute the same.
"""

SOURCE = (
    "NVIDIA H200 with an earlier shear (docs/how-it-works.md, section 8), 4096 tokens, up to 64 "
    "or 128 wide: plain (3 at 64, 3 at 128), bias (3 at 64), narrow table (4 at 64, 4 at 128), "
    "wide table (2 at 64), tables (4 at 64, 4 at 128), rows of a grid (3 at 64); the rest was "
    "not timed"
)
TILES = {
    "float32": {
        "forward": ((32, 32, 8, 1), (32, 16, 8, 1), (32, 16, 8, 1)),
        "dq": ((32, 32, 8, 1), (32, 16, 8, 1), (32, 16, 8, 1)),
        "dkdv": ((32, 32, 8, 1), (32, 32, 8, 1), (16, 16, 4, 1)),
        "dtables": ((32, 32, 8, 1), (32, 32, 8, 1), (16, 16, 4, 1)),
    },
    "plain": {
        "forward": ((128, 64, 4, 3), (128, 64, 8, 3), (64, 32, 8, 2)),
        "dq": ((128, 64, 8, 3), (64, 64, 4, 2), (64, 32, 8, 1)),
        "dkdv": ((64, 64, 4, 2, 168), (64, 64, 4, 2), (32, 32, 4, 1)),
        "dtables": ((64, 64, 4, 1), (64, 64, 8, 1), (32, 32, 4, 1)),
    },
    "bias": {
        "forward": ((64, 64, 4, 3, 128), (128, 64, 8, 3), (64, 32, 8, 2)),
        "dq": ((64, 64, 4, 3, 168), (64, 64, 4, 2), (64, 32, 8, 1)),
        "dkdv": ((64, 64, 4, 3), (64, 64, 4, 2), (32, 32, 4, 1)),
        "dtables": ((64, 64, 4, 2), (64, 64, 4, 1), (32, 32, 4, 1)),
    },
    "narrow table": {
        "forward": ((64, 64, 4, 3, 168), (128, 64, 8, 3), (64, 32, 8, 2)),
        "dq": ((64, 32, 4, 3, 128), (64, 32, 4, 3), (64, 32, 8, 1)),
        "dkdv": ((64, 64, 4, 3), (64, 64, 4, 2), (32, 32, 4, 1)),
        "dtables": ((64, 64, 4, 1), (64, 64, 4, 1), (32, 32, 4, 1)),
    },
    "wide table": {
        "forward": ((64, 64, 4, 2), (64, 64, 4, 2), (64, 32, 8, 2)),
        "dq": ((64, 32, 4, 2), (64, 32, 4, 2), (64, 32, 8, 1)),
        "dkdv": ((64, 64, 4, 2), (64, 64, 4, 2), (32, 32, 4, 1)),
        "dtables": ((64, 64, 4, 1), (64, 32, 4, 1), (32, 32, 4, 1)),
    },
    "tables": {
        "forward": ((64, 64, 4, 3, 168), (128, 64, 8, 3), (64, 32, 8, 2)),
        "dq": ((64, 64, 4, 3), (128, 64, 8, 2), (64, 32, 8, 1)),
        "dkdv": ((64, 64, 4, 3), (128, 64, 8, 2), (32, 32, 4, 1)),
        "dtables": ((64, 32, 4, 2), (64, 64, 4, 1), (32, 32, 4, 1)),
    },
    "wide tables": {
        "forward": ((64, 64, 4, 2), (64, 32, 4, 2), (64, 32, 8, 2)),
        "dq": ((64, 32, 4, 2), (64, 32, 4, 2), (64, 32, 8, 1)),
        "dkdv": ((64, 64, 4, 2), (128, 64, 8, 1), (32, 32, 4, 1)),
        "dtables": ((64, 64, 4, 1), (64, 32, 4, 1), (32, 32, 4, 1)),
    },
    "tables before H100": {
        "forward": ((64, 32, 4, 2), (32, 32, 4, 2), (64, 32, 8, 2)),
        "dq": ((32, 32, 4, 2), (32, 32, 4, 2), (32, 32, 4, 1)),
        "dkdv": ((64, 64, 4, 2), (32, 32, 4, 2), (32, 32, 4, 1)),
        "dtables": ((32, 32, 4, 2), (32, 32, 4, 2), (32, 32, 4, 1)),
    },
    "rows of a grid": {
        "forward": ((128, 64, 4, 3), (128, 64, 8, 2), (64, 32, 8, 2)),
        "dq": ((64, 64, 4, 3), (64, 64, 8, 2), (64, 32, 8, 1)),
        "dkdv": ((64, 64, 4, 2, 168), (128, 64, 8, 1), (32, 32, 4, 1)),
        "dtables": ((64, 64, 4, 1), (64, 64, 8, 1), (32, 32, 4, 1)),
    },
    "grid": {
        "forward": ((128, 64, 8, 2), (128, 64, 8, 2), (64, 32, 8, 2)),
        "dq": ((64, 64, 4, 2), (64, 64, 8, 2), (64, 32, 8, 1)),
        "dkdv": ((64, 64, 8, 2), (64, 64, 8, 1), (32, 32, 4, 1)),
        "dtables": ((64, 64, 4, 1), (64, 64, 8, 1), (32, 32, 4, 1)),
    },
}
