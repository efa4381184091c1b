"""One plumbing for every backend that torch sees as one operator.

From the declared `Arguments` follow an operator's schemas, the shapes that tracing wants, and what
autograd keeps, asks for and gets. A backend adds the two computations, by named arguments.

Where neither tracing nor a dispatch mode looks at operators, torch's own way to an operator's
derivative, written in Python for any operator, is left out: it takes longer than a short call. A
computation written in Python is then called without an operator, a compiled one by operators of its
own, without a derivative. A profiler shows `_Attention`, where a gradient is wanted, and what runs
in it. So in the graphs that `torch.compile` makes (`compiled_graph.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor

from ..autocast import without_autocast
from .allocated import check_memory
from .arguments import Arguments, Flow, arguments_of
from .compiled_graph import call_kernel_in_compiled_graphs
from .inputs import Inputs
from .op_schema import OpSchema
from .second_derivatives import register_second_derivatives
from .torch_dispatcher import may_pass_by_dispatcher
from .transforms import check_not_batched

__all__ = ["CustomOp"]

# What the names of operators without a derivative end with, and that of one for no backward pass.
_KERNEL, _ALONE = "_kernel", "_alone"

Forward = Callable[[Arguments], Sequence[Tensor]]
Backward = Callable[[Arguments, Flow, frozenset[str]], dict[str, Tensor]]


class CustomOp(OpSchema):
    """Operators that torch differentiates, and calls as fast as it can.

    Args:
        backend: as in `OpSchema`.
        results: as there.
        saved: as there.
        without: as there.
        seed_on: the device that draws a dropout's seed; None: that of q.
        compiled: whether the operators come with a compiled kernel, and each of them once more
            without a derivative, its name ending with `_kernel`; and that of the forward pass also
            without what only a backward pass reads, ending with `_alone`.
    """

    def __init__(
        self,
        backend: str,
        *,
        results: tuple[str, ...],
        saved: tuple[str, ...] = (),
        without: tuple[str, ...] = (),
        seed_on: str | None = "cpu",
        compiled: bool = False,
    ) -> None:
        super().__init__(backend, results=results, saved=saved, without=without)
        self.seed_on, self.compiled = seed_on, compiled
        self._tables = [name for name in self.learnable if name not in ("q", "k", "v")]
        self._positions = [self.names.index(name) for name in self.learnable]
        self._flow_back = {name for name in results if f"d_{name}" in self.flow}
        # The computations alone: of the arguments, named and as the operator's; as the operator's.
        self._compute_forward: Callable[[Arguments | None, Sequence[Any]], tuple[Tensor, ...]]
        self._compute_forward_alone: Callable[[Arguments | None, Sequence[Any]], tuple[Tensor, ...]]
        self._compute_backward: Callable[..., list[Tensor | None]]

    def __call__(self, inputs: Inputs, **of_backend: Any) -> dict[str, Tensor]:
        """The results by name.

        Args:
            inputs: the call.
            of_backend: as in `arguments_of`.
        """
        arguments = arguments_of(inputs, **of_backend)
        if inputs.dropout and arguments.seed is None:
            arguments.seed = self.draw_seed(inputs.q)
        values = self.values(arguments)
        if may_pass_by_dispatcher(self._tensors(values)):
            results = self.run(arguments, values)
        else:
            results = self._forward(*values)
        return dict(zip(self.results, results, strict=True))

    def run(self, arguments: Arguments | None, values: list[Any]) -> tuple[Tensor, ...]:
        """The results in order, past torch's dispatcher.

        Args:
            arguments: of a call; None will do where the operators are compiled.
            values: the same in the operators' order.
        """
        if torch.is_grad_enabled():
            tensors = self._tensors(values)
            if any(x.requires_grad for x in tensors):
                return _Attention.apply(self, arguments, values, *tensors)  # type: ignore[no-any-return]
        return self._compute_forward_alone(arguments, values)

    def _tensors(self, values: Sequence[Any]) -> list[Tensor]:
        """The tensors among the values, those that there are."""
        return [x for x in values[: self.num_tensors] if x is not None]

    def draw_seed(self, q: Tensor) -> Tensor:
        """One of a dropout, from torch's own generators; on the CPU nobody waits for a device."""
        return torch.randint(1 << 62, (), device=self.seed_on or q.device)

    def compute_forward(self, arguments: Arguments) -> dict[str, Tensor]:
        """The results by name, without a derivative."""
        results = self._compute_forward(arguments, self.values(arguments))
        return dict(zip(self.results, results, strict=True))

    def compute_backward(
        self,
        arguments: Arguments,
        d_output: Tensor,
        d_lse: Tensor | None,
        saved: dict[str, Tensor],
        wanted: frozenset[str],
    ) -> dict[str, Tensor]:
        """The gradients by name.

        Args:
            arguments: as forward had them.
            d_output: as in `Flow`.
            d_lse: as in `Flow`.
            saved: by name, what backward is given of the results.
            wanted: names of learnable arguments.
        """
        flow = {"d_output": d_output, "d_lse": d_lse, "d_axis_weights": None} | saved
        needs = [int(name in wanted) for name in self.learnable]
        results = self._compute_backward(
            *(flow[name] for name in self.flow), needs, *self.values(arguments)
        )
        found = zip(self.learnable, results, strict=True)
        return {name: x for name, x in found if name in wanted and x is not None}

    def define(
        self, forward: Forward, backward: Backward, *, forward_alone: Forward | None = None
    ) -> None:
        """Define both operators by Python functions.

        Args:
            forward: the results.
            backward: gradients by name, of those arguments whose names it is given.
            forward_alone: the results without what only a backward pass reads; None: as `forward`.
        """

        def compute_by(run: Forward) -> Callable[..., tuple[Tensor, ...]]:
            def compute(arguments: Arguments | None, _: Sequence[Any]) -> tuple[Tensor, ...]:
                assert arguments is not None
                check_memory(self.backend, (getattr(arguments, name) for name in self._tables))
                return tuple(run(arguments))

            return compute

        compute_forward = compute_by(forward)

        def run_forward(*values: Any) -> tuple[Tensor, ...]:
            return compute_forward(self.named(values), values)

        def compute_backward(*values: Any) -> list[Tensor | None]:
            flow, arguments, wanted = self.unpacked(values)
            with without_autocast(flow.d_output):
                found = backward(arguments, flow, wanted)
            gradients = dict.fromkeys(self.learnable)
            for name in wanted:
                x, dtype = found[name], self.gradient_dtype(arguments, name)
                gradients[name] = x if x.dtype == dtype else x.to(dtype)
            return list(gradients.values())

        def run_backward(*values: Any) -> list[Tensor]:
            empty = values[0].new_empty
            return [empty(0) if x is None else x for x in compute_backward(*values)]

        for direction, run in (("forward", run_forward), ("backward", run_backward)):
            name, _, schema = self.schema(direction).partition("(")
            torch.library.custom_op(name, run, mutates_args=(), schema=f"({schema}")
        self._register()
        self._compute_forward, self._compute_backward = compute_forward, compute_backward
        self._compute_forward_alone = compute_by(forward_alone or forward)

    def define_compiled(self) -> None:
        """Define what operators that are there lack."""
        forward, backward = self._operators(_KERNEL)

        def compute_forward(_: Arguments | None, values: Sequence[Any]) -> tuple[Tensor, ...]:
            return forward(*values)

        self._register()
        fakes = self.fake_forward, self.fake_backward
        kernels = forward, backward
        for operator, kernel, fake in zip(self._operators(), kernels, fakes, strict=True):
            torch.library.register_fake(kernel, fake)
            call_kernel_in_compiled_graphs(operator, kernel)
        self._compute_forward, self._compute_backward = compute_forward, backward
        alone = getattr(torch.ops.relpos, f"{self.backend}_forward{_ALONE}").default
        self._compute_forward_alone = lambda _, values: alone(*values)

    def _register(self) -> None:
        """Tell torch the shapes and the derivatives of operators that are there."""
        forward, backward = self._operators()
        self._forward, self._backward = forward, backward
        torch.library.register_fake(forward, self.fake_forward)
        torch.library.register_fake(backward, self.fake_backward)
        torch.library.register_autograd(
            forward, self._differentiate, setup_context=self._setup_context
        )
        register_second_derivatives(self, backward)

    def difference(self) -> str | None:
        """In what an operator that is there differs from this one; None: in nothing."""
        named = [*product(("forward", "backward"), self._suffixes())]
        for direction, suffix in [*named, ("forward", _ALONE)] if self.compiled else named:
            name = f"{self.backend}_{direction}{suffix}"
            wanted = self.schema(direction, suffix)
            operator = getattr(torch.ops.relpos, name, None)
            if operator is None:
                return f"no {name}"
            found = getattr(operator.default, "_schema", None)
            if found is not None and str(found) != wanted:
                return f"{found}, not {wanted}"
        return None

    def _suffixes(self) -> tuple[str, ...]:
        return ("", _KERNEL) if self.compiled else ("",)

    def _operators(self, suffix: str = "") -> tuple[Any, Any]:
        forward, backward = (
            getattr(torch.ops.relpos, f"{self.backend}_{direction}{suffix}").default
            for direction in ("forward", "backward")
        )
        return forward, backward

    def operators(self, direction: str) -> list[Any]:
        """The operators that torch has of a direction, with a derivative and without."""
        names = (f"{self.backend}_{direction}{suffix}" for suffix in self._suffixes())
        found = (getattr(torch.ops.relpos, name, None) for name in names)
        return [operator for operator in found if operator is not None]

    def _setup_context(self, ctx: Any, inputs: Sequence[Any], output: tuple[Tensor, ...]) -> None:
        results = dict(zip(self.results, output, strict=True))
        without = [results[name] for name in ("softmax", "rounded_off") if name in results]
        ctx.mark_non_differentiable(*without)
        tensors = inputs[: self.num_tensors]
        ctx.is_there = [x is not None for x in tensors]
        there = [x for x in tensors if x is not None]
        ctx.save_for_backward(*[results[name] for name in self.saved], *there)
        ctx.settings = inputs[self.num_tensors :]
        # Results that were not asked for have a single axis, without entries.
        ctx.asked = [result.ndim > 1 for result in output]
        ctx.set_materialize_grads(False)

    def _differentiate(
        self,
        ctx: Any,
        *gradients: Tensor | None,
        needs: Sequence[bool] | None = None,
        backward: Callable[..., list[Any]] | None = None,
    ) -> tuple[Tensor | None, ...]:
        check_not_batched(self.backend, *gradients)
        kept = ctx.saved_tensors  # asked for once: checkpointing computes them again
        saved, there = kept[: len(self.saved)], iter(kept[len(self.saved) :])
        tensors: list[Any] = [next(there) if is_there else None for is_there in ctx.is_there]
        flow: list[Tensor | None] = [
            gradient if asked else None
            for name, gradient, asked in zip(self.results, gradients, ctx.asked, strict=True)
            if name in self._flow_back
        ]
        if flow[0] is None:
            call = self.named((*tensors, *ctx.settings))
            shape = (*call.q.shape[:3], call.v.shape[3])
            flow[0] = call.q.new_zeros((), dtype=self.output_dtype(call)).expand(shape)
        # Torch tells it of those arguments that were not left out.
        all_needs: Sequence[bool] = ctx.needs_input_grad if needs is None else needs
        count = len(all_needs)
        wanted = [int(position < count and all_needs[position]) for position in self._positions]
        results = (backward or self._backward)(*flow, *saved, wanted, *tensors, *ctx.settings)
        found: list[Tensor | None] = [None] * len(self.names)
        for position, result, want in zip(self._positions, results, wanted, strict=True):
            if want:
                dtype = tensors[position].dtype
                found[position] = result if result.dtype == dtype else result.to(dtype)
        return tuple(found)


class _Attention(torch.autograd.Function):
    """The computations of a `CustomOp` without torch's own way to an operator's derivative.

    Torch is given the tensors that there are, after the operator, its arguments, and these as
    values in its order, None for tensors that there are not.
    """

    @staticmethod
    def forward(
        ctx: Any, op: CustomOp, arguments: Arguments | None, values: list[Any], *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        results = op._compute_forward(arguments, values)
        op._setup_context(ctx, values, results)
        ctx.op = op
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        op = ctx.op
        passes_by = may_pass_by_dispatcher([x for x in gradients if x is not None])
        # Else by the operator, which can be differentiated again.
        backward = op._compute_backward if passes_by and not torch.is_grad_enabled() else None
        needs_of_tensors = iter(ctx.needs_input_grad[3:])
        needs = [is_there and next(needs_of_tensors) for is_there in ctx.is_there]
        found = op._differentiate(ctx, *gradients, needs=needs, backward=backward)
        there = (x for x, is_there in zip(found, ctx.is_there, strict=False) if is_there)
        return (None, None, None, *there)
