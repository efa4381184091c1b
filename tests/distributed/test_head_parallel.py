"""Layers whose heads are cut among ranks: every scheme of the registry, in float64."""

from __future__ import annotations

import copy

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, distributed, nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import relpos.distributed as cut
from relpos import OffsetTable, ShapeError, Terms
from relpos.distributed import (
    ContextParallel,
    HeadParallel,
)
from relpos.layers import DecoderBlock, EncoderBlock, KeyValueCache, MultiheadAttention
from relpos.positions import Alibi, Compose, Huang, Shaw, T5Bias, TransformerXL
from tests.distributed.cut import relative_error
from tests.distributed.test_context_parallel import LINES
from tests.ecosystem.schemes import inputs, made


@pytest.mark.parametrize("name", LINES)
def test_a_layer_is_as_in_one_process(two, name: str):
    two.run(_check_layer, name)


def _check_layer(rank, size, name) -> None:
    mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("tp",))
    whole = made(name, torch.float64)
    (x,) = inputs(name, 33, torch.float64)
    parallel = parallelize_module(copy.deepcopy(whole), mesh["tp"], HeadParallel())
    compare(whole, parallel, x, x)


def compare(whole: nn.Module, parallel: nn.Module, x: Tensor, local: Tensor) -> None:
    """Output, and the gradients of input and parameters."""
    x, local = x.detach().requires_grad_(), local.detach().clone().requires_grad_()
    expected, found = whole(x), parallel(local)
    assert relative_error(found, expected) <= 1e-12
    weights = torch.linspace(-1, 1, expected.numel(), dtype=expected.dtype).view(expected.shape)
    (expected * weights).sum().backward()
    (found * weights).sum().backward()
    assert x.grad is not None
    assert local.grad is not None
    assert relative_error(local.grad, x.grad) <= 1e-12
    compare_gradients(whole, parallel)


def compare_gradients(whole: nn.Module, parallel: nn.Module) -> None:
    """Those of each parameter; of a cut layer's projections by the names of one device."""
    found = {}
    for name, parameter in parallel.named_parameters():
        assert parameter.grad is not None, name
        grad = parameter.grad
        found[name] = grad.full_tensor() if isinstance(grad, DTensor) else grad
    for name, parameter in whole.named_parameters():
        assert parameter.grad is not None, name
        if "in_proj" in name:
            parts = [found[name.replace("in_proj", f"{part}_proj")] for part in "qkv"]
            found[name] = torch.cat(parts)
        assert relative_error(found[name], parameter.grad) <= 1e-12, name


class _Model(nn.Module):
    """Two blocks with grouped keys: tables of each head, and what cannot be cut."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            DecoderBlock(
                MultiheadAttention(32, 8, position=position, num_kv_heads=4, dropout=0.0), hidden=32
            )
            for position in (
                Compose(Shaw(4, 3, 8), T5Bias(8, 8, 20)),
                Compose(TransformerXL(4, 8), Alibi(8)),
                Huang(4, 16),
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


PLAN = {"attention": HeadParallel(), "mlp.0": ColwiseParallel(), "mlp.2": RowwiseParallel()}


def example_model() -> _Model:
    torch.manual_seed(0)
    model = _Model().double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def cut_heads(model: _Model, mesh: DeviceMesh) -> _Model:
    for block in model.blocks:
        parallelize_module(block, mesh, PLAN)
    return model


def example_input() -> Tensor:
    return torch.randn(4, 16, 32, generator=torch.Generator().manual_seed(1)).double()


def test_a_step_of_adamw_with_fully_sharded_data(four):
    four.run(_check_step)


def _check_step(rank, size) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    whole, x = example_model(), example_input()
    model = cut_heads(example_model(), mesh["tp"])
    place = cut.table_placement(mesh["dp"])
    for block in model.blocks:
        fully_shard(block, mesh=mesh["dp"], shard_placement_fn=place)
    fully_shard(model, mesh=mesh["dp"], shard_placement_fn=place)
    own = x.chunk(2)[mesh.get_local_rank("dp")]
    losses = []
    for one, given in ((whole, x), (model, own)):
        # Gradients that are 0 but for rounding (biases of keys): a small eps would blow them up.
        optimizer = torch.optim.AdamW(one.parameters(), lr=0.01, eps=1e-3)
        for _ in range(2):
            optimizer.zero_grad()
            loss = one(given).square().mean()
            loss.backward()
            optimizer.step()
        losses.append(loss.detach())
    distributed.all_reduce(losses[1], group=mesh["dp"].get_group())
    assert abs(losses[1] / 2 - losses[0]) <= 1e-12
    state = cut.full_state_dict(model)
    if rank == 0:
        assert state.keys() == whole.state_dict().keys()
        for name, expected in whole.state_dict().items():
            assert relative_error(state[name], expected) <= 1e-11, name
    # Tables of each head are cut along them, shared ones where fully_shard can cut.
    tables = {name: x for name, x in model.named_parameters() if "position" in name}
    keys = tables["blocks.0.attention.position.positions.0.keys"]
    assert keys.to_local().shape == (2, 7, 4)
    assert tables["blocks.2.attention.position.keys"].to_local().shape == (1, 8, 4)


def test_context_and_heads_together(four):
    four.run(_check_context)


def _check_context(rank, size) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("cp", "tp"))
    whole, x = example_model(), example_input()
    model = cut_heads(example_model(), mesh["tp"])
    parallelize_module(model, mesh["cp"], ContextParallel())
    expected, found = whole(x), model(cut.shard(x, mesh["cp"]))
    assert relative_error(found, cut.shard(expected, mesh["cp"])) <= 1e-12
    expected.square().sum().backward()
    found.square().sum().backward()
    for parameter in model.parameters():
        grad = parameter.grad
        assert grad is not None
        local = grad.to_local() if isinstance(grad, DTensor) else grad
        distributed.all_reduce(local, group=mesh["cp"].get_group())
    compare_gradients(whole, model)


def test_checkpoints_of_two_ranks_load_on_one_and_four(one, two, four, tmp_path):
    two.run(_save, str(tmp_path))
    for pool in (one, two, four):
        pool.run(_load, str(tmp_path))


def _save(rank, size, folder) -> None:
    mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("tp",))
    model = cut_heads(example_model(), mesh["tp"])
    checkpoint.save(get_model_state_dict(model), checkpoint_id=folder)
    state = cut.full_state_dict(model)
    if rank == 0:
        save_file(state, f"{folder}/model.safetensors")


def _load(rank, size, folder) -> None:
    whole = example_model()
    # Of all ranks, of which two may be one each.
    groups = {1: [(1,)], 2: [(2,), (2, 1)], 4: [(4,), (2, 2)]}[size]
    for shape in groups:
        names = ("other", "tp")[-len(shape) :]
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        torch.manual_seed(1)
        model = cut_heads(_Model().double(), mesh["tp"])
        state = get_model_state_dict(model)
        checkpoint.load(state, checkpoint_id=folder)
        set_model_state_dict(model, state)
        assert relative_error(model(example_input()), whole(example_input())) <= 1e-12
    # The export is the state of one device, and loads there and here.
    exported = load_file(f"{folder}/model.safetensors")
    plain = _Model().double()
    plain.load_state_dict(exported)
    assert relative_error(plain(example_input()), whole(example_input())) <= 1e-12
    model = cut_heads(_Model().double(), mesh["tp"])
    cut.load_full_state_dict(model, exported)
    assert relative_error(model(example_input()), whole(example_input())) <= 1e-12


def test_masks_weights_caches_and_dropout(two):
    two.run(_check_options)


def _check_options(rank, size) -> None:
    mesh = init_device_mesh("cpu", (size,))
    torch.manual_seed(0)
    whole = MultiheadAttention(16, 4, dropout=0.4, position=Shaw(4, 3, 4))
    layer = parallelize_module(copy.deepcopy(whole), mesh, HeadParallel())
    x = torch.randn(2, 9, 16, generator=torch.Generator().manual_seed(1))
    each = torch.rand(8, 9, 9, generator=torch.Generator().manual_seed(2)) > 0.7
    with torch.no_grad():
        whole.eval(), layer.eval()
        for mask in (each, each[0]):
            expected, found = whole(x, x, x, attn_mask=mask), layer(x, x, x, attn_mask=mask)
            for one, other in zip(expected, found, strict=True):
                assert relative_error(other, one) <= 1e-5
        one, other = KeyValueCache(), KeyValueCache()
        for step in (x[:, :5], x[:, 5:]):
            options = {"need_weights": False, "is_causal": True}
            expected = whole(step, step, step, cache=one, **options)[0]
            found = layer(step, step, step, cache=other, **options)[0]
            assert relative_error(found, expected) <= 1e-5
        with pytest.raises(ValueError, match="average_attn_weights must be True where heads are"):
            layer(x, x, x, average_attn_weights=False)
        whole.train(), layer.train()
        torch.manual_seed(5)
        expected = whole(x, x, x, need_weights=False)[0]
        torch.manual_seed(5)
        found = layer(x, x, x, need_weights=False)[0]
        assert relative_error(found, expected) <= 1e-5
        # Across, from one packed row to another.
        documents = {
            "documents": torch.arange(9)[None] // 4, "query_documents": torch.arange(5)[None] // 2
        }  # fmt: skip
        for mode in (True, False):
            torch.manual_seed(6)
            expected = whole.train(mode)(x[:, :5], x, x, **documents)
            torch.manual_seed(6)
            found = layer.train(mode)(x[:, :5], x, x, **documents)
            for one, other in zip(expected, found, strict=True):
                assert relative_error(other, one) <= 1e-5


def test_what_is_refused_says_so(two):
    two.run(_refused)


def _refused(rank, size) -> None:
    mesh = init_device_mesh("cpu", (size,))
    with pytest.raises(ValueError, match="num_heads must be a multiple of the 2 ranks, got 3"):
        parallelize_module(MultiheadAttention(9, 3), mesh, HeadParallel())
    with pytest.raises(ValueError, match=r"HeadParallel: module must have a relpos.layers"):
        parallelize_module(nn.Linear(3, 3), mesh, HeadParallel())


def test_wrong_calls_of_a_cut_layer_are_refused_in_words(two):
    two.run(_wrong_calls)


def _wrong_calls(rank, size) -> None:
    mesh = init_device_mesh("cpu", (size,))
    layer = parallelize_module(MultiheadAttention(8, 4), mesh, HeadParallel())
    x = torch.zeros(2, 5, 8)
    with pytest.raises(ValueError, match="HeadParallel: module must have layers of all heads, got"):
        parallelize_module(nn.Sequential(layer), mesh, HeadParallel())
    with pytest.raises(
        ShapeError, match=r"attn_mask must be \(i, j\) or \(b \* h, i, j\) with b=2 and all"
    ):
        layer(x, x, x, attn_mask=torch.zeros(2 * 2 + 1, 5, 5))
    with pytest.raises(ShapeError, match=r"attn_mask must be \(i, j\) or \(b \* h, i, j\)"):
        layer(x, x, x, attn_mask=torch.zeros(4, 5, 5))
    with pytest.raises(TypeError, match="MultiheadAttention: query must be a tensor, got list"):
        layer([1], x, x)
    with pytest.raises(TypeError, match="attn_mask must be a tensor, got list"):
        layer(x, x, x, attn_mask=[1])


def test_projections_that_are_shared_are_refused(two):
    two.run(_shared_projections)


def _shared_projections(rank, size) -> None:
    mesh = init_device_mesh("cpu", (size,))
    layers = [MultiheadAttention(8, 4), MultiheadAttention(8, 4)]
    layers[1].in_proj_weight = layers[0].in_proj_weight
    with pytest.raises(ValueError, match=r"1.in_proj_weight must be a parameter of its own, got"):
        parallelize_module(nn.Sequential(*layers), mesh, HeadParallel())
    assert all(type(layer) is MultiheadAttention for layer in layers)
    linear = nn.Linear(8, 8)
    layers[0].out_proj.weight = linear.weight
    with pytest.raises(ValueError, match=r"1.out_proj.weight must be .*, got that of 0.weight"):
        parallelize_module(nn.Sequential(linear, layers[0]), mesh, HeadParallel())
    # A scheme may be that of several layers.
    shared = T5Bias(4)
    model = nn.Sequential(*(MultiheadAttention(8, 4, position=shared) for _ in range(2)))
    parallelize_module(model, mesh, HeadParallel())
    # Also where they are cut one by one.
    shared = T5Bias(4)
    model = nn.Sequential(*(MultiheadAttention(8, 4, position=shared) for _ in range(2)))
    parallelize_module(model, mesh, {"0": HeadParallel(), "1": HeadParallel()})
    x = torch.zeros(1, 5, 8)
    for layer in model:
        layer(x, x, x)
    # A table may not, but among schemes that cut it alike.
    layers = [MultiheadAttention(8, 4, position=each) for each in (T5Bias(4), _Tied())]
    layers[1].position.left = layers[0].position.bias
    embedding = nn.Embedding(4, 32)
    embedding.weight = layers[0].position.bias
    for other, name in ((layers[1], "position.left"), (embedding, "weight")):
        said = f"1.{name} must be a parameter of its own, got that of 0.position.bias"
        with pytest.raises(ValueError, match=said):
            parallelize_module(nn.Sequential(layers[0], other), mesh, HeadParallel())


def test_parameters_are_drawn_anew_as_on_one_device(four):
    four.run(_drawn_anew)


def _drawn_anew(rank, size) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    for given in ({}, {"kdim": 6, "vdim": 4}, {"bias": False}, {"num_kv_heads": 2}):
        whole = MultiheadAttention(8, 4, **given)
        with torch.device("meta"):
            layer = MultiheadAttention(8, 4, **given)
        parallelize_module(layer, mesh["tp"], HeadParallel())
        fully_shard(layer, mesh=mesh["dp"])
        layer.to_empty(device="cpu")
        for one in (whole, layer):
            torch.manual_seed(rank)
            one.reset_parameters()
        state = cut.full_state_dict(layer)
        for name, x in whole.state_dict().items() if rank == 0 else ():
            # That of the output is drawn when its module is made.
            assert name == "out_proj.weight" or torch.equal(state[name], x), name


@pytest.mark.parametrize("norm_type", [2.0, 1.0, torch.inf])
def test_gradients_are_clipped_by_the_norm_of_all(four, norm_type: float):
    four.run(_clipped, norm_type)


def _clipped(rank, size, norm_type) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    whole, x = example_model(), example_input()
    whole(x).square().mean().backward()
    wanted = nn.utils.clip_grad_norm_(whole.parameters(), 0.1, norm_type)
    for sharded in (False, True):
        model = cut_heads(example_model(), mesh["tp"])
        own = x
        if sharded:
            for block in model.blocks:
                fully_shard(block, mesh=mesh["dp"])
            fully_shard(model, mesh=mesh["dp"])
            own = x.chunk(2)[mesh.get_local_rank("dp")]
        model(own).square().mean().backward()
        found = cut.clip_grad_norm_(model.parameters(), 0.1, norm_type)
        assert abs(found - wanted) <= 1e-12 * wanted
        expected = dict(whole.named_parameters())
        for name, parameter in model.named_parameters():
            if name in expected:  # not a projection, which has another name here
                gradient = parameter.grad
                full = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
                assert relative_error(full, expected[name].grad) <= 1e-11, (sharded, name)
    model = nn.Linear(2, 2)
    model(torch.full((1, 2), torch.inf)).sum().backward()
    with pytest.raises(RuntimeError, match="gradients must be finite, got inf"):
        cut.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    assert not cut.clip_grad_norm_(model.weight, 1.0).isfinite()
    assert cut.clip_grad_norm_([], 1.0) == 0
    assert not cut.clip_grad_norm_(model.weight, 1.0, "inf", foreach=False).isfinite()
    with pytest.raises(ValueError, match=r"norm_type must be above 0, got 'two'"):
        cut.clip_grad_norm_([], 1.0, "two")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_gradients_of_16_bits_are_clipped_where_some_ranks_have_none(four, dtype: torch.dtype):
    four.run(_clipped_in_half, dtype)


def _clipped_in_half(rank, size, dtype) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    # The tables, (1, r, d), are the only ones of their placements, and whole on one rank.
    block = EncoderBlock(MultiheadAttention(8, 2, position=Shaw(4, 3), bias=False)).to(dtype)
    parallelize_module(block, mesh["tp"], HeadParallel())
    fully_shard(block, mesh=mesh["dp"])
    block(torch.ones(1, 5, 8, dtype=dtype)).sum().backward()
    for parameter in block.parameters():
        # Of which the square of the norm is no number of 16 bits.
        parameter.grad.fill_(150)
    numbers = sum(parameter.numel() for parameter in block.parameters())
    found = cut.clip_grad_norm_(block.parameters(), 1.0)
    assert abs(found / (150 * numbers**0.5) - 1) <= 0.02
    gradients = [parameter.grad.full_tensor().double() for parameter in block.parameters()]
    clipped = torch.cat([gradient.flatten() for gradient in gradients]).norm()
    assert abs(clipped - 1) <= 0.02


def test_what_is_dropped_around_the_layers_is_the_same_on_every_rank(two):
    two.run(_dropped_around)


def _dropped_around(rank, size) -> None:
    torch.manual_seed(0)
    block = EncoderBlock(MultiheadAttention(8, 4, dropout=0.5), dropout=0.5)
    parallelize_module(block, init_device_mesh("cpu", (size,)), HeadParallel())
    x = torch.randn(1, 5, 8)
    found = [torch.empty(1, 5, 8) for _ in range(size)]
    distributed.all_gather(found, block(x).detach())
    assert torch.equal(*found)
    torch.manual_seed(rank)
    with pytest.raises(ValueError, match=r"torch's generator.* must be the same on every rank"):
        block(x)
    block.eval()(x)
    block.train()
    block.dropout.p = 0.0  # of the layer's weights each rank draws its own
    block(x)


def test_tables_that_layers_share_stay_one(two):
    two.run(_shared_tables)


def _shared_tables(rank, size) -> None:
    torch.manual_seed(0)
    whole = nn.ModuleList(MultiheadAttention(8, 4, position=T5Bias(4)) for _ in range(2)).double()
    whole[1].position.bias = whole[0].position.bias
    mesh = init_device_mesh("cpu", (size,))
    model = parallelize_module(copy.deepcopy(whole), mesh, HeadParallel())
    for one in (whole, model):
        x = torch.randn(2, 9, 8, generator=torch.Generator().manual_seed(1)).double()
        for layer in one:
            x = layer(x, x, x, need_weights=False)[0]
        x.square().sum().backward()
    assert model[0].position.bias is model[1].position.bias
    found = model[0].position.bias.grad.full_tensor()
    assert relative_error(found, whole[0].position.bias.grad) <= 1e-12


def test_checkpoints_of_fully_sharded_data_load_on_one_two_and_four(two, four, tmp_path):
    two.run(_save_sharded, str(tmp_path))
    for pool in (two, four):
        pool.run(_load_sharded, str(tmp_path))


def _sharded(size: int) -> tuple[nn.Module, torch.optim.Optimizer, DeviceMesh]:
    """A model of which ranks have sequences and weights, that has made a step."""
    mesh = init_device_mesh("cpu", (size,))
    torch.manual_seed(0)
    model = _Model().double()
    parallelize_module(model, mesh, ContextParallel())
    fully_shard(model, mesh=mesh, shard_placement_fn=cut.table_placement(mesh))
    return model, _momentum(model), mesh


def _momentum(model: nn.Module) -> torch.optim.Optimizer:
    # Not Adam, which makes large numbers of the rounding in a gradient that is 0.
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, mesh: DeviceMesh) -> None:
    optimizer.zero_grad()
    (model(cut.shard(example_input(), mesh)).square().sum() * mesh.size() / 64).backward()
    optimizer.step()


def _save_sharded(rank, size, folder) -> None:
    model, optimizer, mesh = _sharded(size)
    _step(model, optimizer, mesh)
    state, of_optimizer = get_state_dict(model, optimizer)
    checkpoint.save({"model": state, "optimizer": of_optimizer}, checkpoint_id=folder)


def _load_sharded(rank, size, folder) -> None:
    # Two steps of one process, and one after loading what ranks had after theirs.
    torch.manual_seed(0)
    whole = _Model().double()
    optimizer = _momentum(whole)
    for _ in range(2):
        optimizer.zero_grad()
        (whole(example_input()).square().sum() / 64).backward()
        optimizer.step()
    models = [_sharded(size)]
    if size == 2:
        alone = _Model().double()
        models.append((alone, _momentum(alone), None))
    for model, of_model, mesh in models:
        state, of_optimizer = get_state_dict(model, of_model)
        given = {"model": state, "optimizer": of_optimizer}
        checkpoint.load(given, checkpoint_id=folder)
        set_state_dict(
            model, of_model, model_state_dict=given["model"],
            optim_state_dict=given["optimizer"],
        )  # fmt: skip
        if mesh is None:
            of_model.zero_grad()
            (model(example_input()).square().sum() / 64).backward()
            of_model.step()
        else:
            _step(model, of_model, mesh)
        named = dict(model.named_parameters())
        for name, expected in whole.named_parameters():
            found = named[name]
            full = found.full_tensor() if isinstance(found, DTensor) else found
            assert relative_error(full, expected) <= 1e-11, name


def test_tokens_and_heads_over_the_same_ranks_are_refused(two):
    two.run(_over_the_same_ranks)


def _over_the_same_ranks(rank, size) -> None:
    mesh = init_device_mesh("cpu", (size,))
    of_heads = parallelize_module(MultiheadAttention(8, 4), mesh, HeadParallel())
    with pytest.raises(ValueError, match="ContextParallel: group must be another dimension of the"):
        parallelize_module(of_heads, mesh, ContextParallel())
    of_tokens = parallelize_module(MultiheadAttention(8, 4), mesh, ContextParallel())
    with pytest.raises(ValueError, match="HeadParallel: device_mesh must be another dimension of"):
        parallelize_module(of_tokens, mesh, HeadParallel())


def test_a_learned_mask_gets_the_gradient_of_all_heads(two):
    two.run(_learned_masks)


def _learned_masks(rank, size) -> None:
    torch.manual_seed(0)
    whole = MultiheadAttention(8, 4).double()
    layer = parallelize_module(
        copy.deepcopy(whole), init_device_mesh("cpu", (size,)), HeadParallel()
    )
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(2, 5, 8, generator=draw).double()
    for name, shape in (
        ("attn_mask", (5, 5)), ("attn_mask", (8, 5, 5)), ("key_padding_mask", (2, 5))
    ):  # fmt: skip
        mask = torch.randn(*shape, generator=draw).double().requires_grad_()
        gradients = [
            torch.autograd.grad(
                one(x, x, x, need_weights=False, **{name: mask})[0].square().sum(), mask
            )[0]
            for one in (whole, layer)
        ]
        assert relative_error(gradients[1], gradients[0]) <= 1e-12


@pytest.mark.parametrize("method", ["heads", "gather", "ring"])
def test_dropout_of_tokens_and_heads_together_is_that_of_one_device(four, method: str):
    four.run(_dropout_of_both, method)


def _dropout_of_both(rank, size, method) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("cp", "tp"))
    torch.manual_seed(0)
    position = Huang(4, max_length=8)
    whole = MultiheadAttention(32, 8, dropout=0.3, position=position, num_kv_heads=4)
    layer = parallelize_module(copy.deepcopy(whole), mesh["tp"], HeadParallel())
    parallelize_module(layer, mesh["cp"], ContextParallel(method=method))
    x = torch.randn(2, 13, 32)
    local = cut.shard(x, mesh["cp"]).requires_grad_()
    x.requires_grad_()
    found = []
    for one, given in ((whole, x), (layer, local)):
        torch.manual_seed(7)
        found.append(one(given, given, given, need_weights=False, is_causal=True)[0])
    assert relative_error(found[1], cut.shard(found[0], mesh["cp"])) <= 1e-5
    assert relative_error(found[1], cut.shard(whole.eval()(x, x, x, is_causal=True)[0],
                                              mesh["cp"])) > 0.1  # fmt: skip
    for output in found:
        output.square().sum().backward()
    assert x.grad is not None
    assert local.grad is not None
    assert relative_error(local.grad, cut.shard(x.grad, mesh["cp"])) <= 1e-5


class _Tied(nn.Module):
    """A scheme with one table under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Parameter(torch.linspace(-1, 1, 36).view(4, 9))
        self.right = self.left

    def forward(self, q: Tensor, k: Tensor):
        """Both."""
        return q, k, Terms(bias=OffsetTable(self.left + self.right.sin(), first=-4))


@pytest.mark.parametrize("tied", ["parameter", "module"])
def test_what_has_two_names_stays_one(two, tied: str):
    two.run(_two_names, tied)


def _two_names(rank, size, tied) -> None:
    torch.manual_seed(0)
    position = _Tied() if tied == "parameter" else Compose(*[T5Bias(4)] * 2)
    torch.nn.init.normal_(next(position.parameters()))
    whole = MultiheadAttention(8, 4, position=position).double()
    mesh = init_device_mesh("cpu", (size,))
    layer = parallelize_module(copy.deepcopy(whole), mesh, HeadParallel())
    x = torch.randn(2, 9, 8, generator=torch.Generator().manual_seed(1)).double()
    for _ in range(2):
        for one in (whole, layer):
            one.zero_grad()
            one(x, x, x, need_weights=False)[0].square().sum().backward()
        ((name, expected),) = whole.position.named_parameters()
        ((same, found),) = layer.position.named_parameters()
        assert name == same
        assert isinstance(found, nn.Parameter)
        assert isinstance(found.grad, DTensor)
        assert relative_error(found.grad.full_tensor(), expected.grad) <= 1e-12
