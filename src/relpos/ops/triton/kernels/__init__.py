"""The kernels, in Triton's language.

Each kernel owns a kind of output, so that nothing is added up by atomics:

    forward.py           forward_kernel     a tile of queries: `out`, `lse`, `softmax`
    backward_dq.py       dq_kernel          a tile of queries: `d_q`, `d_q_rel`, `delta`
    backward_dkdv.py     dkdv_kernel        a tile of keys: `d_k`, `d_v`
    backward_tables.py   dtables_kernel     inner rows of the tables: their gradients
                         end_rows_kernel    the two end rows of a table
    backward_pairs.py    dpairs_kernel      a tile of what has a number for each pair, an additive
                                            mask or a grid's joint bias: its gradient
    bias_rows.py         bias_rows_kernel   before all others: a bias as they read it
    grid_products.py     marks_kernel       before them: which coordinates a grid's tokens have
    axis_logits.py       axis_logits_kernel, axis_dq_kernel, axis_drows_kernel
                                            before and after them: a grid's logits by axis

Where tables have a row for many offsets, dkdv stores `dS`, and in place of dq and dtables run

    backward_stored.py   delta_kernel       a tile of queries: `delta`
                         stored_dq_kernel   a tile of queries: `d_q`, `d_q_rel`
                         stored_dtables_kernel    inner rows of the tables: their gradients

Read `../kernel_args.py` first (what a kernel receives), then `structs.py`, `regions.py`,
`shear.py`, `scores.py` and `forward.py`; the others are variations:

    structs.py         KernelArgs, Pairs, Regions, RowStats, InTwoParts: what helpers receive
    tiles.py           loads and stores of tokens           tables.py    rows of tables
    regions.py         which tiles; LEFT, BAND, RIGHT       masks.py     which pairs; dropout
    shear.py           from offsets to keys and back; products with tables of one tile
    grid_products.py   relative logits per axis, by products with marks
    grid_rows.py       the same where a tile of keys is a row of the grid
    grid_terms.py      the same where there are many coordinates; joint bias
    scores.py          dot products -> scores -> `dS`, for every kernel
    recompute.py       for dkdv and dpairs: scores and `dS` of one tile by itself

Scores, exponentials and `dS` of a tile are `tile_scores`, `tile_exponentials` and `tile_d_scores`
of `scores.py` in every kernel that makes them. What differs is the tile, and where its dot products
with the tables come from:

    forward, dq    (m queries, n keys)       shear.tile_dot_rows; outside the band regions.end_dot
    dkdv, dpairs   (m queries, n keys)       recompute.recompute_d_scores
    dtables        (m queries, n offsets)    tables.dot_rows: there the tables lie straight

Names, everywhere the same:

    b, h, g, i, j, r   numbers of sequence, query head, key head, query, key, table row
    d, dv, rel_dim     widths of `q` and `k`, of `v`, and of `q_rel`
    s                  coordinates along all axes of a grid, one axis after another
    m, n               queries and keys of a tile, `SPEC.block_m` and `SPEC.block_n`
    i0, j0             the first query and key of a tile
    a, c               0..m-1 and 0..n-1: a query and a key within the tile
    p                  in formulas: `q_rel`, or `q` where there is none
    K, Q, V, B         in formulas: the tables of keys, queries, values and bias
    SPEC               the Specialization: what a kernel is compiled for
"""
