"""What a backend computes of a case: output, log-sum-exp and the gradients of all inputs."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor


class HasResults(ABC):
    """A case that can be run: from tensors by name to output and log-sum-exp."""

    @abstractmethod
    def run(self, named: dict[str, Tensor], backend: str, **changes) -> tuple[Tensor, Tensor]:
        """Output and log-sum-exp of a backend."""

    def gradients(
        self, named: dict[str, Tensor], backend: str, only: str | None = None, **changes
    ) -> dict[str, Tensor]:
        """Gradients of a fixed scalar of output and log-sum-exp, by name."""
        results = self.results(named, backend, only, **changes)
        return {name: x for name, x in results.items() if name not in ("output", "lse")}

    def results(
        self,
        named: dict[str, Tensor],
        backend: str,
        only: str | None = None,
        *,
        of_lse: bool = True,
        **changes,
    ) -> dict[str, Tensor]:
        """Output, log-sum-exp and those gradients, from one run forward and backward.

        Args:
            named: tensors by name.
            backend: its name.
            only: the name of the one input that takes a gradient; None: all.
            of_lse: whether the log-sum-exp is in the scalar.
            changes: of the arguments.
        """
        wanted = [
            name for name, x in named.items() if x.is_floating_point() and only in (None, name)
        ]
        leaves = {
            name: tensor.detach().clone().requires_grad_(name in wanted)
            for name, tensor in named.items()
        }
        output, lse = self.run(leaves, backend, **changes)
        finite = lse.masked_fill(lse == -torch.inf, 0)
        parts = (output, finite) if of_lse else (output,)
        total = sum((ramp(part) * part).sum() for part in parts)
        grads = torch.autograd.grad(total, [leaves[name] for name in wanted])  # type: ignore[arg-type]
        found = {"output": output.detach(), "lse": lse.detach()}
        return found | dict(zip(wanted, grads, strict=True))

    def second_derivatives(
        self, named: dict[str, Tensor], backend: str, **changes
    ) -> dict[str, Tensor]:
        """Of a fixed scalar of all gradients, by the inputs and by what flowed in, by name."""
        leaves = {
            name: tensor.detach().clone().requires_grad_(tensor.is_floating_point())
            for name, tensor in named.items()
        }
        output, lse = self.run(leaves, backend, **changes)
        finite = lse.masked_fill(lse == -torch.inf, 0)
        flow = {
            name: ramp(part).requires_grad_()
            for name, part in (("d_output", output), ("d_lse", finite))
        }
        total = (flow["d_output"] * output).sum() + (flow["d_lse"] * finite).sum()
        learned = {name: x for name, x in leaves.items() if x.requires_grad}
        gradients = torch.autograd.grad(total, [*learned.values()], create_graph=True)
        total = sum((ramp(x) * x).sum() for x in gradients)
        every = learned | flow
        found = torch.autograd.grad(total, [*every.values()])  # type: ignore[arg-type]
        return dict(zip(every, found, strict=True))


def ramp(like: Tensor) -> Tensor:
    return torch.linspace(-1, 1, like.numel(), dtype=like.dtype).view(like.shape)
