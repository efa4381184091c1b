"""What torch is told of a backend's operators: arguments, results, and their shapes.

All follows from the declared `Arguments`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .arguments import DECLARED, Arguments, Flow, schema_argument, schema_type
from .result_layout import empty_as, empty_gradient

__all__ = ["OpSchema"]


class OpSchema:
    """The operators `relpos::{backend}_forward` and `relpos::{backend}_backward`.

    The forward pass returns some of

        output          (b, h, i, dv), in the dtype of q or, with axis weights, in 32 bits at least
        lse             (b, h, i) in 32 bits at least; empty where it is not asked for
        softmax         (2, b, h, i) in float32: of each row what backward needs; has no derivative
        axis_weights    (b, h, i, sum of key_grid), as lse; empty unless needed
        rounded_off     as output, what rounding took off it in 16 bits, in float16 times 2048, so
                        that backward has nearly twice the digits; empty in 32; has no derivative

    and the backward pass a gradient for each learnable argument, empty where none is needed.

    Args:
        backend: its name.
        results: of the forward pass.
        saved: those of them that backward is given.
        without: the arguments that the backend is not told.
    """

    def __init__(
        self,
        backend: str,
        *,
        results: tuple[str, ...],
        saved: tuple[str, ...] = (),
        without: tuple[str, ...] = (),
    ) -> None:
        self.backend, self.results, self.saved = backend, results, saved
        self.names = tuple(name for name in DECLARED if name not in without)
        self.learnable = tuple(name for name in self.names if "gradient" in DECLARED[name].metadata)
        self.num_tensors = sum(schema_type(name).startswith("Tensor") for name in self.names)
        flows = ("d_output", "d_lse", *(["d_axis_weights"] if "axis_weights" in results else []))
        self.flow = (*flows, *saved)
        # What flows into backward comes in the order of the results.
        assert flows == tuple(f"d_{name}" for name in results if f"d_{name}" in flows)
        self.names_of_backward = (*self.flow, "needs", *self.names)
        self._wide = {
            name for name in self.learnable if DECLARED[name].metadata["gradient"] == "wide"
        }
        self._defaults = tuple(DECLARED[name].default for name in self.names)
        self._lists = [name for name in self.names if DECLARED[name].default == ()]

    def schema(self, direction: str, suffix: str = "") -> str:
        """The schema of the operator `"forward"` or `"backward"`, as torch words it.

        >>> op = OpSchema("some", results=("output", "lse"), without=(*DECLARED,)[1:])
        >>> op.schema("forward")
        'relpos::some_forward(Tensor q) -> (Tensor, Tensor)'
        >>> op.schema("backward")
        'relpos::some_backward(Tensor d_output, Tensor? d_lse, int[] needs, Tensor q) -> Tensor[]'
        """
        arguments = [schema_argument(name) for name in self.names]
        returns = f"({', '.join(['Tensor'] * len(self.results))})"
        if direction == "backward":
            optional = {name for name in self.flow[1:] if name.startswith("d_")}
            flow = [f"Tensor{'?' * (name in optional)} {name}" for name in self.flow]
            arguments, returns = [*flow, "int[] needs", *arguments], "Tensor[]"
        return f"relpos::{self.backend}_{direction}{suffix}({', '.join(arguments)}) -> {returns}"

    def values(self, arguments: Arguments) -> list[Any]:
        """A call's arguments in the operators' order, up to the last that is set.

        Torch adds defaults faster than it converts them from Python.
        """
        values = [getattr(arguments, name) for name in self.names]
        # Not by `==`: a trace in which a size is compared is for that size alone.
        while values[-1] is self._defaults[len(values) - 1]:
            values.pop()
        return values

    def named(self, values: Sequence[Any]) -> Arguments:
        """What an operator of a forward pass is given, by name.

        Values at the end may be left out, and lists be None where they are empty.
        """
        named = dict(zip(self.names, values, strict=False))
        for name in self._lists:
            if named.get(name, ()) is None:
                named[name] = ()
        return Arguments(**named)

    def unpacked(self, values: Sequence[Any]) -> tuple[Flow, Arguments, frozenset[str]]:
        """What an operator of a backward pass is given; last the names of what learns by it."""
        count = len(self.flow)
        *flows, needs = values[: count + 1]
        d_output, d_lse, *d_axis_weights = flows[: count - len(self.saved)]
        flow = Flow(
            d_output=d_output, d_lse=d_lse, saved=tuple(flows[count - len(self.saved) :]),
            d_axis_weights=d_axis_weights[0] if d_axis_weights else None,
        )  # fmt: skip
        wanted = {name for name, need in zip(self.learnable, needs, strict=True) if need}
        return flow, self.named(values[count + 1 :]), frozenset(wanted)

    def output_dtype(self, arguments: Arguments) -> torch.dtype:
        """The dtype of the forward pass's output."""
        return arguments.wide if arguments.need_axis_weights else arguments.q.dtype

    def gradient_dtype(self, arguments: Arguments, name: str) -> torch.dtype:
        """The dtype of an argument's gradient, as the backward pass returns it."""
        return arguments.wide if name in self._wide else arguments.q.dtype

    def fake_forward(self, *values: Any) -> tuple[Tensor, ...]:
        """Results of a forward pass without their numbers."""
        call = self.named(values)
        rows = call.q.shape[:3]
        need_lse = call.return_lse or "return_lse" not in self.names
        columns = (*rows, sum(call.key_grid)) if call.need_axis_weights else (0,)
        of_values = (*rows, call.v.shape[3])
        is_rounded = self.output_dtype(call) != call.wide
        results = {
            "output": (of_values, self.output_dtype(call)),
            "rounded_off": (of_values if is_rounded else (0,), call.q.dtype),
            "lse": (rows if need_lse else (0,), call.wide),
            "softmax": ((2, *rows), torch.float32),
            "axis_weights": (columns, call.wide),
        }
        return tuple(
            empty_as(call.q, *results[name])
            if results[name][0] is of_values
            else call.q.new_empty(results[name][0], dtype=results[name][1])
            for name in self.results
        )

    def fake_backward(self, *values: Any) -> list[Tensor]:
        """Gradients without their numbers."""
        flow, call, wanted = self.unpacked(values)
        return [
            empty_gradient(name, getattr(call, name), self.gradient_dtype(call, name))
            if name in wanted
            else flow.d_output.new_empty(0)
            for name in self.learnable
        ]
