"""Layers over a cut sequence: every scheme of the registry, method and layout, in float64."""

from __future__ import annotations

import copy
import re

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import relpos.distributed as cut
from relpos.adapters import NeighborhoodAttention1D, RelativeGlobalAttention
from relpos.distributed import ContextParallel
from relpos.layers import (
    DecoderBlock,
    EncoderBlock,
    GridAttention,
    KeyValueCache,
    MultiheadAttention,
)
from relpos.positions import Compose, Grid, LearnedAbsolute, Rotary, Shaw, T5Bias, TransformerXL
from tests.distributed.cut import relative_error, world
from tests.ecosystem.schemes import SUBJECTS, Attention, inputs, made

METHODS = ("heads", "gather", "ring")
LAYOUTS = ("zigzag", "contiguous")
# Those of a line of tokens in a layer. The others are made for a grid, or call the op themselves.
LINES = [
    name for name in SUBJECTS
    if isinstance(SUBJECTS[name].make(), Attention) and name != "RelPosEmb2D"
]  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", LINES)
@pytest.mark.costly(90)
def test_a_layer_is_as_in_one_process(two, name: str, method: str, layout: str):
    two.run(_check_layer, name, method, layout)


def _check_layer(rank, size, name, method, layout) -> None:
    whole = made(name, torch.float64)
    (x,) = inputs(name, 33, torch.float64)
    parallel = ContextParallel(layout=layout, method=method).apply_to(copy.deepcopy(whole), world())
    local = cut.shard(x, world(), layout)
    _compare(whole, parallel, (x,), (local,), layout)


def _compare(
    whole: nn.Module,
    parallel: nn.Module,
    inputs: tuple[Tensor, ...],
    local: tuple[Tensor, ...],
    layout: cut.Layout,
) -> None:
    """Output, and gradients of inputs and parameters."""
    inputs = tuple(x.detach().requires_grad_() for x in inputs)
    local = tuple(x.detach().requires_grad_() for x in local)
    expected, found = whole(*inputs), parallel(*local)
    assert relative_error(found, cut.shard(expected, world(), layout)) <= 1e-12
    weights = torch.linspace(-1, 1, expected.numel(), dtype=expected.dtype).view(expected.shape)
    (expected * weights).sum().backward()
    (found * cut.shard(weights, world(), layout)).sum().backward()
    for x, y in zip(inputs, local, strict=True):
        assert x.grad is not None
        assert y.grad is not None
        assert relative_error(y.grad, cut.shard(x.grad, world(), layout)) <= 1e-12
    for (name, one), (_, other) in zip(
        whole.named_parameters(), parallel.named_parameters(), strict=True
    ):
        assert one.grad is not None
        total = torch.zeros_like(other) if other.grad is None else other.grad.clone()
        distributed.all_reduce(total)
        assert relative_error(total, one.grad) <= 1e-12, name


class _EncoderDecoder(nn.Module):
    """An encoder, and a decoder of another length that reads it; positions at the input too."""

    def __init__(self, *, checkpointed: bool = False) -> None:
        super().__init__()
        self.absolute = LearnedAbsolute(16, 20)
        self.encoder = EncoderBlock(
            MultiheadAttention(16, 4, position=TransformerXL(4, 4)), hidden=16
        )
        self.decoder = DecoderBlock(
            MultiheadAttention(16, 4, position=Compose(Rotary(4), T5Bias(4, 8, 20))),
            cross=MultiheadAttention(16, 4),
            hidden=16,
        )
        self.reader = DecoderBlock(
            MultiheadAttention(16, 4), cross=MultiheadAttention(16, 4, position=Shaw(4, 3, 4)),
            hidden=16,
        )  # fmt: skip
        self.checkpointed = checkpointed

    def forward(
        self, x: Tensor, memory: Tensor, padding: Tensor, documents: Tensor, of_memory: Tensor
    ) -> Tensor:
        memory = self._call(self.encoder, self.absolute(memory), padding, documents=of_memory)
        x = self._call(
            self.decoder, x, memory=memory, memory_key_padding_mask=padding, documents=documents,
            memory_documents=of_memory,
        )  # fmt: skip
        return self._call(self.reader, x, memory=memory, memory_key_padding_mask=padding)

    def _call(self, block: nn.Module, *args: Tensor, **options: Tensor) -> Tensor:
        if self.checkpointed:
            return checkpoint(block, *args, use_reentrant=False, **options)
        return block(*args, **options)


def _batch() -> tuple[Tensor, ...]:
    draw = torch.Generator().manual_seed(1)
    x, memory = (torch.randn(4, n, 16, generator=draw).double() for n in (24, 32))
    padding = torch.arange(32) >= torch.tensor([[32], [30], [7], [19]])
    documents, of_memory = (
        (torch.arange(n) // each).expand(4, -1) for n, each in ((24, 9), (32, 13))
    )
    return x, memory, padding, documents, of_memory


def _model(**options: bool) -> nn.Module:
    torch.manual_seed(0)
    return _EncoderDecoder(**options).double()


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.costly(3)
def test_an_encoder_and_a_decoder_are_as_in_one_process(four, method: str, checkpointed: bool):
    four.run(check_blocks, method, checkpointed)


def check_blocks(rank, size, method, checkpointed, group=None) -> None:
    """Outputs and gradients of an encoder and a decoder, cut among the ranks of some group."""
    group = group or world()
    batch = _batch()
    parallel = ContextParallel(method=method).apply_to(_model(checkpointed=checkpointed), group)
    whole = _model()
    local = [cut.shard(x, group) for x in batch]
    expected, found = whole(*batch), parallel(*local)
    assert relative_error(found, cut.shard(expected, group)) <= 1e-12
    expected.square().sum().backward()
    found.square().sum().backward()
    for (name, one), other in zip(whole.named_parameters(), parallel.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        distributed.all_reduce(other.grad)
        assert relative_error(other.grad, one.grad) <= 1e-12, name


@pytest.mark.parametrize("wrapped", ["ddp", "fsdp"])
def test_a_step_of_adamw_over_data_and_context(four, wrapped: str):
    four.run(_check_step, wrapped)


def _check_step(rank, size, wrapped) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
    whole, batch = _model(), _batch()
    # Which tokens count, as in training with padding: not as many on every rank.
    counts = (torch.arange(24) < torch.tensor([[24], [3], [20], [11]])).double()
    one = torch.optim.AdamW(whole.parameters(), lr=0.01)
    loss = (whole(*batch).square().mean(-1) * counts).sum() / counts.sum()
    loss.backward()
    one.step()

    model = parallelize_module(_model(), mesh["cp"], ContextParallel())
    both = mesh["dp", "cp"]._flatten("dp_cp")
    if wrapped == "ddp":
        model = DistributedDataParallel(model, process_group=both.get_group())
    else:
        for block in (model.encoder, model.decoder):
            fully_shard(block, mesh=both)
        fully_shard(model, mesh=both)
    other = torch.optim.AdamW(model.parameters(), lr=0.01)
    own = [x.chunk(2)[mesh.get_local_rank("dp")] for x in (*batch, counts)]
    *inputs, weights = (cut.shard(x, mesh["cp"]) for x in own)
    # Ranks are averaged: times their number, over the tokens that count on all of them.
    share = (model(*inputs).square().mean(-1) * weights).sum() * size / counts.sum()
    share.backward()
    other.step()
    total = share.detach().clone()
    distributed.all_reduce(total)
    assert abs(total.item() / size - loss.item()) <= 1e-12
    named = {name.removeprefix("module."): x for name, x in model.named_parameters()}
    for name, expected in whole.named_parameters():
        found = named[name]
        full = found.full_tensor() if isinstance(found, DTensor) else found
        assert relative_error(full, expected) <= 1e-11, name


def test_copies_are_cut_too_and_what_was_cut_is_whole_again(two):
    two.run(_check_copy)


def _check_copy(rank, size) -> None:
    whole, batch = _model(), _batch()
    style = ContextParallel()
    model = style.apply_to(_model(), world())
    copied = copy.deepcopy(model)
    local = [cut.shard(x, world()) for x in batch]
    expected = whole(*batch)
    for _ in range(2):  # applied twice is applied once
        assert relative_error(copied(*local), cut.shard(expected, world())) <= 1e-12
        style.apply_to(copied, world())
    assert torch.equal(style.remove_from(copied)(*batch), expected)
    assert relative_error(model(*local), cut.shard(expected, world())) <= 1e-12
    assert model.state_dict().keys() == whole.state_dict().keys()


def test_what_is_refused_says_so(two):
    two.run(_refused)


def _refused(rank, size) -> None:
    layer = MultiheadAttention(8, 2)
    ContextParallel().apply_to(layer, world())
    x = torch.zeros(1, 3, 8)
    with pytest.raises(ValueError, match="over several devices need_weights must be"):
        layer(x, x, x)
    with pytest.raises(ValueError, match="over several devices cache must be None"):
        layer(x, x, x, need_weights=False, cache=KeyValueCache())
    with pytest.raises(ValueError, match=r"ContextParallel: module must have a relpos.layers"):
        ContextParallel().apply_to(nn.Linear(3, 3), world())
    with pytest.raises(ValueError, match="ContextParallel: method must be 'auto' or one of"):
        ContextParallel(method="alltoall")  # type: ignore[arg-type]

    class MHA(nn.Module):
        def __init__(self):
            super().__init__()
            self.in_proj_weight = nn.Parameter(torch.zeros(24, 8))

    class CoreAttention(nn.Module):
        """Without weights: it is given queries, keys and values."""

    class ShawAttention(Shaw):
        """A scheme, whatever its name."""

    for other in (
        MHA(),
        CoreAttention(),
        nn.MultiheadAttention(8, 2),
        GridAttention(8, 2),
        GridAttention(8, 2, projection=False),
        NeighborhoodAttention1D(8, 2, 3),
        RelativeGlobalAttention(8, 2, 9, 0.0),
    ):
        mixed = nn.ModuleDict({"line": MultiheadAttention(8, 2), "other": other})
        said = rf"{type(other).__name__}, .* attend to this rank's tokens alone.*; .* module\.other"
        with pytest.raises(ValueError, match=said):
            ContextParallel().apply_to(mixed, world())
        assert mixed["line"].attend_elsewhere is None
    layer = MultiheadAttention(8, 2, position=ShawAttention(4, 3))
    for kind in (MHA, CoreAttention, lambda: GridAttention(8, 2)):
        outer = nn.Sequential(kind())
        outer[0].acts_on_cut_tokens = True
        ContextParallel().apply_to(nn.Sequential(layer, outer), world())
        outer = nn.Sequential(kind())
        outer.acts_on_cut_tokens = True
        ContextParallel().apply_to(nn.Sequential(layer, outer), world())
        able = MHA()
        able.add_module("inner", outer)
        ContextParallel().apply_to(nn.Sequential(layer, able), world())
        outer.acts_on_cut_tokens = False
        with pytest.raises(ValueError, match=r"ContextParallel: module must have no .*module\.1\."):
            ContextParallel().apply_to(nn.Sequential(layer, able), world())

    layer = MultiheadAttention(8, 2)
    ContextParallel(key_layout="whole").apply_to(layer, world())
    with pytest.raises(ValueError, match="where keys are the queries' own tokens, got 'whole'"):
        layer(x, x, x, need_weights=False)

    layer = MultiheadAttention(8, 2, position=Grid(4, (1, 3)))
    ContextParallel().apply_to(layer, world())
    with pytest.raises(ValueError, match="position must be one of a sequence where it is cut"):
        layer(x, x, x, need_weights=False)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", ["T5Bias", "Rotary", "Shaw"])
def test_cross_attention_to_a_text_that_every_rank_has_whole(two, name: str, padded: bool):
    two.run(_whole_text, name, padded)


def _whole_text(rank, size, name, padded) -> None:
    torch.manual_seed(0)
    schemes = {"T5Bias": T5Bias(4), "Rotary": Rotary(4), "Shaw": Shaw(4, 3)}
    cross = MultiheadAttention(16, 4, position=schemes[name])
    whole = DecoderBlock(MultiheadAttention(16, 4, position=Shaw(4, 3)), cross=cross).double()
    with torch.no_grad():
        for x in whole.parameters():
            x.add_(0.1 * torch.randn_like(x))
    model, x = copy.deepcopy(whole), torch.randn(2, 9, 16).double()
    plan = {"attention": ContextParallel(), "cross": ContextParallel(key_layout="whole")}
    for part, style in plan.items():
        style.apply_to(model.get_submodule(part), world())
    for tokens in (1, 4):
        text = torch.randn(2, tokens, 16).double()
        mask = torch.ones(2, tokens).bool()
        mask[1, tokens // 2 + 1 :] = not padded
        expected, found = text.clone().requires_grad_(), text.clone().requires_grad_()
        output = whole(x, memory=expected, memory_key_padding_mask=mask)
        own = model(cut.shard(x, world()), memory=found, memory_key_padding_mask=mask)
        assert relative_error(own, cut.shard(output, world())) <= 1e-12
        weights = torch.linspace(-1, 1, output.numel()).double().view(output.shape)
        (output * weights).sum().backward()
        (own * cut.shard(weights, world())).sum().backward()
        distributed.all_reduce(found.grad)
        assert relative_error(found.grad, expected.grad) <= 1e-11


def test_what_differs_between_ranks_of_a_layer_is_said_on_both(two):
    two.run(_differing)


def _differing(rank, size) -> None:
    model = nn.Sequential(LearnedAbsolute(8, 9), DecoderBlock(MultiheadAttention(8, 2)))
    ContextParallel(layout="contiguous").apply_to(model, world())
    with pytest.raises(
        ValueError, match=r"x must be cut as relpos.distributed.shard cuts 8 tokens"
    ):
        model(torch.zeros(1, 5 - 2 * rank, 8))
    layer = ContextParallel().apply_to(MultiheadAttention(8, 2), world())
    x = torch.zeros(1, 5 - 2 * rank, 8)
    with pytest.raises(ValueError, match=r"query must be cut as relpos.distributed.shard cuts 8"):
        layer(x, x, x, need_weights=False)
    x = torch.zeros(1, 4, 8)
    padding, mask = torch.zeros(1, 4).bool(), torch.zeros(4, 8).bool()
    nothing: dict[str, Tensor] = {}
    for here, said in (
        (({"key_padding_mask": padding}, nothing), "key_padding_mask must be the same on every"),
        (
            ({"attn_mask": mask}, {"attn_mask": mask, "key_padding_mask": padding}),
            "key_padding_mask must be the same on every rank of the group, got 'NoneType'",
        ),
        (({"attn_mask": mask}, {"attn_mask": mask[:3]}), "attn_mask must be (i, j) or"),
        (
            (
                {"attn_mask": mask, "key_padding_mask": padding},
                {"attn_mask": mask, "key_padding_mask": padding[:, 1:]},
            ),
            "key_padding_mask must be (b, j) with b=1, j=4, got (1, 3)",
        ),
        (({"key_padding_mask": padding}, {"key_padding_mask": padding[:, 1:]}), "must be (b, j)"),
    ):
        with pytest.raises((RuntimeError, ValueError), match=re.escape(said)):
            layer(x, x, x, need_weights=False, **here[rank])
    # Ranks that are in different functions say so.
    calls = (
        lambda: cut.attention(x[None], x[None], x[None], group=world()),
        lambda: cut.unshard(torch.zeros(1, 4), world()),
    )
    with pytest.raises(ValueError, match="the function that is called must be the same on every"):
        calls[rank]()


def test_padding_where_each_rank_has_one_token(two, three):
    for pool in (two, three):
        pool.run(_one_token_each)


def _one_token_each(rank, size) -> None:
    torch.manual_seed(0)
    whole = MultiheadAttention(8, 2, position=Rotary(4)).double()
    parallel = ContextParallel().apply_to(copy.deepcopy(whole), world())
    x = torch.randn(2, size, 8, generator=torch.Generator().manual_seed(1)).double()
    for count in range(1, size + 1):
        y = x[:, :count]
        padding = torch.arange(count) > torch.tensor([[0], [1]])
        expected = whole(y, y, y, key_padding_mask=padding, need_weights=False)[0]
        own, hidden = cut.shard(y, world()), cut.shard(padding, world())
        found = parallel(own, own, own, key_padding_mask=hidden, need_weights=False)[0]
        assert relative_error(found, cut.shard(expected, world())) <= 1e-12


def test_what_changes_keys_is_called_with_this_ranks_alone(two):
    two.run(_lengths_of_keys)


def _lengths_of_keys(rank, size) -> None:
    lengths: list[int] = []
    forward = Rotary.forward

    def noted(self, q, k, *args, **options):
        lengths.append(k.shape[2])
        return forward(self, q, k, *args, **options)

    x = torch.zeros(1, 32, 8)
    own = cut.shard(x, world())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Rotary, "forward", noted)
        for position in (Rotary(4), Compose(Rotary(4), T5Bias(2))):
            layer = MultiheadAttention(8, 2, position=position)
            ContextParallel(method="ring").apply_to(layer, world())
            layer(own, own, own, need_weights=False)
    assert max(lengths) <= 16
