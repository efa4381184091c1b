"""Arguments that are no dense tensor of the right kind: one line of ours for every function."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import relpos
from relpos import OffsetTable, ShapeError, Terms, adapters, layers, positions
from relpos.shear import absolute_to_relative

pytestmark = pytest.mark.no_typecheck

Q = torch.randn(1, 2, 6, 8)
X = torch.randn(1, 6, 16)
MAP = torch.randn(1, 16, 2, 3)
NUMBERS = torch.tensor([0, 6])


def _quietly(make: Callable[[], Tensor]) -> Tensor:
    """What torch warns of, a prototype or what will be gone, is not the test's affair."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make()


def _rows(x: Tensor) -> Tensor:
    """The same numbers with two axes."""
    return x.reshape(-1, x.shape[-1])


# Made from a dense tensor of the right shape.
NOT_DENSE: dict[str, Callable[[Tensor], object]] = {
    "a list": lambda x: x.tolist(),
    "None": lambda x: None,
    "a NumPy array": lambda x: x.numpy(),
    "sparse_coo": lambda x: x.to_sparse(),
    "sparse_csr": lambda x: _quietly(lambda: _rows(x).to_sparse_csr()),
    "mkldnn": lambda x: x.float().to_mkldnn(),
    "jagged": lambda x: torch.nested.nested_tensor([_rows(x)] * 2, layout=torch.jagged),
    "nested": lambda x: _quietly(lambda: torch.nested.nested_tensor([x, x])),
    "quantized": lambda x: _quietly(
        lambda: torch.quantize_per_tensor(x.float(), 0.1, 0, torch.qint8)
    ),
}
NOT_FLOATING = {
    "integers": lambda x: x.long(),
    "booleans": lambda x: x > 0,
    "complex": lambda x: x.to(torch.complex64),
    "float8": lambda x: x.to(torch.float8_e5m2),
}


@dataclass(frozen=True)
class Call:
    """A function with arguments that it takes; one at a time is replaced by another kind."""

    function: Callable[..., object]
    good: dict[str, object]
    replaced: tuple[str, ...]


def position(module: nn.Module, *more: str) -> Call:
    good = {"q": Q, "k": Q} | ({"x": X} if "x" in more else {})
    return Call(module, good, ("q", "k", *more))


def layer(module: nn.Module, good: Tensor) -> Call:
    return Call(module, {"x": good}, ("x",))


def table(rows: object) -> Terms:
    return Terms(keys=OffsetTable(rows, 0))  # type: ignore[arg-type]


def attend(*, rows: Tensor, **given) -> Tensor:
    return relpos.attention(**given, terms=table(rows))


MHA = {"query": X, "key": X, "value": X}
CALLS = {
    "attention": Call(relpos.attention, {"q": Q, "k": Q, "v": Q}, ("q", "k", "v")),
    "attention, terms": Call(attend, {"q": Q, "k": Q, "v": Q, "rows": Q[0, :1]}, ("rows",)),
    "attention_weights": Call(relpos.attention_weights, {"q": Q, "k": Q}, ("q", "k")),
    "relative_logits": Call(
        relpos.relative_logits, {"q": Q, "k": Q, "terms": table(Q[0, :1])}, ("q", "k")
    ),
    "global_local_attention": Call(
        lambda **given: relpos.global_local_attention(**given, window=(1, 1), global_tokens=1),
        {"q": Q, "k": Q, "v": Q}, ("q", "k", "v"),
    ),
    "merge, outputs": Call(lambda x: relpos.merge([Q, x], [Q[..., 0]] * 2), {"x": Q}, ("x",)),
    "merge, lses": Call(
        lambda x: relpos.merge([Q, Q], [Q[..., 0], x]), {"x": Q[..., 0]}, ("x",)
    ),
    "merge, stacked outputs": Call(
        lambda x: relpos.merge(x, [Q[..., 0]] * 2), {"x": torch.stack([Q, Q])}, ("x",)
    ),
    "merge, stacked lses": Call(
        lambda x: relpos.merge([Q, Q], x), {"x": torch.stack([Q[..., 0]] * 2)}, ("x",)
    ),
    "skew": Call(relpos.skew, {"x": X}, ("x",)),
    "relative_to_absolute": Call(relpos.relative_to_absolute, {"x": X}, ("x",)),
    "absolute_to_relative": Call(absolute_to_relative, {"y": X}, ("y",)),
    "resize_rows": Call(
        lambda rows: positions.resize_rows(rows, (5,)), {"rows": Q[0]}, ("rows",)
    ),
    "Shaw": position(positions.Shaw(8, 2)),
    "Huang": position(positions.Huang(8, 4)),
    "Bidirectional": position(positions.Bidirectional(8, 4)),
    "AbsoluteKeys": position(positions.AbsoluteKeys(8, 4)),
    "Alibi": position(positions.Alibi(2)),
    "Kerple": position(positions.Kerple(2)),
    "Sandwich": position(positions.Sandwich(2)),
    "NoPosition": position(positions.NoPosition()),
    "Rotary": position(positions.Rotary(8)),
    "XPos": position(positions.XPos(8)),
    "AxialRotary": position(positions.AxialRotary(8, (2, 3))),
    "ContinuousBias": position(positions.ContinuousBias(2, (2, 3))),
    "Compose": position(positions.Compose(positions.Shaw(8, 2), positions.Alibi(2))),
    "T5Bias": position(positions.T5Bias(2)),
    "TransformerXL": position(positions.TransformerXL(8, 2)),
    "Deberta": position(positions.Deberta(8, 2, 4)),
    "Grid": position(positions.Grid(8, (2, 3))),
    "WindowBias": position(positions.WindowBias(2, (2, 3))),
    "GatedBias": position(positions.GatedBias(positions.T5Bias(2), 2, 8), "x"),
    "RelativeLogits": position(positions.RelativeLogits(4, 3, 2, 16), "x"),
    "AbsPosEmb1D": position(adapters.AbsPosEmb1D(6, 8)),
    "RelPosEmb1D": position(adapters.RelPosEmb1D(6, 8)),
    "RelPosEmb2D": position(adapters.RelPosEmb2D((2, 3), 8)),
    "Sinusoidal": layer(positions.Sinusoidal(16), X),
    "LearnedAbsolute": layer(positions.LearnedAbsolute(16, 4), X),
    "MultiheadAttention": Call(
        layers.MultiheadAttention(16, 2), MHA, tuple(MHA)
    ),
    "EncoderBlock": layer(layers.EncoderBlock(layers.MultiheadAttention(16, 2)), X),
    "DecoderBlock": layer(layers.DecoderBlock(layers.MultiheadAttention(16, 2)), X),
    "DecoderBlock, memory": Call(
        lambda memory: layers.DecoderBlock(
            layers.MultiheadAttention(16, 2), cross=layers.MultiheadAttention(16, 2)
        )(X, memory=memory),
        {"memory": X}, ("memory",),
    ),
    "GridAttention": layer(layers.GridAttention(16, 2), MAP),
    "BottleneckBlock": layer(
        layers.BottleneckBlock(16, (2, 3), dim_out=16, dim_head=8), MAP
    ),
    "RelativeGlobalAttention": layer(adapters.RelativeGlobalAttention(16, 2), X),
    "KeyValueCache.append": Call(
        lambda **given: layers.KeyValueCache().append(**given), {"k": Q, "v": Q}, ("k", "v")
    ),
}  # fmt: skip
# No number of theirs need be of floating point.
OTHERS = {
    "attention, mask": Call(
        lambda mask: relpos.attention(Q, Q, Q, mask=mask), {"mask": Q[:, :, :, :6]}, ("mask",)
    ),
    "attention, documents": Call(
        lambda x: relpos.attention(Q, Q, Q, documents=x), {"x": X[..., 0].long()}, ("x",)
    ),
    "document_ids": Call(lambda x: relpos.document_ids(x, 6), {"x": NUMBERS}, ("x",)),
    "key_padding_mask": Call(
        lambda x: layers.MultiheadAttention(16, 2)(X, X, X, x), {"x": X[..., 0]}, ("x",)
    ),
    "attn_mask": Call(
        lambda x: layers.MultiheadAttention(16, 2)(X, X, X, attn_mask=x), {"x": X[0, :, :6]}, ("x",)
    ),
    "MultiheadAttention, key_ranges": Call(
        lambda x: layers.MultiheadAttention(16, 2)(X, X, X, key_ranges=x),
        {"x": torch.zeros(1, 6, 2, dtype=torch.int64)},
        ("x",),
    ),
    "GridAttention, mask": Call(
        lambda x: layers.GridAttention(16, 2)(MAP, x), {"x": MAP[:, 0] > 0}, ("x",)
    ),
    "KeyValueCache.reorder": Call(layers.KeyValueCache().reorder, {"index": NUMBERS}, ("index",)),
}
OPTIONAL = {
    "attention, mask",
    "attention, documents",
    "key_padding_mask",
    "attn_mask",
    "MultiheadAttention, key_ranges",
    "GridAttention, mask",
}
# Arguments that are no tensors, by function.
PLAIN: dict[str, Callable[[Any], object]] = {
    "attention, causal": lambda x: relpos.attention(Q, Q, Q, causal=x),
    "attention, dropout": lambda x: relpos.attention(Q, Q, Q, dropout=x),
    "attention, scale": lambda x: relpos.attention(Q, Q, Q, scale=x),
    "attention, query_start": lambda x: relpos.attention(Q, Q, Q, query_start=x),
    "attention, backend": lambda x: relpos.attention(Q, Q, Q, backend=x),
    "attention, return_lse": lambda x: relpos.attention(Q, Q, Q, return_lse=x),
    "attention, terms": lambda x: relpos.attention(Q, Q, Q, x),
    "global_local_attention, global_tokens": lambda x: relpos.global_local_attention(
        Q, Q, Q, window=(1, 1), global_tokens=x
    ),
    "KeyValueCache.append, start": lambda x: layers.KeyValueCache().append(Q, Q, start=x),
    "MultiheadAttention, window": lambda x: layers.MultiheadAttention(16, 2, window=x),
    "GridAttention, window": lambda x: layers.GridAttention(16, 2, window=x),
    "document_ids, length": lambda x: relpos.document_ids(NUMBERS, x),
    "skew, fill": lambda x: relpos.skew(X, x),
    "OffsetTable, first": lambda x: OffsetTable(Q[0], x),
    "OffsetTable, beyond": lambda x: OffsetTable(Q[0], 0, x),
    "Terms, bias": lambda x: Terms(bias=x),
    "GridTerms, shape": relpos.GridTerms,
    "GridTerms, axes": lambda x: relpos.GridTerms((2, 3), x),
    "GridTerms, query_shape": lambda x: relpos.GridTerms((2, 3), query_shape=x),
    "GridTerms, prefix": lambda x: relpos.GridTerms((2, 3), prefix=x),
}
OPTIONAL_PLAIN = {
    "attention, scale", "attention, query_start", "Terms, bias", "GridTerms, query_shape",
    "MultiheadAttention, window", "GridAttention, window",
}  # fmt: skip
NOT_PLAIN = NOT_DENSE | {
    "a matrix": lambda x: x,
    "of no numbers": lambda x: torch.zeros((), dtype=torch.int64, device="meta"),
    "an integer too large to write": lambda x: 10**5000,
}
# Called with queries alone they give logits.
WITHOUT_KEYS = {"AbsPosEmb1D", "RelPosEmb1D", "RelPosEmb2D"}
IN_WORDS = r"^[\w.]+: [\w.()\[\]]+ must [^\n]*$"


@pytest.mark.parametrize("kind", NOT_DENSE)
@pytest.mark.parametrize("name", [*CALLS, *OTHERS])
def test_what_is_no_dense_tensor_is_refused_in_one_line(name: str, kind: str):
    call = (CALLS | OTHERS)[name]
    call.function(**call.good)
    for argument in call.replaced:
        if kind == "None" and (name in OPTIONAL or (name in WITHOUT_KEYS and argument == "k")):
            continue
        if kind == "jagged" and name in ("EncoderBlock", "DecoderBlock"):
            continue  # which they take
        wrong = {argument: NOT_DENSE[kind](call.good[argument])}  # type: ignore[arg-type]
        with pytest.raises((ShapeError, TypeError, ValueError), match=IN_WORDS):
            call.function(**call.good | wrong)


@pytest.mark.parametrize("kind", NOT_FLOATING)
@pytest.mark.parametrize("name", CALLS)
def test_what_is_not_floating_point_is_refused_in_one_line(name: str, kind: str):
    call = CALLS[name]
    for argument in call.replaced:
        wrong = {argument: NOT_FLOATING[kind](call.good[argument])}  # type: ignore[arg-type]
        with pytest.raises(ShapeError, match=IN_WORDS):
            call.function(**call.good | wrong)


def test_the_wording_of_a_layout():
    with pytest.raises(
        ShapeError, match=r"^skew: x must be a dense tensor, got layout torch\.spar"
    ):
        relpos.skew(torch.eye(3).to_sparse())
    with pytest.raises(TypeError, match=r"^skew: x must be a tensor, got list$"):
        relpos.skew([1])  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=r"dense tensor, got a quantized one of torch\.qint8$"):
        relpos.skew(NOT_DENSE["quantized"](X))  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=r"must be a dense tensor, got a nested one$"):
        relpos.skew(NOT_DENSE["nested"](X))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", NOT_PLAIN)
@pytest.mark.parametrize("name", PLAIN)
def test_what_is_no_plain_value_is_refused_in_one_line(name: str, kind: str):
    if kind == "None" and name in OPTIONAL_PLAIN:
        return
    with pytest.raises((TypeError, ValueError), match=IN_WORDS):
        PLAIN[name](NOT_PLAIN[kind](X))
