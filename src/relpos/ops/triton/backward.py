"""The backward pass of one call: its kernels in order."""

from __future__ import annotations

import torch
from torch import Tensor

from ..result_layout import empty_gradient
from .band_sums import BandSums
from .joint_bias_gradient import joint_bias_gradient
from .kernels.backward_dkdv import dkdv_kernel
from .kernels.backward_dq import dq_kernel
from .launch import run_largest_that_fits, run_tiles
from .pair_sums import pair_sums
from .prepared_call import PreparedCall
from .saved import Saved
from .stored_scores import stored_gradients, stores_scores
from .table_gradients import EndRows, table_gradients
from .tensor_args import maybe_token_tensor, token_tensor
from .tuning import TileShape, count_tiles

__all__ = ["backward"]

# From so many keys on, dq's band is left to a second launch: what the first one hands on to it has
# to be little beside the rest. Half of them where the band sums for a bias and nothing shears.
_KEYS_OF_TWO_LAUNCHES = 2048


def backward(call: PreparedCall, saved: Saved, needed: frozenset[str]) -> dict[str, Tensor]:
    """The gradients that are needed, by name.

    Args:
        call: as forward had it.
        saved: of the forward pass.
        needed: names of tensors, as in `PreparedCall`.
    """
    if call.is_empty:
        return _zero_gradients(call, needed)
    return _Backward(call, saved, needed).run()


def _zero_gradients(call: PreparedCall, needed: frozenset[str]) -> dict[str, Tensor]:
    tensors = {
        "q": call.q, "k": call.k, "v": call.v, "q_rel": call.q_rel, "mask": call.mask,
        "key_axis_logits": call.key_axis_logits, "query_axis_logits": call.query_axis_logits,
        "joint_bias": call.joint_bias,
    } | {name: table.rows for name, table in call.tables.items()}  # fmt: skip
    return {
        name: empty_gradient(name, tensors[name]).zero_()  # type: ignore[arg-type]
        for name in needed
    }


class _Backward:
    """What the kernels of one backward pass hand on to each other.

    The first one finds `delta (b, h, i)`, which the others need.
    """

    def __init__(self, call: PreparedCall, saved: Saved, needed: frozenset[str]) -> None:
        self.call, self.saved, self.needed = call, saved, needed
        rows = tuple(call.q.shape[:3])
        self.delta = call.q.new_empty(rows, dtype=torch.float32)
        self.end_rows = EndRows(call.q.new_empty(0, dtype=torch.float32), None)
        self.end_stats: Tensor | None = None
        self.band_sums: BandSums | None = None
        self.gradients: dict[str, Tensor] = {}

    def run(self) -> dict[str, Tensor]:
        """All gradients that are needed."""
        call, saved, needed = self.call, self.saved, self.needed
        if stores_scores(call, needed):
            self.gradients |= stored_gradients(call, saved, self.delta, needed)
        else:
            if needs_tables := bool(needed & call.tables.keys()):
                rows = (4, *call.q.shape[:3])
                self.end_rows = EndRows(call.q.new_empty(rows, dtype=torch.float32), None)
            if call.tables.keys() & {"keys", "values"}:
                self.end_stats = call.q.new_empty((4, *call.q.shape[:3]), dtype=torch.float32)
            self._run_dq()
            if needed & {"k", "v", "queries", "query_axis_logits"}:
                self._run_dkdv()
            if needs_tables:
                self.gradients |= table_gradients(
                    call, saved, self.delta, self.end_rows, self.band_sums, needed
                )
        if "joint_bias" in needed:
            self.gradients["joint_bias"] = joint_bias_gradient(call, saved, self.delta)
        if "mask" in needed:
            self._sum_for_mask()
        return self.gradients

    def _run_dq(self) -> None:
        call, saved, needed = self.call, self.saved, self.needed
        d_q = empty_gradient("q", call.q) if "q" in needed else None
        d_q_rel = None
        if call.q_rel is not None and "q_rel" in needed:
            d_q_rel = empty_gradient("q_rel", call.q_rel)
        d_logits = None
        if call.key_axis_logits is not None and "key_axis_logits" in needed:
            shape = (*call.q.shape[:3], call.key_axis_logits.shape[3])
            d_logits = call.q.new_empty(shape, dtype=torch.float32)

        sums = sums_rel = None
        needs_band_sums = "bias" in needed and call.traits.has_narrow_band
        in_two = d_logits is None and self._walks_band_by_itself(sums=needs_band_sums)
        if in_two:
            sums, sums_rel = (
                None if x is None else x.new_empty(x.shape, dtype=torch.float32)
                for x in (d_q, d_q_rel)
            )

        def walk(shape: TileShape, *, ends: bool = True, band: bool = True) -> None:
            band_sums = self.band_sums if band else None
            num_tiles = call.batch * call.heads * count_tiles(call.seqlen_q, shape.m)
            run_tiles(
                dq_kernel, call, num_tiles, token_tensor(saved.out),
                maybe_token_tensor(saved.rounded_off), saved.softmax,
                token_tensor(saved.d_out), saved.d_lse, maybe_token_tensor(saved.axis_weights),
                maybe_token_tensor(saved.d_axis_weights), maybe_token_tensor(d_q),
                maybe_token_tensor(d_q_rel), maybe_token_tensor(d_logits), self.delta,
                self.end_rows.of_queries, self.end_stats, maybe_token_tensor(sums),
                maybe_token_tensor(sums_rel), None if band_sums is None else band_sums.sums,
                0 if band_sums is None else band_sums.sums.shape[2], shape=shape,
                known=saved.known,
                spec=saved.specialization(call, shape), WALKS_ENDS=ends, WALKS_BAND=band,
                HAS_D_LSE=saved.d_lse is not None, NEEDS_D_Q=d_q is not None,
                NEEDS_D_Q_REL=d_q_rel is not None, NEEDS_D_LOGITS=d_logits is not None,
                NEEDS_END_D_SCORES=bool(needed & {"keys", "bias"}),
                NEEDS_END_WEIGHTS="values" in needed,
                STORES_END_STATS=ends and self.end_stats is not None,
                NEEDS_BAND_SUMS=band_sums is not None,
            )  # fmt: skip

        def run(shape: TileShape) -> None:
            self.band_sums = BandSums.empty(call, shape) if needs_band_sums else None
            if in_two:
                walk(shape, band=False)
                walk(shape.of_short_loop, ends=False)
            elif needs_band_sums:
                # With three stages ptxas lets no product run beside anything else.
                walk(shape._replace(stages=min(shape.stages, 2)))
            else:
                walk(shape)

        known = (saved.known, needed) if in_two else None
        run_largest_that_fits("dq, in two" if in_two else "dq", call, run, known=known)
        self._add(q=d_q, q_rel=d_q_rel)
        if d_logits is not None and call.key_axis_logits is not None:
            self._add(key_axis_logits=d_logits.sum_to_size(call.key_axis_logits.shape))

    def _walks_band_by_itself(self, *, sums: bool) -> bool:
        """Whether dq is to be found in two launches: of a short band that shears, or sums."""
        call = self.call
        shears = call.traits.has_narrow_band and bool(call.tables.keys() - {"bias"})
        if not (call.documents is call.key_ranges is None):
            return False
        least = _KEYS_OF_TWO_LAUNCHES if shears else _KEYS_OF_TWO_LAUNCHES // 2
        return (shears or sums) and call.keys_of_a_tile(1) >= least

    def _run_dkdv(self) -> None:
        call, saved, needed = self.call, self.saved, self.needed
        d_k, d_v = empty_gradient("k", call.k), empty_gradient("v", call.v)
        rows = (call.batch, call.heads, call.seqlen_k)
        d_logits = None
        if call.query_axis_logits is not None and "query_axis_logits" in needed:
            shape = (*rows, call.query_axis_logits.shape[3])
            d_logits = d_k.new_empty(shape, dtype=torch.float32)
        needs_queries = "queries" in needed
        of_keys = d_k.new_empty((2, *rows), dtype=torch.float32) if needs_queries else None
        self.end_rows = EndRows(self.end_rows.of_queries, of_keys)

        def run(shape: TileShape) -> None:
            spec = saved.specialization(call, shape)
            num_tiles = call.batch * call.kv_heads * call.count_key_tiles(spec)
            run_tiles(
                dkdv_kernel, call, num_tiles, saved.softmax, token_tensor(saved.d_out), self.delta,
                self.end_stats, maybe_token_tensor(saved.d_axis_weights), token_tensor(d_k),
                token_tensor(d_v), maybe_token_tensor(d_logits), of_keys, None, None, None, 0, 0,
                count_tiles(call.seqlen_q, shape.m) * shape.m, shape=shape, spec=spec,
                known=saved.known,
                NEEDS_D_LOGITS=d_logits is not None, NEEDS_D_QUERIES=needs_queries,
                STORES_D_SCORES=False, STORES_WEIGHTS=False, IN_PARTS=False,
            )  # fmt: skip

        run_largest_that_fits("dkdv", call, run)
        self._add(k=d_k if "k" in needed else None, v=d_v if "v" in needed else None)
        self._add(query_axis_logits=d_logits)

    def _sum_for_mask(self) -> None:
        mask = self.call.mask
        assert mask is not None
        batch, heads, queries, keys = mask.shape
        sums = pair_sums(
            self.call, self.saved, self.delta, batch=batch, heads=heads,
            by_query=queries > 1, by_key=keys > 1, of_mask=True,
        )  # fmt: skip
        self._add(mask=sums)

    def _add(self, **gradients: Tensor | None) -> None:
        self.gradients |= {name: x for name, x in gradients.items() if x is not None}
