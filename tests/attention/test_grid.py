"""What the op means for tokens on a grid: every backend against the NumPy double loop."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from relpos import GridTerms, OffsetTable, Terms, attention, attention_weights, definition
from relpos import relative_logits as added_logits

# The reference first: what the others are compared with where the definition has no gradients.
BACKENDS = ["reference", "tiled"]


@dataclass(frozen=True)
class GridCase:
    """Sizes and settings of one call; `inputs` draws its tensors."""

    shape: tuple[int, ...] = (5, 7)
    query_shape: tuple[int, ...] | None = None
    prefix: int = 0
    batch: int = 1
    heads: int = 2
    groups: int = 2
    width: int = 5
    value_width: int = 3
    terms: str = "keys queries bias values"
    joint: bool = False
    reach: int | None = None  # offsets of the tables, about -reach..reach; None: all of the grid
    beyond: str = "clamp"
    table_heads: int = 1
    rel_width: int | None = None  # that of the first axis; each further one is one wider
    causal: bool = False
    mask: str | None = None  # "padding", "pairs", "additive"
    scale: float | None = None

    @property
    def queries(self) -> tuple[int, ...]:
        return self.shape if self.query_shape is None else self.query_shape

    def inputs(self, seed: int = 0) -> dict[str, Tensor]:
        """Float64 tensors by name: q, k, v, `keys0`, ..., `q_rel1`, joint, mask."""
        draw = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=draw, dtype=torch.float64)

        b, h = self.batch, self.heads
        i, j = self.prefix + prod(self.queries), self.prefix + prod(self.shape)
        named = {
            "q": normal(b, h, i, self.width),
            "k": normal(b, self.groups, j, self.width),
            "v": normal(b, self.groups, j, self.value_width),
        }
        for axis in range(len(self.shape)):
            rel = self.width if self.rel_width is None else self.rel_width + axis
            widths = {"keys": rel, "queries": self.width, "values": self.value_width}
            for part in self.terms.split():
                first, last = self.window(part, axis)
                width = [] if part == "bias" else [widths[part]]
                named[f"{part}{axis}"] = normal(self.table_heads, last - first + 1, *width)
            if self.rel_width is not None:
                named[f"q_rel{axis}"] = normal(b, h, i, rel)
        if self.joint:
            named["joint"] = normal(self.table_heads, *(2 * n - 1 for n in self.shape))
        if self.mask == "padding":
            named["mask"] = torch.rand(b, 1, 1, j, generator=draw) > 0.3
            named["mask"][0, :, :, : j // 2] = False
        elif self.mask == "pairs":
            named["mask"] = torch.rand(1, h, i, j, generator=draw) > 0.4
            named["mask"][:, :, 0] = False  # a row without any key
        elif self.mask == "additive":
            named["mask"] = normal(b, h, i, j)
        return named

    def window(self, part: str, axis: int) -> tuple[int, int]:
        """First and last offset: never the same for two tables, nor on two axes."""
        reach = max(self.shape[axis], self.queries[axis]) - 1 if self.reach is None else self.reach
        more = 0 if self.reach is None else axis
        moved = {"keys": 0, "queries": 1, "bias": -1, "values": 0}[part] * (self.reach is not None)
        return moved - reach, moved + reach + more

    def terms_of(self, named: dict[str, Tensor]) -> GridTerms:
        axes = []
        for axis in range(len(self.shape)):
            tables = {
                part: OffsetTable(
                    named[f"{part}{axis}"],
                    self.window(part, axis)[0],
                    self.beyond,  # type: ignore[arg-type]
                )
                for part in self.terms.split()
            }
            axes.append(Terms(**tables, q_rel=named.get(f"q_rel{axis}")))
        return GridTerms(
            self.shape,
            tuple(axes),
            joint=named.get("joint"),
            query_shape=self.query_shape,
            prefix=self.prefix,
        )

    def run(self, named: dict[str, Tensor], backend: str) -> tuple[Tensor, Tensor]:
        """Output and log-sum-exp of a backend."""
        return attention(
            named["q"], named["k"], named["v"], self.terms_of(named), causal=self.causal,
            mask=named.get("mask"), scale=self.scale, backend=backend, return_lse=True,
        )  # fmt: skip

    def define(self, named: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Output and log-sum-exp by the NumPy double loop."""
        arrays = {name: tensor.detach().numpy() for name, tensor in named.items()}
        axes = [
            definition.Axis(
                **{
                    part: definition.Table(
                        arrays[f"{part}{axis}"],
                        self.window(part, axis)[0],
                        self.beyond,  # type: ignore[arg-type]
                    )
                    for part in self.terms.split()
                },
                q_rel=arrays.get(f"q_rel{axis}"),
            )
            for axis in range(len(self.shape))
        ]
        output, lse = definition.grid_attention(
            arrays["q"], arrays["k"], arrays["v"], shape=self.shape, axes=axes,
            joint=arrays.get("joint"), query_shape=self.query_shape, prefix=self.prefix,
            causal=self.causal, mask=arrays.get("mask"), scale=self.scale,
        )  # fmt: skip
        return torch.from_numpy(output), torch.from_numpy(lse)

    def gradients(self, named: dict[str, Tensor], backend: str) -> dict[str, Tensor]:
        """Gradients of a fixed scalar of output and log-sum-exp, by name."""
        leaves = {
            name: tensor.detach().clone().requires_grad_(tensor.is_floating_point())
            for name, tensor in named.items()
        }
        output, lse = self.run(leaves, backend)
        finite = lse.masked_fill(lse == -torch.inf, 0)
        total = sum(
            (torch.linspace(-1, 1, part.numel(), dtype=part.dtype).view(part.shape) * part).sum()
            for part in (output, finite)
        )
        wanted = [name for name, leaf in leaves.items() if leaf.requires_grad]
        grads = torch.autograd.grad(total, [leaves[name] for name in wanted])  # type: ignore[arg-type]
        return dict(zip(wanted, grads, strict=True))


BASE = GridCase()

CASES = {
    "plane": BASE,
    "plane, keys": replace(BASE, terms="keys"),
    "plane, per head": replace(BASE, table_heads=2),
    "plane, no tables": replace(BASE, terms=""),
    "one row": replace(BASE, shape=(1, 9)),
    "one column": replace(BASE, shape=(9, 1)),
    "one token": replace(BASE, shape=(1, 1)),
    "line": replace(BASE, shape=(9,)),
    "line, prefix": replace(BASE, shape=(9,), prefix=2, reach=3),
    "line, joint": replace(BASE, shape=(9,), joint=True),
    "line, pooled": replace(BASE, shape=(9,), query_shape=(4,)),
    "space": replace(BASE, shape=(3, 4, 5), heads=1, groups=1),
    "space, prefix, joint": replace(BASE, shape=(2, 3, 4), prefix=1, joint=True),
    "space, pooled": replace(BASE, shape=(3, 4, 5), query_shape=(1, 2, 2), prefix=1),
    "prefix": replace(BASE, prefix=1),
    "two before": replace(BASE, prefix=2, table_heads=2, batch=2),
    "pooled": replace(BASE, shape=(4, 6), query_shape=(2, 3)),
    "pooled, between rows": replace(BASE, shape=(5, 7), query_shape=(3, 4), prefix=1),
    "pooled, zero beyond": replace(
        BASE, shape=(5, 7), query_shape=(3, 4), reach=2, beyond="zero", table_heads=2
    ),
    "pooled keys": replace(BASE, shape=(3, 2), query_shape=(6, 5), prefix=1),
    "finer on one axis each": replace(BASE, shape=(6, 2), query_shape=(4, 5)),
    "joint": replace(BASE, terms="", joint=True, table_heads=2),
    "joint beside tables": replace(BASE, joint=True, prefix=1),
    "clamped": replace(BASE, reach=2, table_heads=2),
    "zero beyond": replace(BASE, reach=1, beyond="zero"),
    "q_rel": replace(BASE, terms="keys", rel_width=3, prefix=1),
    "q_rel, per head": replace(BASE, terms="keys bias", rel_width=2, table_heads=2),
    "q_rel, pooled": replace(BASE, terms="keys", rel_width=3, query_shape=(3, 4)),
    "grouped": replace(BASE, shape=(3, 4), heads=6, groups=2, table_heads=6, joint=True),
    "padding": replace(BASE, batch=2, mask="padding", prefix=1),
    "pairs": replace(BASE, mask="pairs"),
    "additive": replace(BASE, mask="additive", prefix=1, joint=True),
    "causal": replace(BASE, causal=True, prefix=1),
    "scale": replace(BASE, scale=0.7, joint=True),
}


def assert_defined(case: GridCase, named: dict[str, Tensor], backend: str, atol: float) -> None:
    """Output and log-sum-exp of a backend are the double loop's."""
    actual, expected = case.run(named, backend), case.define(named)
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_computes_the_definition(name: str, backend: str):
    assert_defined(CASES[name], CASES[name].inputs(), backend, 1e-12)


@pytest.mark.parametrize("name", CASES)
def test_all_backends_have_the_same_gradients(name: str):
    named = CASES[name].inputs()
    expected = CASES[name].gradients(named, "reference")
    for backend in BACKENDS[1:]:
        actual = CASES[name].gradients(named, backend)
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-11)


@st.composite
def any_grid(draw) -> GridCase:
    axes = draw(st.integers(1, 3))
    most = {1: 12, 2: 5, 3: 3}[axes]
    shape = tuple(draw(st.integers(1, most)) for _ in range(axes))
    queries = st.tuples(*[st.integers(1, most)] * axes)
    query_shape = draw(st.none() | queries)
    groups, repeat = draw(st.sampled_from([(1, 1), (1, 3), (2, 1)]))
    heads = groups * repeat
    parts = draw(st.sets(st.sampled_from(["keys", "queries", "bias", "values"])))
    return GridCase(
        shape=shape,
        query_shape=query_shape,
        prefix=draw(st.integers(0, 2)),
        batch=draw(st.integers(1, 2)),
        heads=heads,
        groups=groups,
        width=draw(st.sampled_from([1, 4])),
        terms=" ".join(sorted(parts)),
        joint=query_shape in (None, shape) and draw(st.booleans()),
        reach=draw(st.sampled_from([None, 1, 4])),
        beyond=draw(st.sampled_from(["clamp", "zero"])),
        table_heads=draw(st.sampled_from([1, heads])),
        rel_width=draw(st.sampled_from([None, 2])) if "keys" in parts else None,
        causal=query_shape in (None, shape) and draw(st.booleans()),
        mask=draw(st.sampled_from([None, "padding", "pairs", "additive"])),
        scale=draw(st.sampled_from([None, 0.3])),
    )


@settings(max_examples=40, deadline=None, derandomize=True)
@given(case=any_grid(), seed=st.integers(0, 999))
def test_any_grid_computes_the_definition(case: GridCase, seed: int):
    named = case.inputs(seed)
    for backend in BACKENDS:
        assert_defined(case, named, backend, 1e-11)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(case=any_grid(), seed=st.integers(0, 999))
def test_all_backends_have_the_same_gradients_on_any_grid(case: GridCase, seed: int):
    named = case.inputs(seed)
    expected = case.gradients(named, "reference")
    for backend in BACKENDS[1:]:
        torch.testing.assert_close(case.gradients(named, backend), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "case",
    [
        replace(BASE, shape=(2, 3), prefix=1, joint=True, rel_width=2, table_heads=2),
        replace(BASE, shape=(2, 3), query_shape=(1, 2), terms="keys values", beyond="zero"),
    ],
    ids=["all tables", "between rows"],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_are_exact_in_every_tensor(case: GridCase, backend: str):
    named = replace(case, width=2, value_width=2).inputs()
    names = list(named)

    def function(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        return case.run(dict(zip(names, tensors, strict=True)), backend)

    leaves = [tensor.requires_grad_() for tensor in named.values()]
    assert torch.autograd.gradcheck(function, leaves)


@pytest.mark.parametrize("name", ["prefix", "pooled, between rows", "joint beside tables"])
def test_weights_and_logits_are_the_definitions(name: str):
    case = replace(CASES[name], heads=1, groups=1)
    named = case.inputs()
    terms = case.terms_of(named)
    keys = named["k"].shape[2]
    # With the identity as values and no table on them, the output is the weights.
    identity = torch.eye(keys, dtype=torch.float64).expand(1, 1, -1, -1)
    bare = replace(case, terms="keys queries bias")
    expected, lse = bare.define(named | {"v": identity})
    weights = attention_weights(named["q"], named["k"], terms)
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-13)
    scores = expected.log() + lse[..., None]
    content = named["q"] @ named["k"].mT / case.width**0.5
    torch.testing.assert_close(
        added_logits(named["q"], named["k"], terms), scores - content, rtol=0, atol=1e-11
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_moving_the_grid_moves_the_output(backend: str):
    """Offsets alone count: a larger grid whose further places are hidden changes nothing."""
    case = replace(BASE, reach=3, joint=False)
    named = case.inputs()
    here, _ = case.run(named, backend)
    height, width = case.shape
    larger = replace(case, shape=(height + 2, width + 3))
    places = torch.arange(prod(larger.shape)).view(larger.shape)[2:, 3:].flatten()
    moved = larger.inputs(seed=1) | {n: x for n, x in named.items() if n[-1].isdigit()}
    for name in "qkv":
        moved[name][:, :, places] = named[name]
    moved["mask"] = torch.zeros(1, 1, 1, prod(larger.shape), dtype=torch.bool)
    moved["mask"][..., places] = True
    there, _ = larger.run(moved, backend)
    torch.testing.assert_close(there[:, :, places], here, rtol=0, atol=1e-13)


@pytest.mark.parametrize("backend", BACKENDS)
def test_swapping_the_axes_permutes_the_tokens(backend: str):
    """TRAPS 2: height and width are two things, on maps that are not square."""
    case = replace(BASE, joint=True, table_heads=2)
    named = case.inputs()
    height, width = case.shape
    swapped = {
        name.replace("0", "2").replace("1", "0").replace("2", "1"): tensor
        for name, tensor in named.items()
    }
    swapped["joint"] = named["joint"].mT
    order = torch.arange(height * width).view(height, width).mT.flatten()
    for name in "qkv":
        swapped[name] = named[name][:, :, order]
    other = replace(case, shape=(width, height)).run(swapped, backend)[0]
    torch.testing.assert_close(other, case.run(named, backend)[0][:, :, order])


@pytest.mark.parametrize("backend", BACKENDS)
def test_tokens_before_the_grid_meet_no_table(backend: str):
    """Other tables change nothing for class tokens."""
    case = replace(BASE, prefix=2, joint=True)
    named = case.inputs()
    clean = case.run(named, backend)[0][:, :, :2]
    tables = {n: x + 1 for n, x in named.items() if n[-1].isdigit() or n == "joint"}
    torch.testing.assert_close(case.run(named | tables, backend)[0][:, :, :2], clean)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_row_without_keys_gives_zeros_and_no_gradient(backend: str):
    named = CASES["pairs"].inputs()
    output, lse = CASES["pairs"].run(named, backend)
    assert (output[:, :, 0] == 0).all()
    assert (lse[:, :, 0] == -torch.inf).all()
    for name, gradient in CASES["pairs"].gradients(named, backend).items():
        assert gradient.isfinite().all(), name
