"""Each rank has some heads of the whole sequence: one exchange before the op, and one after.

As DeepSpeed-Ulysses (Jacobs et al. 2023, section 3.1). The op itself is that of one device, so
that whatever it takes, this takes: grids, documents, every mask.

Query heads are cut as `torch.tensor_split` cuts them. A rank needs the key heads that its query
heads read: where several ranks need one, each gets it, and their gradients are summed.

What a rank sends, h query and g key heads, n tokens on each of P ranks, e bytes a number, where P
divides both: forward `(P - 1) / P b n (h (d + dv) + g (d + dv)) e`, backward the same again.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from ...autocast import without_autocast
from ...ops.dispatch import choose
from ...ops.inputs import prepare
from ...terms import GridTerms
from .cut_call import CutCall
from .head_exchange import HeadExchange

__all__ = ["heads_attention"]


def heads_attention(call: CutCall, *, return_lse: bool) -> tuple[Tensor, Tensor | None]:
    """The output and the log-sum-exp of this rank's rows, by exchanging rows against heads.

    Args:
        call: the call.
        return_lse: whether the latter is asked for.
    """
    exchange = HeadExchange(call, call.ranks, call.queries, call.keys)
    own = exchange.inputs()
    outcome = call.new_outcome()
    results: list[Tensor] = []

    def compute() -> None:
        inputs = prepare(
            "attention", own.q, own.k, own.v, own.terms, own.mask, own.documents, own.key_ranges,
            own.query_documents, causal=own.causal, dropout=own.dropout, scale=own.scale,
            query_start=None if isinstance(own.terms, GridTerms) else own.query_start,
            window=call.window, softcap=own.softcap, return_lse=True,
        )  # fmt: skip
        if own.dropout:
            inputs = replace(inputs, seed=own.seed, dropout_origin=own.dropout_origin)
        results.extend(choose(call.backend, inputs).attention(inputs))

    with without_autocast(own.q):
        outcome.attempt(compute)
    outcome.raise_together()
    output, lse = results
    given = (output, lse.unsqueeze(-1)) if return_lse else (output,)
    found = exchange.to_tokens(*given)
    return found[0], found[1].squeeze(-1) if return_lse else None
