"""Schemes of users over a cut sequence: right, or refused in words on every rank."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import parallelize_module

import relpos.distributed as cut
from relpos import OffsetTable, Terms
from relpos.distributed import ContextParallel, HeadParallel
from relpos.layers import MultiheadAttention
from relpos.positions import Compose, Rotary, T5Bias
from tests.distributed.cut import relative_error, world

pytestmark = pytest.mark.no_typecheck


def bias(values: Tensor) -> Terms:
    return Terms(bias=OffsetTable(values, first=-4))


def numbered(q: Tensor, k: Tensor) -> Tensor:
    """The positions of queries that are the last ones."""
    return torch.arange(k.shape[2] - q.shape[2], k.shape[2], dtype=q.dtype)[:, None]


RAMP = torch.linspace(-1, 1, 9).double()[None]
KEYS = torch.linspace(-1, 1, 36).double().view(1, 9, 4)
Scheme = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Terms]]
# What each makes that is wrong, as the words name it.
WRONG: dict[str, tuple[str, Scheme]] = {
    "keys shifted": ("keys", lambda q, k, x: (q, k + 1, Terms())),
    "queries by position": ("queries", lambda q, k, x: (q * numbered(q, k), k, Terms())),
    "queries from 0": ("queries", lambda q, k, x: (
        q * (1 + torch.arange(q.shape[2], dtype=q.dtype))[:, None],
        k,
        Terms(),
    )),
    "number of queries": ("queries", lambda q, k, x: (q * (1 + q.shape[2]), k, Terms())),
    "number of keys": ("queries", lambda q, k, x: (q * (k.shape[2] > 3) + q, k, Terms())),
    "q_rel by position": ("q_rel", lambda q, k, x: (
        q,
        k,
        Terms(keys=OffsetTable(KEYS, -4), q_rel=q + numbered(q, k)),
    )),
    "bias by length": ("tables of bias", lambda q, k, x: (q, k, bias(RAMP * k.shape[2] ** 0.5))),
    "bias of the input": ("tables of bias", lambda q, k, x: (q, k, bias(RAMP * x.mean()))),
    "bias of later inputs": ("tables of bias", lambda q, k, x: (q, k, bias(RAMP * x[:, 1:].sum()))),
    "bias of the queries": ("tables of bias", lambda q, k, x: (q, k, bias(RAMP * q.mean()))),
    "bias of the keys": ("tables of bias", lambda q, k, x: (q, k, bias(RAMP * k.mean()))),
    "bias of the input, hiding keys": ("tables of bias", lambda q, k, x: (
        q, k, bias((RAMP * x.mean()).masked_fill(RAMP > 0.1, -1e9))
    )),
    "tables of several keys": ("tables of bias", lambda q, k, x: (
        q, k, bias(RAMP) if k.shape[2] > 1 else Terms()
    )),
    "tables of few keys": ("tables of bias", lambda q, k, x: (
        q, k, bias(RAMP) if k.shape[2] < 9 else Terms()
    )),
    "q_rel of few keys": ("q_rel", lambda q, k, x: (
        q, k, Terms(keys=OffsetTable(KEYS, -4), q_rel=q + 1 if 1 < k.shape[2] < 9 else None)
    )),
    "q_rel of one key": ("q_rel", lambda q, k, x: (
        q, k, Terms(keys=OffsetTable(KEYS, -4), q_rel=q + 1 if k.shape[2] == 1 else None)
    )),
    "heads of several keys": ("tables of bias", lambda q, k, x: (
        q, k, bias(RAMP.expand(2 if k.shape[2] in (5, 6) else 1, -1))
    )),
}  # fmt: skip
RIGHT: dict[str, Scheme] = {
    "queries by content": lambda q, k, x: (q * x.mean(-1)[:, None, :, None], k, bias(RAMP)),
    "q_rel by content": lambda q, k, x: (
        q, k, Terms(keys=OffsetTable(KEYS, -4), q_rel=q.sin())
    ),
    "a bias that hides": lambda q, k, x: (q, k, bias(RAMP.masked_fill(RAMP > 0.9, -torch.inf))),
    "a bias that hides by a number": lambda q, k, x: (
        q, k, bias(RAMP.masked_fill(RAMP > 0.9, -1e9))
    ),
    "none": lambda q, k, x: (q, k, Terms()),
}  # fmt: skip


class Own(nn.Module):
    """A scheme that calls a function."""

    reads_input = True

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, q: Tensor, k: Tensor, x: Tensor) -> Any:
        """What the function gives."""
        return ({key: scheme for key, (_, scheme) in WRONG.items()} | RIGHT)[self.name](q, k, x)


class Noise(nn.Module):
    """Queries with noise in training."""

    def forward(self, q: Tensor, k: Tensor) -> Any:
        """Noise, as dropout is."""
        return nn.functional.dropout(q, 0.5, self.training), k, Terms()


def layer_with(position: nn.Module) -> MultiheadAttention:
    torch.manual_seed(0)
    return MultiheadAttention(8, 2, position=position).double()


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)).double()


@pytest.mark.parametrize("name", WRONG)
def test_what_would_be_wrong_is_refused(two, name: str):
    for composed in (False, True):
        # A composition may change keys: what is the same everywhere is right then.
        if name != "keys shifted" or not composed:
            two.run(_refused, name, composed)


def _refused(rank, size, name, composed) -> None:
    position: nn.Module = Compose(Rotary(4), Own(name)) if composed else Own(name)
    layer = ContextParallel().apply_to(layer_with(position), world())
    own = cut.shard(drawn(1, 11, 8), world())
    said = f"got (Own|Compose), whose {WRONG[name][0]} differ"
    if name == "keys shifted":
        said = "ContextParallel: position must have reads_key_start = True"
    with pytest.raises((ValueError, TypeError), match=said):
        layer(own, own, own, need_weights=False)


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_is_taken(two, name: str):
    two.run(_taken, name)


def _taken(rank, size, name) -> None:
    whole, x = layer_with(Own(name)), drawn(2, 11, 8)
    layer = ContextParallel().apply_to(copy.deepcopy(whole), world())
    own = cut.shard(x, world())
    expected = whole(x, x, x, need_weights=False)[0]
    found = layer(own, own, own, need_weights=False)[0]
    assert relative_error(found, cut.shard(expected, world())) <= 1e-12


class FromTo(nn.Module):
    """A scheme that acts on the queries `first..end-1` alone."""

    reads_query_start = True

    def __init__(self, first: int, end: int, *, tables: bool) -> None:
        super().__init__()
        self.first, self.end, self.tables = first, end, tables

    def forward(self, q: Tensor, k: Tensor, query_start: int | None = None) -> Any:
        """Queries times their position, or a table that queries elsewhere are times zero of."""
        i = q.shape[2]
        start = k.shape[2] - i if query_start is None else query_start
        if start + i <= self.first or start >= self.end:
            return q, k, Terms(keys=OffsetTable(KEYS, -4)) if self.tables else Terms()
        at = torch.arange(start, start + i, dtype=q.dtype)
        acts = ((at >= self.first) & (at < self.end))[:, None]
        changed = torch.where(acts, q * at[:, None], q)
        if self.tables:
            return q, k, Terms(keys=OffsetTable(KEYS, -4), q_rel=changed)
        return changed, k, Terms()


@pytest.mark.parametrize("layout", ["zigzag", "contiguous"])
@pytest.mark.parametrize("tables", [False, True])
@pytest.mark.parametrize("ends", [(0, 12), (20, 40), (10, 30)])
def test_some_runs_of_queries_may_be_changed(two, ends, tables: bool, layout: str):
    two.run(_some_runs, ends, tables, layout)


def _some_runs(rank, size, ends, tables, layout) -> None:
    whole, x = layer_with(FromTo(*ends, tables=tables)), drawn(1, 40, 8)
    expected = whole(x, x, x, need_weights=False)[0]
    layer = ContextParallel(layout=layout).apply_to(whole, world())
    own = cut.shard(x, world(), layout)
    found = layer(own, own, own, need_weights=False)[0]
    assert relative_error(found, cut.shard(expected, world(), layout)) <= 1e-12


class LessMean(nn.Module):
    """Queries without what they have in common."""

    def forward(self, q: Tensor, k: Tensor) -> Any:
        """Of those it sees."""
        return q - q.mean(2, keepdim=True), k, Terms()


def test_ranks_with_one_token_try_schemes_too(two):
    two.run(_one_token)


def _one_token(rank, size) -> None:
    layer = ContextParallel().apply_to(layer_with(LessMean()), world())
    own = cut.shard(drawn(1, 2, 8), world())
    with pytest.raises(ValueError, match="got LessMean, whose queries differ"):
        layer(own, own, own, need_weights=False)


def test_noise_is_no_position(two):
    two.run(_noisy)


def _noisy(rank, size) -> None:
    layer = ContextParallel().apply_to(layer_with(Noise()), world())
    own = cut.shard(drawn(1, 11, 8), world())
    layer(own, own, own, need_weights=False)
    assert layer.position.training


def test_the_class_is_named_where_heads_are_cut_too(four):
    four.run(_named)


def _named(rank, size) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("cp", "tp"))
    layer = layer_with(Own("queries from 0"))
    layer = parallelize_module(layer, mesh["tp"], HeadParallel())
    parallelize_module(layer, mesh["cp"], ContextParallel())
    own = cut.shard(drawn(1, 11, 8), mesh["cp"])
    with pytest.raises(ValueError, match="got Own, whose queries differ"):
        layer(own, own, own, need_weights=False)


def halve_bias(module: nn.Module, given: Any, made: Any) -> Any:
    """What a scheme makes, with its bias halved."""
    q, k, terms = made
    table = terms.tables["bias"]
    return q, k, Terms(bias=OffsetTable(table.rows / 2, table.first, table.beyond))


class Halved(Compose):
    """A composition that does more than call its parts."""

    def forward(self, *args: Any, **options: Any) -> Any:
        """With half the bias."""
        return halve_bias(self, args, super().forward(*args, **options))


@pytest.mark.parametrize("kind", ["subclass", "hook", "forward"])
def test_what_is_done_around_a_composition_is_done(two, kind: str):
    two.run(_around, kind)


def _around(rank, size, kind) -> None:
    position = (Halved if kind == "subclass" else Compose)(Rotary(4), T5Bias(2))
    if kind == "hook":
        position.register_forward_hook(halve_bias)
    if kind == "forward":
        plain = position.forward
        position.forward = lambda *args, **options: halve_bias(  # type: ignore[method-assign]
            position, args, plain(*args, **options)
        )
    whole, x = layer_with(position), drawn(1, 12, 8)
    with torch.no_grad():
        next(position.parameters()).normal_(generator=torch.Generator().manual_seed(2))
    expected = whole(x, x, x, need_weights=False)[0]
    layer = ContextParallel().apply_to(whole, world())
    own = cut.shard(x, world())
    found = layer(own, own, own, need_weights=False)[0]
    assert relative_error(found, cut.shard(expected, world())) <= 1e-12


class OfInput(nn.Module):
    """A bias that is times what comes in."""

    reads_input = True

    def __init__(self) -> None:
        super().__init__()
        self.slopes = nn.Parameter(RAMP.clone())

    def forward(self, q: Tensor, k: Tensor, x: Tensor) -> Any:
        """The bias."""
        return q, k, bias(self.slopes * x.mean())


def test_a_class_that_torch_made_of_a_user_s_is_a_user_s(two):
    two.run(_parametrized)


def _parametrized(rank, size) -> None:
    position = OfInput()
    nn.utils.parametrizations.weight_norm(position, "slopes")
    layer = ContextParallel().apply_to(layer_with(position), world())
    own = cut.shard(drawn(1, 11, 8), world())
    with pytest.raises(ValueError, match="got ParametrizedOfInput, whose tables of bias differ"):
        layer(own, own, own, need_weights=False)


def test_a_scheme_sharded_by_itself_is_refused(two):
    two.run(_sharded)


def _sharded(rank, size) -> None:
    mesh = init_device_mesh("cpu", (size,))
    own = cut.shard(drawn(1, 12, 8), world())
    for position in (Compose(Rotary(4), T5Bias(2)), OfInput()):
        layer = layer_with(position)
        fully_shard(position, mesh=mesh, reshard_after_forward=True)
        with pytest.raises(ValueError, match="HeadParallel: position must be sharded with"):
            parallelize_module(layer, mesh, HeadParallel())
        ContextParallel().apply_to(layer, world())
        with pytest.raises(ValueError, match="position must be sharded with its layer, by fully_"):
            layer(own, own, own, need_weights=False)
