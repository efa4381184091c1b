"""Tokens that are cut among the ranks of HeadParallel, and key heads that several of them share."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.utils import checkpoint as activations

import relpos.distributed as cut
from relpos.distributed import ContextParallel, HeadParallel
from relpos.layers import EncoderBlock, KeyValueCache, MultiheadAttention
from relpos.positions import Compose, Rotary, Shaw, T5Bias, TransformerXL
from tests.distributed.cut import relative_error
from tests.distributed.test_context_parallel import LINES
from tests.distributed.test_head_parallel import compare, compare_gradients
from tests.ecosystem.schemes import Attention, inputs, made

# As a model of torch's styles has it: norms and residuals act on a share of the tokens.
PLAN = {
    "attention_norm": SequenceParallel(),
    "attention": HeadParallel(input_layouts=Shard(1), output_layouts=Shard(1)),
    "mlp_norm": SequenceParallel(),
    "mlp": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate()),
    "mlp.0": ColwiseParallel(),
    "mlp.2": RowwiseParallel(output_layouts=Shard(1)),
}


def _randn(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


def _perturbed(module: nn.Module) -> nn.Module:
    """What starts at 0 or 1 would hide a term that is left out."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return module


def _model(kv_heads: int) -> nn.Module:
    torch.manual_seed(0)
    positions = (Compose(Shaw(4, 3, 8), T5Bias(8, 8, 20)), TransformerXL(4, 8), Rotary(4))
    blocks = [
        EncoderBlock(MultiheadAttention(32, 8, position=x, num_kv_heads=kv_heads), hidden=32)
        for x in positions
    ]
    return _perturbed(nn.Sequential(*blocks).double())


def _mesh(size: int):
    return init_device_mesh("cpu", (size,), mesh_dim_names=("tp",))["tp"]


@pytest.mark.parametrize("kv_heads", [8, 4, 2, 1])
def test_a_model_of_cut_tokens_is_as_in_one_process(two, four, kv_heads: int):
    for pool in (two, four):
        pool.run(_check_model, kv_heads)


def _check_model(rank, size, kv_heads) -> None:
    whole, mesh = _model(kv_heads), _mesh(size)
    model = copy.deepcopy(whole)
    for block in model:
        parallelize_module(block, mesh, PLAN)
    x = _randn(3, 12, 32).requires_grad_()
    own = x.detach().chunk(size, 1)[rank].clone().requires_grad_()
    expected, found = whole(x), model(own)
    assert type(found) is Tensor
    assert relative_error(found, expected.chunk(size, 1)[rank]) <= 1e-12
    expected.sin().sum().backward()
    found.sin().sum().backward()
    assert x.grad is not None
    assert own.grad is not None
    assert relative_error(own.grad, x.grad.chunk(size, 1)[rank]) <= 1e-12
    compare_gradients(whole, model)


WHOLE, TOKENS = Replicate(), Shard(1)
CROSS = (TOKENS, WHOLE, WHOLE)


@pytest.mark.costly(10)
@pytest.mark.parametrize("lengths", [(13, 7), (8, 8), (1, 5)])
@pytest.mark.parametrize("given", ["plain", "DTensor"])
@pytest.mark.parametrize(
    ("layouts", "output"), [(TOKENS, TOKENS), (TOKENS, WHOLE), (WHOLE, TOKENS), (CROSS, TOKENS)]
)
def test_each_layout_of_inputs_and_output(two, layouts, output, given: str, lengths):
    two.run(_check_layouts, layouts, output, given, lengths)


def _cut_as(x: Tensor, placement: Placement, rank: int, size: int, axis: int = 1) -> Tensor:
    """This rank's part; ranks may have no tokens."""
    parts = [*x.detach().tensor_split(size, axis)] if isinstance(placement, Shard) else [x] * size
    return parts[rank].detach().clone().requires_grad_()


def _check_layouts(rank, size, layouts, output, given, lengths) -> None:
    torch.manual_seed(0)
    mesh, position = _mesh(size), Compose(Shaw(4, 3, 4), T5Bias(4))
    whole = _perturbed(MultiheadAttention(16, 4, position=position, kdim=6, vdim=6).double())
    style = HeadParallel(
        input_layouts=layouts, output_layouts=output, use_local_output=given == "plain"
    )
    layer = parallelize_module(copy.deepcopy(whole), mesh, style)
    query, memory = _randn(2, lengths[0], 16), _randn(2, lengths[1], 6, seed=2)
    mask = _randn(8, *lengths, seed=3)
    wholes = [x.requires_grad_() for x in (query, memory, mask)]
    of_query, of_key, _ = style.input_layouts
    own = [
        _cut_as(query, of_query, rank, size), _cut_as(memory, of_key, rank, size),
        mask.detach().clone().requires_grad_(),
    ]  # fmt: skip
    expected = whole(wholes[0], wholes[1], wholes[1], attn_mask=wholes[2])
    handed = own[:2]
    if given == "DTensor":
        handed = [
            DTensor.from_local(x, mesh, [placement], run_check=False)
            for x, placement in zip(handed, (of_query, of_key), strict=True)
        ]
    found = layer(handed[0], handed[1], handed[1], attn_mask=own[2])
    assert relative_error(found[1], expected[1]) <= 1e-12
    local = found[0]
    assert isinstance(local, DTensor) == (given == "DTensor")
    if isinstance(local, DTensor):
        assert local.placements == (output,)
        assert local.shape == expected[0].shape
        local = local.to_local()
    # As the query was cut, or where it was whole as torch cuts.
    parts = [expected[0]] * size
    if output == TOKENS:
        axis = {"dim": 1}
        parts = expected[0].tensor_split(size, **axis)
        if of_query == WHOLE:
            each = -(-lengths[0] // size)
            parts = expected[0].tensor_split([each], **axis)
    assert relative_error(local, parts[rank]) <= 1e-12
    expected[0].sin().sum().backward()
    local.sin().sum().backward()
    for x, y, placement in zip(own, wholes, (of_query, of_key, WHOLE), strict=True):
        assert x.grad is not None
        assert y.grad is not None
        assert relative_error(x.grad, _cut_as(y.grad, placement, rank, size)) <= 1e-12
    compare_gradients(whole, layer)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("single", [True, False])
def test_the_axis_of_tokens_is_that_of_the_layer(two, batch_first: bool, single: bool):
    two.run(_check_axis, batch_first, single)


def _check_axis(rank, size, batch_first, single) -> None:
    torch.manual_seed(0)
    axis = 1 if batch_first and not single else 0
    whole = MultiheadAttention(16, 4, position=Shaw(4, 3), batch_first=batch_first).double()
    shape = (6, 16) if single else (2, 6, 16) if batch_first else (6, 2, 16)
    x = _randn(*shape)
    own = _cut_as(x, Shard(axis), rank, size, axis)
    for dim in (axis, axis - len(shape)):
        style = HeadParallel(input_layouts=Shard(dim), output_layouts=Shard(dim))
        layer = parallelize_module(copy.deepcopy(whole), _mesh(size), style)
        found = layer(own, own, own)
        for one, other in zip(found, whole(x, x, x), strict=True):
            expected = other.chunk(size, axis)[rank] if other.shape == x.shape else other
            assert relative_error(one, expected) <= 1e-12
    wrong = HeadParallel(input_layouts=Shard(1 - axis))
    layer = parallelize_module(copy.deepcopy(whole), _mesh(size), wrong)
    with pytest.raises(ValueError, match=rf"query must be whole .* Shard\({axis}\), got S\("):
        layer(own, own, own)


@pytest.mark.costly(10)
@pytest.mark.parametrize("name", LINES)
def test_ranks_that_share_a_key_head_know_every_scheme(two, name: str):
    two.run(_check_shared, name)


def _check_shared(rank, size, name) -> None:
    whole = made(name, torch.float64)
    assert isinstance(whole, Attention)
    old = whole.attention
    torch.manual_seed(1)
    whole.attention = MultiheadAttention(
        old.embed_dim, old.num_heads, num_kv_heads=1, position=old.position, scale=old.scale,
        window=old.window, softcap=old.softcap,
    ).double()  # fmt: skip
    (x,) = inputs(name, 33, torch.float64)
    model = parallelize_module(copy.deepcopy(whole), _mesh(size), HeadParallel())
    compare(whole, model, x, x)


def test_a_step_of_adamw_with_fully_sharded_data_and_cut_tokens(four):
    four.run(_check_step)


def _check_step(rank, size) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    whole, model = _model(1), _model(1)
    for block in model:
        parallelize_module(block, mesh["tp"], PLAN)
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    x = _randn(4, 12, 32)
    own = x.chunk(2)[mesh.get_local_rank("dp")].chunk(2, 1)[mesh.get_local_rank("tp")]
    for one, given in ((whole, x), (model, own)):
        # Gradients that are 0 but for rounding (biases of keys): a small eps would blow them up.
        optimizer = torch.optim.AdamW(one.parameters(), lr=0.01, eps=1e-3)
        for _ in range(2):
            optimizer.zero_grad()
            # fully_shard averages over the two shares of the batch.
            (one(given).square().sum() * (1 if one is whole else 2)).backward()
            cut.clip_grad_norm_(one.parameters(), 5.0)
            optimizer.step()
    state = cut.full_state_dict(model)
    if rank == 0:
        assert state.keys() == whole.state_dict().keys()
        for name, expected in whole.state_dict().items():
            assert relative_error(state[name], expected) <= 1e-11, name


def test_tokens_cut_for_context_and_again_between_layers(four):
    four.run(_check_context)


def _check_context(rank, size) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("cp", "tp"))
    whole, model = _model(1), _model(1)
    for block in model:
        parallelize_module(block, mesh["tp"], PLAN)
    parallelize_module(model, mesh["cp"], ContextParallel())
    x = _randn(2, 16, 32)
    tp = mesh.get_local_rank("tp")
    expected, found = whole(x), model(cut.shard(x, mesh["cp"]).chunk(2, 1)[tp])
    assert relative_error(found, cut.shard(expected, mesh["cp"]).chunk(2, 1)[tp]) <= 1e-12
    expected.sin().sum().backward()
    found.sin().sum().backward()
    for parameter in model.parameters():
        grad = parameter.grad
        assert grad is not None
        local = grad.to_local() if isinstance(grad, DTensor) else grad
        distributed.all_reduce(local, group=mesh["cp"].get_group())
    compare_gradients(whole, model)


def test_caches_packed_rows_and_new_numbers(two):
    two.run(_check_options)


def _check_options(rank, size) -> None:
    torch.manual_seed(0)
    whole = MultiheadAttention(16, 4, position=Shaw(4, 3, 4), num_kv_heads=1)
    style = HeadParallel(input_layouts=Shard(1), output_layouts=Shard(1))
    layer = parallelize_module(copy.deepcopy(whole), _mesh(size), style)
    x = _randn(2, 10, 16).float()
    one, other = KeyValueCache(), KeyValueCache()
    for step in (x[:, :4], x[:, 4:]):
        options = {"need_weights": False, "is_causal": True}
        expected = whole(step, step, step, cache=one, **options)[0]
        own = step.chunk(size, 1)[rank]
        found = layer(own, own, own, cache=other, **options)[0]
        assert relative_error(found, expected.chunk(size, 1)[rank]) <= 1e-5
    packed = {"documents": torch.arange(10)[None] // 4, "need_weights": False}
    own = x.chunk(size, 1)[rank]
    expected = whole(x, x, x, **packed)[0]
    assert relative_error(layer(own, own, own, **packed)[0], expected.chunk(2, 1)[rank]) <= 1e-5
    torch.manual_seed(3)
    whole.reset_parameters()
    torch.manual_seed(3)
    layer.reset_parameters()
    found = layer(own, own, own, need_weights=False)[0]
    expected = whole(x, x, x, need_weights=False)[0]
    assert relative_error(found, expected.chunk(size, 1)[rank]) <= 1e-5


def test_key_heads_of_two_ranks_load_on_four(one, two, four, tmp_path):
    two.run(_save, str(tmp_path))
    for pool in (one, two, four):
        pool.run(_load, str(tmp_path))


def _heads_cut(model: nn.Module, size: int) -> nn.Module:
    return parallelize_module(model, _mesh(size), HeadParallel())


def _save(rank, size, folder) -> None:
    checkpoint.save(get_model_state_dict(_heads_cut(_model(2), size)), checkpoint_id=folder)


def _load(rank, size, folder) -> None:
    whole, x = _model(2), _randn(2, 9, 32)
    torch.manual_seed(1)
    model = _heads_cut(copy.deepcopy(whole), size)
    for layer in model.modules():
        if isinstance(layer, MultiheadAttention):
            layer.reset_parameters()
    assert relative_error(model(x), whole(x)) > 0.01
    state = get_model_state_dict(model)
    checkpoint.load(state, checkpoint_id=folder)
    set_model_state_dict(model, state)
    assert relative_error(model(x), whole(x)) <= 1e-12
    again = _heads_cut(_model(2), size)
    cut.load_full_state_dict(again, whole.state_dict())
    assert relative_error(again(x), whole(x)) <= 1e-12


@pytest.mark.costly(1)
@pytest.mark.parametrize("how", ["checkpoint", "aot_eager", "eager"])
def test_checkpoints_of_activations_and_compiled_models(two, how: str):
    two.run(_check_compiled, how)


def _check_compiled(rank, size, how) -> None:
    torch._dynamo.reset()
    model = _model(1)
    for block in model:
        parallelize_module(block, _mesh(size), PLAN)
    own = _cut_as(_randn(2, 12, 32), Shard(1), rank, size)

    def run(x: Tensor) -> Tensor:
        for block in model:
            x = activations.checkpoint(block, x, use_reentrant=False)
        return x

    found = run if how == "checkpoint" else torch.compile(model, backend=how)
    outputs = [one(own) for one in (model, found)]
    gradients = [torch.autograd.grad(x.sin().sum(), own)[0] for x in outputs]
    assert relative_error(outputs[1], outputs[0]) <= 1e-12
    assert relative_error(gradients[1], gradients[0]) <= 1e-12


@pytest.mark.parametrize("layout", [WHOLE, TOKENS])
def test_autocast_gives_what_one_device_gives(two, layout):
    two.run(_check_autocast, layout)


def _check_autocast(rank, size, layout) -> None:
    torch.manual_seed(0)
    whole = _perturbed(MultiheadAttention(16, 4, position=Shaw(4, 3)))
    style = HeadParallel(input_layouts=layout, output_layouts=layout)
    layer = parallelize_module(copy.deepcopy(whole), _mesh(size), style)
    x = _randn(2, 6, 16).float()
    own = _cut_as(x, layout, rank, size)
    with torch.autocast("cpu", torch.bfloat16):
        expected, found = whole(x, x, x)[0], layer(own, own, own)[0]
    assert found.dtype == expected.dtype == torch.bfloat16
    assert relative_error(found.float(), _cut_as(expected.float(), layout, rank, size)) <= 0.02


def test_dropout_around_cut_tokens_may_differ(two):
    two.run(_drop_out)


def _drop_out(rank, size) -> None:
    block = EncoderBlock(MultiheadAttention(32, 8), dropout=0.5)
    for style, is_refused in (
        (HeadParallel(), True),
        (HeadParallel(input_layouts=Shard(1)), True),
        (HeadParallel(input_layouts=Shard(1), output_layouts=Shard(1)), False),
    ):
        model = parallelize_module(copy.deepcopy(block), _mesh(size), style)
        torch.manual_seed(rank)
        x = torch.randn(2, 4, 32, generator=torch.Generator().manual_seed(0))
        if is_refused:
            with pytest.raises(ValueError, match="the state of torch's generator"):
                model(x)
        else:
            assert model(x).shape == x.shape


def test_what_is_refused_says_so(two):
    two.run(_refused)


def _refused(rank, size) -> None:
    mesh = _mesh(size)
    said = "input_layouts must be Replicate\\(\\) or Shard\\(axis of tokens\\), got "
    with pytest.raises(TypeError, match=said + "1"):
        HeadParallel(input_layouts=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=said + "P"):
        HeadParallel(input_layouts=Partial())
    with pytest.raises(ValueError, match=r"must be one placement, or three .* got 2"):
        HeadParallel(input_layouts=(TOKENS, TOKENS))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="output_layouts must be Replicate"):
        HeadParallel(output_layouts="tokens")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="use_local_output must be True or False, got 1"):
        HeadParallel(use_local_output=1)  # type: ignore[arg-type]
    x = torch.zeros(2, 6, 8)
    layer = parallelize_module(MultiheadAttention(8, 4), mesh, HeadParallel(output_layouts=WHOLE))
    for placement in (Partial(), Shard(2), Shard(0)):
        given = DTensor.from_local(x, mesh, [placement], run_check=False)
        with pytest.raises(ValueError, match=r"query must be whole on every rank, .* Shard\(1\)"):
            layer(given, given, given)
    other = init_device_mesh("cpu", (1, size), mesh_dim_names=("dp", "tp"))
    given = DTensor.from_local(x, other, [Replicate(), Replicate()], run_check=False)
    with pytest.raises(ValueError, match="query must be a DTensor over the mesh of HeadParallel"):
        layer(given, given, given)
    mask = DTensor.from_local(torch.zeros(6, 6), mesh, [Replicate()], run_check=False)
    with pytest.raises(TypeError, match="attn_mask must be a plain tensor, the same on every"):
        layer(x, x, x, attn_mask=mask)
    # What is whole here and cut there; sequences of a batch that differ.
    given = x if rank else DTensor.from_local(x, mesh, [Shard(1)], run_check=False)
    with pytest.raises(ValueError, match="query must be the same on every rank of the group"):
        layer(given, given, given)
    style = HeadParallel(input_layouts=Shard(1), output_layouts=Shard(1))
    layer = parallelize_module(MultiheadAttention(8, 4), mesh, style)
    with pytest.raises(ValueError, match="query must be the same on every rank of the group"):
        layer(x[: 1 + rank], x[: 1 + rank], x[: 1 + rank])


def test_key_heads_that_ranks_neither_share_nor_divide_are_refused(four):
    four.run(_refuse_three)


def _refuse_three(rank, size) -> None:
    layer = MultiheadAttention(24, 12, num_kv_heads=6)
    said = "num_kv_heads must be a multiple of the 4 ranks, or divide them, got 6"
    with pytest.raises(ValueError, match=said):
        parallelize_module(layer, _mesh(size), HeadParallel())


def test_a_rank_that_fails_leaves_all_caches_as_they_were(two):
    assert two.run(_failing_with_a_cache) == ["ValueError", "ExchangeError"]


def _failing_with_a_cache(rank, size) -> str:
    torch.manual_seed(0)
    layer = MultiheadAttention(16, 4, position=Shaw(4, 3)).double()
    HeadParallel()._apply(layer, init_device_mesh("cpu", (size,)))
    x, cache = _randn(1, 6, 16), KeyValueCache()
    options = {"cache": cache, "need_weights": False, "is_causal": True}

    def step(*tokens: int) -> Tensor:
        own = x[:, slice(*tokens)]
        return layer(own, own, own, **options)[0]

    with torch.no_grad():
        step(0, 3)
        with pytest.MonkeyPatch.context() as patch:
            if rank == 0:
                patch.setattr(Shaw, "forward", _raises)
            with pytest.raises((ValueError, cut.ExchangeError)) as failed:
                step(3, 6)
        assert cache.length == 3
        found = step(3, 6)
        options["cache"] = KeyValueCache()
        assert relative_error(found, step(0, 6)[:, 3:]) <= 1e-12
    return type(failed.value).__name__


def _raises(*_: object, **__: object) -> None:
    raise ValueError("no such scheme")


def test_a_dtensor_is_given_of_tokens_cut_as_dtensors_are(four):
    four.run(_uneven)


def _uneven(rank, size) -> None:
    mesh = init_device_mesh("cpu", (size,))
    style = HeadParallel(input_layouts=Shard(1), output_layouts=Shard(-2), use_local_output=False)
    layer = style._apply(MultiheadAttention(16, 4).double(), mesh)
    x = _randn(2, 10, 16)
    for lengths, refused in (((3, 3, 2, 2), True), ((3, 3, 3, 1), False)):
        own = x.split(list(lengths), 1)[rank]
        if refused:
            words = r"query must be cut as DTensors are .*, 3, 3, 3, 1 tokens .*, got 3, 3, 2, 2"
            with pytest.raises(ValueError, match=words):
                layer(own, own, own, need_weights=False)
        else:
            found = layer(own, own, own, need_weights=False)[0]
            assert found.placements == (Shard(1),)
            whole = HeadParallel()._apply(_same(layer), mesh)(x, x, x, need_weights=False)[0]
            assert relative_error(found.full_tensor(), whole) <= 1e-12


def _same(layer: nn.Module) -> MultiheadAttention:
    """A layer of one device with the weights of one that is cut."""
    made = MultiheadAttention(16, 4).double()
    cut.load_full_state_dict(made, cut.full_state_dict(layer), from_rank_0=True)
    return made


def test_what_has_no_such_axis_is_refused_in_words(two):
    two.run(_no_such_axis)


def _no_such_axis(rank, size) -> None:
    mesh = init_device_mesh("cpu", (size,))
    for layout in (Replicate(), Shard(1)):
        style = HeadParallel(input_layouts=layout)
        layer = style._apply(MultiheadAttention(16, 4).double(), mesh)
        scalar = torch.zeros((), dtype=torch.float64)
        with pytest.raises(ValueError, match=r"query must be \(b, i, e\) with e=16, got \(\)"):
            layer(scalar, scalar, scalar, need_weights=False)
    x = _randn(1, 4, 16)
    for dim in (4, -5):
        style = HeadParallel(output_layouts=Shard(dim))
        layer = style._apply(MultiheadAttention(16, 4).double(), mesh)
        with pytest.raises(ValueError, match=r"output must be whole .*, Shard\(1\), got S"):
            layer(x, x, x, need_weights=False)


def test_an_output_without_bias_lies_in_order_on_every_rank(two):
    assert two.run(_contiguous) == [True, True]


def _contiguous(rank, size) -> bool:
    style = HeadParallel(input_layouts=Shard(1), output_layouts=Shard(1))
    layer = style._apply(MultiheadAttention(16, 4, bias=False), init_device_mesh("cpu", (size,)))
    own = torch.randn(2, 5, 16).tensor_split(size, 1)[rank]
    return layer(own, own, own, need_weights=False)[0].is_contiguous()
