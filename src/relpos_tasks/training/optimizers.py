"""What moves the weights: AdamW, or Muon for weight matrices and AdamW for the rest.

Muon makes the steps of a matrix orthogonal; Jordan et al. 2024, "Muon: An optimizer for hidden
layers in neural networks", and Liu et al. 2025, "Muon is Scalable for LLM Training", whose scale
of steps is taken here: that of AdamW's. Both leave the matrix before the logits to AdamW; here
Muon moves it too, unless it is that of the embeddings. Queries, keys and values of a layer, which
are one matrix here, are made orthogonal together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from relpos.layers import MultiheadAttention

from .settings import TrainingSettings

__all__ = ["MuonAndAdamW", "optimizer_of"]

_BETAS = (0.9, 0.98)


class MuonAndAdamW(torch.optim.Optimizer):
    """Muon and AdamW as one optimiser, for a trainer that knows one.

    Its first group is Muon's, those after it AdamW's.

    Args:
        matrices: of two dimensions each, Muon's.
        groups: AdamW's, as it takes them.
        muon_learning_rate: of the matrices.
        learning_rate: of the groups.
        weight_decay: of the matrices, and of groups that do not say otherwise.
    """

    def __init__(
        self,
        matrices: Sequence[nn.Parameter],
        groups: Sequence[dict[str, Any]],
        *,
        muon_learning_rate: float,
        learning_rate: float,
        weight_decay: float,
    ) -> None:
        self._muon = torch.optim.Muon(
            matrices,
            lr=muon_learning_rate,
            weight_decay=weight_decay,
            adjust_lr_fn="match_rms_adamw",
        )
        self._adamw = torch.optim.AdamW(
            groups, lr=learning_rate, weight_decay=weight_decay, betas=_BETAS
        )
        super().__init__([*self._muon.param_groups, *self._adamw.param_groups], {})
        self._share()

    def step(self, closure: Any = None) -> Any:
        """Compute gradients with the closure, if there is one, and take a step with both.

        Args:
            closure: computes the loss, and the gradients.

        Returns:
            The closure's loss; None without one.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._muon.step()
        self._adamw.step()
        return loss

    def __getstate__(self) -> dict[str, Any]:
        """What a copy or a pickle holds: both optimisers too."""
        return super().__getstate__() | {"_muon": self._muon, "_adamw": self._adamw}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take what a checkpoint holds; `load_state_dict` ends here."""
        super().__setstate__(state)
        self._share()

    def _share(self) -> None:
        """Let both work on this optimiser's groups and state."""
        self._muon.param_groups = self.param_groups[:1]
        self._adamw.param_groups = self.param_groups[1:]
        self._muon.state = self._adamw.state = self.state


def optimizer_of(model: nn.Module, settings: TrainingSettings) -> torch.optim.Optimizer:
    """The optimiser of a training, its learning rates those after the warm-up.

    Args:
        model: to be trained.
        settings: how to train it.
    """
    decayed = _matrices(model)
    spared = [p for p in model.parameters() if not _is_in(p, decayed)]
    rest = {"params": spared, "weight_decay": 0.0}
    if settings.muon_learning_rate is None:
        return torch.optim.AdamW(
            [{"params": decayed}, rest],
            lr=settings.learning_rate,
            weight_decay=settings.weight_decay,
            betas=_BETAS,
        )
    matrices = [p for p in decayed if p.ndim == 2]
    convolutions = [p for p in decayed if p.ndim != 2]
    return MuonAndAdamW(
        matrices,
        [{"params": convolutions}, rest],
        muon_learning_rate=settings.muon_learning_rate,
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
    )


def _matrices(model: nn.Module) -> list[nn.Parameter]:
    """What weight decay is for: the weights of linear maps and convolutions.

    Neither biases, norms and embeddings nor what a position scheme adds to scores or inputs, so
    that schemes are compared under the same decay; a scheme's own projections decay.
    """
    weights, embeddings = [], []
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            embeddings.append(module.weight)
        elif isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)):
            weights.append(module.weight)
        elif isinstance(module, MultiheadAttention):
            own = module.named_parameters(recurse=False)
            weights += [parameter for name, parameter in own if name.endswith("weight")]
    # The matrix before the logits may be that of the embeddings.
    return [p for p in model.parameters() if _is_in(p, weights) and not _is_in(p, embeddings)]


def _is_in(parameter: nn.Parameter, parameters: Sequence[nn.Parameter]) -> bool:
    """Whether it is one of them; `in` would compare their numbers."""
    return any(parameter is other for other in parameters)
