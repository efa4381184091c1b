"""fairseq2's modules of attention: which masks they take, and which they hand on."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.testing import assert_close

from relpos.adapters import adapt
from tests.apart import import_apart

from .largest_tensor import LargestTensor
from .models.case import draw
from .models.fairseq2_models import HEADS, WIDTH, of_transformer, relative, shaw

pytestmark = pytest.mark.no_typecheck

SHAW = {"max_lhs_rel_pos": 5, "max_rhs_rel_pos": 3, "use_rel_pos_values": True}
BIASES: dict[str, Any] = {
    "none": lambda of: of.IdentityBias(),
    "causal": lambda of: of.CausalAttentionBias(),
    "window": lambda of: of.CausalAttentionBias(attn_window_len=4),
    "chunks": lambda of: of.ChunkedAttentionBias(4),
    "alibi": lambda of: of.ALiBiAttentionBias(HEADS),
}


@pytest.fixture(autouse=True)
def _softmax_of_float64(monkeypatch):
    def softmax(x, dim, dtype):
        return functional.softmax(x, dim)

    monkeypatch.setattr(of_transformer("sdpa.naive"), "softmax", softmax)


def pair(kind: str, bias: str) -> tuple[Any, Any]:
    """The original and an adapted copy, in float64."""
    torch.manual_seed(0)
    made = BIASES[bias](of_transformer("attention_bias"))
    original = shaw(made, **SHAW) if kind == "shaw" else relative(made)
    draw(original)
    original = original.double().eval()
    adapted = deepcopy(original)
    assert adapt(adapted, strict=True).adapted
    return original, adapted


def layout(x: torch.Tensor, lengths: list[int] | None = None, **settings: Any) -> Any:
    return import_apart("fairseq2.nn").BatchLayout.of(x, lengths, **settings)


def heads(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, HEADS, WIDTH // HEADS, dtype=torch.float64)


def called(module: Any, q: torch.Tensor, k: torch.Tensor, q_layout: Any, k_layout: Any) -> Any:
    cache = of_transformer("attention_bias").AttentionBiasCache()
    return module(q, q_layout, k, k_layout, k, cache, needs_weights=True)


@pytest.mark.parametrize(
    ("bias", "lengths"),
    # With ALiBi and padding the originals fail.
    [(bias, lengths) for bias in BIASES for lengths in (None, [21, 21], [21, 8])
     if bias != "alibi" or lengths != [21, 8]],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["shaw", "relative"])
def test_outputs_and_weights_are_the_original_s(kind: str, bias: str, lengths: list[int] | None):
    original, adapted = pair(kind, bias)
    q, k = heads(2, 21), heads(2, 21)
    both = layout(q, lengths)
    found = [called(module, q, k, both, both) for module in (adapted, original)]
    real = torch.arange(21) < torch.tensor(lengths or [21, 21])[:, None]
    (output, weights), (expected, theirs) = found
    assert_close(output[real], expected[real])
    assert_close(weights.transpose(1, 2)[real], theirs.transpose(1, 2)[real])


@pytest.mark.parametrize("bias", ["none", "causal", "window", "alibi"])
@pytest.mark.parametrize("queries", [1, 7])
def test_queries_may_be_the_last_ones(queries: int, bias: str):
    q, k = heads(2, queries), heads(2, 21)
    found = [called(module, q, k, layout(q), layout(k)) for module in pair("shaw", bias)]
    assert_close(*found)


def test_padding_of_other_keys_runs_as_before():
    q, k = heads(2, 5), heads(2, 21)
    found = [called(module, q, k, layout(q), layout(k, [21, 9])) for module in pair("shaw", "none")]
    assert_close(*found)


@pytest.mark.parametrize("kind", ["shaw", "relative"])
def test_packed_batches_are_refused_as_before(kind: str):
    q = heads(21)
    both = layout(q, [12, 9], packed=True)
    for module in pair(kind, "none"):
        with pytest.raises(import_apart("fairseq2.error").NotSupportedError):
            called(module, q, q, both, both)


def test_there_are_no_rows_of_all_pairs():
    original, adapted = pair("shaw", "causal")
    q = heads(1, 300)
    entries = []
    for module in (original, adapted):
        with LargestTensor() as largest:
            cache = of_transformer("attention_bias").AttentionBiasCache()
            module(q, layout(q), q, layout(q), q, cache)
        entries.append(largest.entries)
    assert entries[0] >= 300 * 300 * WIDTH // HEADS
    assert entries[1] < 300 * 300 // 2


def test_a_window_is_that_of_an_encoder_alone():
    model = torch.nn.ModuleList(pair("shaw", "none")[0:1] + pair("shaw", "causal")[0:1])
    (_, first), (_, second) = adapt(model, window=(3, 3)).adapted
    assert first.endswith("window (3, 3)")
    assert second.endswith("no window")
