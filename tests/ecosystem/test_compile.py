"""`torch.compile` makes one graph of every scheme and layer, which serves all lengths."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.testing import assert_close

from relpos.layers import KeyValueCache, MultiheadAttention
from relpos.positions import Rotary, Shaw, T5Bias
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
@pytest.mark.costly(3)
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


@pytest.mark.parametrize("window", [None, (6, 0)], ids=["all keys", "a window"])
@pytest.mark.parametrize(
    "position", [Shaw(8, 3), Rotary(8), T5Bias(2)], ids=lambda x: type(x).__name__
)
@pytest.mark.costly(4, of="compiled models")
def test_steps_of_decoding_with_a_cache_share_a_few_graphs(
    position: nn.Module, window: tuple[int, int] | None
):
    layer, x = (
        MultiheadAttention(16, 2, position=position, window=window).eval(),
        torch.randn(2, 40, 16),
    )
    graphs, cache = CompileCounterWithBackend("aot_eager"), KeyValueCache()
    compiled = torch.compile(layer, fullgraph=True, backend=graphs)
    with torch.inference_mode():
        want = layer(x, x, x, is_causal=True, need_weights=False)[0]
        prompt = x[:, :5]
        found = [layer(prompt, prompt, prompt, is_causal=True, need_weights=False, cache=cache)[0]]
        for token in x[:, 5:].split(1, 1):
            step = compiled(token, token, token, is_causal=True, need_weights=False, cache=cache)
            found.append(step[0])
    assert_close(torch.cat(found, 1), want)
    assert 0 < graphs.frame_count <= 8


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.costly(4, of="compiled models")
def test_inductor_computes_the_same_forward_and_backward():
    module = made("GatedBias")
    compiled = torch.compile(module, fullgraph=True, dynamic=True)
    for length in LENGTHS[:2]:
        given = inputs("GatedBias", length)
        assert_close(gradients(module, compiled, given), gradients(module, module, given))
