"""The derivative of a backward pass, for every backend: the computation written out, twice derived.

No kernel gives the derivative of gradients, which a gradient penalty, a Hessian's product with a
vector or meta-learning ask for. It is computed in plain PyTorch, of some heads and queries at a
time, with no more than `_MOST_SCORES` pairs, so that memory stays `O(L)` unless the result is to be
differentiated again. All queries of a grid are computed together: there it is a head's pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..autocast import without_autocast
from ..errors import BackendError
from ..terms import GridTerms
from . import reference
from .arguments import Arguments
from .axis_pairs import coordinate_sums, pair_logits, pair_values
from .inputs import Inputs
from .op_schema import OpSchema
from .transforms import check_not_batched

__all__ = ["Named", "derivatives_of_gradients", "register_second_derivatives"]

# In float32 2 MiB, of which about forty are held at a time: indices, masks, products, and again.
_MOST_SCORES = 1 << 19

# What the first axes of a tensor are of: batch entries, heads, groups of heads, queries.
_AXES = {
    "q": "bhi", "k": "bg", "v": "bg", "keys": "h", "queries": "h", "bias": "h", "values": "h",
    "q_rel": "bhi", "mask": "bhi", "axis_tables": "h", "key_axis_logits": "bhi",
    "query_axis_logits": "bh", "joint_bias": "h", "documents": "b", "query_documents": "bi",
    "key_ranges": "bi", "axis_ranges": "b", "d_output": "bhi", "d_lse": "bhi",
    "d_axis_weights": "bhi",
}  # fmt: skip

Named = Mapping[str, Tensor]


class _Part(NamedTuple):
    """Some batch entries, heads, groups of heads and queries of a call."""

    b: slice
    h: slice
    g: slice
    i: slice

    def index(self, name: str, x: Tensor) -> tuple[slice, ...]:
        """Where it lies in a tensor, of whose axes those of 1 are for all."""
        axes = zip(_AXES[name], x.shape, strict=False)
        return tuple(slice(None) if size == 1 else getattr(self, axis) for axis, size in axes)

    def of(self, tensors: Named) -> dict[str, Tensor]:
        """Its share of each."""
        return {name: x[self.index(name, x)] for name, x in tensors.items()}


def derivatives_of_gradients(
    compute: Callable[[Named], Named], inputs: Named, flow: Named, d_gradients: Named
) -> dict[str, Tensor]:
    """The derivatives of the sum of all `d_gradients * gradients`, but for those that are 0.

    Args:
        compute: results by name, of inputs.
        inputs: that it is given.
        flow: gradients of results, by the results' names.
        d_gradients: by the names of inputs; those of the inputs' gradients.
    """
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        inputs, flow = ({name: _node(x, again) for name, x in of.items()} for of in (inputs, flow))
        results = compute(inputs)
        gradients = _gradients(_sum_of_products(results, flow), inputs, create_graph=True)
        every = inputs | {f"d_{name}": x for name, x in flow.items()}
        return _gradients(_sum_of_products(gradients, d_gradients), every, create_graph=again)


def _sum_of_products(named: Named, factors: Named) -> Tensor:
    """`()`: of all numbers that have a factor."""
    both = [(named[name], factor) for name, factor in factors.items() if name in named]
    products = [(x * factor.to(x.dtype)).sum() for x, factor in both]
    return torch.stack(products).sum() if products else torch.zeros(())


def _gradients(total: Tensor, inputs: Named, *, create_graph: bool) -> dict[str, Tensor]:
    """The gradients of a number by the inputs that it depends on."""
    if not (total.requires_grad and inputs):
        return {}
    found = torch.autograd.grad(
        total, [*inputs.values()], create_graph=create_graph, allow_unused=True
    )
    return {name: x for name, x in zip(inputs, found, strict=True) if x is not None}


def register_second_derivatives(op: OpSchema, backward: Any) -> None:
    """Tell torch the derivatives of an operator's backward pass.

    Args:
        op: what torch was told of the operators.
        backward: that of the backward pass, as torch has it.
    """

    def keep(ctx: Any, inputs: Sequence[Any], output: object) -> None:
        ctx.is_tensor = [isinstance(x, Tensor) for x in inputs]
        ctx.save_for_backward(*[x for x in inputs if isinstance(x, Tensor)])
        ctx.others = [x for x in inputs if not isinstance(x, Tensor)]
        ctx.set_materialize_grads(False)

    def differentiate(ctx: Any, d_gradients: Sequence[Tensor | None]) -> tuple[Any, ...]:
        check_not_batched(op.backend, *d_gradients)
        tensors, others = iter(ctx.saved_tensors), iter(ctx.others)
        values = [next(tensors if is_tensor else others) for is_tensor in ctx.is_tensor]
        flow, arguments, wanted = op.unpacked(values)
        named = zip(op.learnable, d_gradients, strict=True)
        names = op.names_of_backward
        # Torch tells it of those arguments that were not left out.
        needed = [name for name, need in zip(names, ctx.needs_input_grad, strict=False) if need]
        with without_autocast(arguments.q):
            found = _derivatives(
                op.backend,
                arguments,
                flow={
                    name: x
                    for name in ("output", "lse", "axis_weights")
                    if (x := getattr(flow, f"d_{name}")) is not None
                },
                d_gradients={n: x for n, x in named if n in wanted and x is not None},
                needed=frozenset(needed),
            )
        # The results that forward saved are functions of the arguments: no more comes by them.
        # An empty list, which might have been one of tensors, has one for its gradients.
        return tuple(
            [] if isinstance(value, list) and not value else found.get(name)
            for name, value, _ in zip(names, values, ctx.needs_input_grad, strict=False)
        )

    torch.library.register_autograd(backward, differentiate, setup_context=keep)


def _derivatives(
    backend: str, arguments: Arguments, flow: Named, d_gradients: Named, needed: frozenset[str]
) -> dict[str, Tensor]:
    """As `derivatives_of_gradients` of a call, in the dtypes of what they are for."""
    if arguments.dropout:
        raise BackendError(
            f"attention: {backend}: dropout must be 0 for second derivatives, "
            f"got {arguments.dropout}; backend='reference' has them with dropout too"
        )
    wide = arguments.wide
    tensors = {name: x for name in _AXES if (x := getattr(arguments, name, None)) is not None}
    learned = {n: x for n, x in tensors.items() if n in needed or n in d_gradients}
    every = learned | {f"d_{name}": x for name, x in flow.items()}
    found = {n: torch.zeros_like(x, dtype=wide) for n, x in every.items() if n in needed}
    for part in _parts(arguments):
        of_call = {
            name: x.to(wide) if x.is_floating_point() else x for name, x in part.of(tensors).items()
        }
        call = replace(arguments, **of_call, query_start=arguments.query_start + part.i.start)
        of_part = derivatives_of_gradients(
            lambda inputs, call=call: _results(replace(call, **inputs)),
            {name: of_call[name] for name in learned},
            {n: x[part.index(f"d_{n}", x)].to(wide) for n, x in flow.items()},
            part.of(d_gradients),
        )
        for name, x in of_part.items():
            if name in found:
                found[name][part.index(name, every[name])] += x
    return {name: x.to(every[name].dtype) for name, x in found.items()}


def _parts(arguments: Arguments) -> Iterator[_Part]:
    (batch, heads, queries, _), (_, groups, keys, _) = arguments.q.shape, arguments.k.shape
    if not arguments.q.numel():
        return
    of_group = heads // groups
    rows = queries if arguments.key_grid else _at_most(queries, keys)
    some_heads = _at_most(heads, rows * keys)
    # Of one group, or all of several.
    if some_heads < of_group:
        some_heads = next(n for n in range(some_heads, 0, -1) if of_group % n == 0)
    else:
        some_heads -= some_heads % of_group
    entries = _at_most(batch, some_heads * rows * keys)
    for b, h, i in product(
        range(0, batch, entries), range(0, heads, some_heads), range(0, queries, rows)
    ):
        end = min(h + some_heads, heads)
        yield _Part(
            slice(b, min(b + entries, batch)), slice(h, end),
            slice(h // of_group, -(-end // of_group)), slice(i, min(i + rows, queries)),
        )  # fmt: skip


def _at_most(count: int, scores: int) -> int:
    """How many of `count`, at least one, of that many scores each."""
    return max(1, min(count, _MOST_SCORES // max(scores, 1)))


def _results(call: Arguments) -> dict[str, Tensor]:
    """The results of a forward pass, by name, in the dtype of the computation."""
    terms: Any = None if call.key_grid else call.terms
    if call.key_grid:
        joint_bias = call.joint_bias
        if joint_bias is not None:
            joint_bias = joint_bias.unflatten(1, [2 * size - 1 for size in call.key_grid])
        terms = GridTerms(
            tuple(call.key_grid), joint_bias=joint_bias, query_shape=tuple(call.query_grid),
            prefix=call.prefix,
        )  # fmt: skip
    inputs = Inputs(
        q=call.q, k=call.k, v=call.v, terms=terms, causal=call.causal, mask=call.mask,
        dropout=0.0, scale=call.scale, query_start=call.query_start, documents=call.documents,
        query_documents=call.query_documents, key_ranges=call.key_ranges,
        axis_ranges=call.axis_ranges, window=call.windows, softcap=call.softcap or None,
        return_lse=True,
    )  # fmt: skip
    if not call.key_grid:
        weights, lse = reference.attention_weights(inputs)
        return {"output": reference.weighted_values(inputs, weights), "lse": lse}
    weights, lse = reference.attention_weights(inputs, pair_logits(call))
    output, sums = reference.weighted_values(inputs, weights), coordinate_sums(weights, call)
    of_tables = pair_values(sums, call)
    return {
        "output": output if of_tables is None else output + of_tables,
        "lse": lse,
        "axis_weights": sums,
    }


def _node(x: Tensor, again: bool) -> Tensor:
    """What derivatives are taken by: `x` itself where they are to be differentiated again."""
    if again and x.requires_grad:
        return x.view_as(x)
    return x.detach().requires_grad_()
