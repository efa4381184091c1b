"""`torch.compile` makes one graph of every scheme and layer, which serves all lengths."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from tests.ecosystem.schemes import IN_FLOAT64, LENGTHS, SUBJECTS, inputs, made

pytestmark = [
    pytest.mark.no_typecheck,
    # torch's own, as it traces its own code.
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
]

# One for each kind of term: the backward that these get from AOTAutograd is the others' too.
AHEAD_OF_TIME = {
    "Shaw", "TransformerXL", "Deberta", "Alibi", "GatedBias", "Grid", "WindowBias", "a window",
    "chunks",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _fresh_graphs() -> None:
    torch._dynamo.reset()


def gradients(module: nn.Module, run: nn.Module, given: tuple[Tensor, ...]) -> list[Tensor]:
    """Of the inputs and of the parameters that the output depends on; the output before them."""
    leaves = [x.clone().requires_grad_() for x in given]
    output = run(*leaves)
    wanted = [*leaves, *module.parameters()]
    found = torch.autograd.grad(output.square().sum(), wanted, allow_unused=True)
    return [output.detach(), *(x for x in found if x is not None)]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, torch.float32) for name in SUBJECTS] + [(n, torch.float64) for n in IN_FLOAT64],
)
def test_compiled_equals_eager_forward_and_backward_and_lengths_share_a_graph(
    name: str, dtype: torch.dtype
):
    module, known = made(name, dtype), LENGTHS[: SUBJECTS[name].graphs]
    backend = "aot_eager" if name in AHEAD_OF_TIME else "eager"
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend=backend)
    for length in LENGTHS:
        given = inputs(name, length, dtype)
        want = gradients(module, module, given)
        with torch.compiler.set_stance("default" if length in known else "fail_on_recompile"):
            assert_close(gradients(module, compiled, given), want)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_inductor_computes_the_same_forward_and_backward():
    module = made("GatedBias")
    compiled = torch.compile(module, fullgraph=True, dynamic=True)
    for length in LENGTHS[:2]:
        given = inputs("GatedBias", length)
        assert_close(gradients(module, compiled, given), gradients(module, module, given))
