"""Copies, files, state dicts, dtypes and autocast of every scheme and layer."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path

import accelerate
import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.ao.quantization import quantize_dynamic
from torch.jit.frontend import NotSupportedError
from torch.nn.utils.parametrizations import spectral_norm
from torch.testing import assert_close
from transformers import PretrainedConfig, PreTrainedModel

from relpos.layers import DecoderBlock, MultiheadAttention
from relpos.positions import Huang, Position, Shaw, T5Bias, TransformerXL
from tests.ecosystem.schemes import SUBJECTS, inputs, made
from tests.quantized import KINDS, IntegerWeight, pack, unpacked
from tests.replicas import in_a_thread, replica

each_subject = pytest.mark.parametrize("name", SUBJECTS)


def through_a_file(module: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@each_subject
@pytest.mark.parametrize(
    "clone",
    [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x)), through_a_file],
    ids=["deepcopy", "pickle", "file"],
)
def test_copies_compute_the_same_and_share_nothing(
    name: str, clone: Callable[[nn.Module], nn.Module]
):
    module, given = made(name), inputs(name, 33)
    want = module(*given)
    other = clone(module)
    assert repr(other) == repr(module)
    assert torch.equal(other(*given), want)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert torch.equal(module(*given), want)


@each_subject
def test_weights_may_come_when_a_module_is_called_and_go_again(name: str):
    module, given = made(name), inputs(name, 33)
    with torch.no_grad():
        want = module(*given)
        accelerate.cpu_offload(module, execution_device=torch.device("cpu"))
        assert torch.equal(module(*given), want)


@each_subject
def test_a_replica_of_data_parallel_computes_and_learns_the_same(name: str):
    module, given = made(name), inputs(name, 33)
    want = module(*given)
    want.sum().backward()
    expected = [None if x.grad is None else x.grad.clone() for x in module.parameters()]
    module.zero_grad()
    got = in_a_thread(lambda: replica(module)(*given))
    assert torch.equal(got, want)
    got.sum().backward()
    for parameter, gradient in zip(module.parameters(), expected, strict=True):
        assert_close(parameter.grad, gradient)


@each_subject
@pytest.mark.parametrize("kind", KINDS)
def test_linear_modules_may_pack_their_weights(name: str, kind: type[IntegerWeight]):
    plain, packed, given = made(name), made(name), inputs(name, 33)
    unpacked(plain)
    pack(packed, kind)
    with torch.no_grad():
        assert_close(packed(*given), plain(*given), rtol=1e-5, atol=1e-6)


@each_subject
@pytest.mark.filterwarnings("ignore:.*deprecated.*")
def test_linear_modules_may_be_quantized_by_torch(name: str):
    module, given = made(name), inputs(name, 33)
    with torch.no_grad():
        want = module(*given)
        error = quantize_dynamic(module, {nn.Linear})(*given) - want
    assert bool(error.any()) == any(type(x) is nn.Linear for x in module.modules())
    assert float(error.norm()) < 0.1 * float(want.norm())


@each_subject
def test_a_state_dict_goes_through_a_file_of_weights_only(name: str):
    module, given = made(name), inputs(name, 33)
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    other = SUBJECTS[name].make().eval()
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(other(*given), module(*given))


def without_memory(name: str) -> nn.Module:
    with torch.device("meta"):
        return SUBJECTS[name].make().eval()


@each_subject
def test_memory_given_later_is_filled_by_a_state_dict(name: str):
    module, other, given = made(name), without_memory(name), inputs(name, 33)
    other.to_empty(device="cpu")
    with torch.no_grad():
        for numbers in (*other.parameters(), *other.buffers()):
            numbers.fill_(3)
    other.load_state_dict(module.state_dict())
    assert torch.equal(other(*given), module(*given))


@each_subject
def test_numbers_that_are_put_into_a_state_dict_are_a_whole_model(name: str):
    """As distributed checkpoints and `from_pretrained` load: nobody calls `load_state_dict`."""
    module, other, given = made(name), without_memory(name), inputs(name, 33)
    other.to_empty(device="cpu")
    saved = module.state_dict()
    with torch.no_grad():
        for numbers in (*other.parameters(), *other.buffers()):
            numbers.fill_(3)
        for key, numbers in other.state_dict().items():
            numbers.copy_(saved[key])
    assert torch.equal(other(*given), module(*given))


@each_subject
def test_an_assigned_state_dict_is_memory_enough(name: str):
    module, other, given = made(name), without_memory(name), inputs(name, 33)
    other.load_state_dict(module.state_dict(), assign=True)
    assert torch.equal(other(*given), module(*given))


class Config(PretrainedConfig):
    model_type = "one-relpos-module"


class Model(PreTrainedModel):
    """Somebody's model of transformers around a module of relpos."""

    config_class = Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.inner = SUBJECTS[config.subject].make()
        self.post_init()

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        return self.inner(*given)


@each_subject
def test_a_model_of_transformers_comes_back_from_its_folder(name: str, tmp_path: Path):
    model, given = Model(Config(subject=name)).eval(), inputs(name, 33)
    model.save_pretrained(tmp_path)
    assert torch.equal(Model.from_pretrained(tmp_path).eval()(*given), model(*given))


class ModelThatDraws(Model):
    """What docs/ecosystem.md says a model is to do with what a folder lacks."""

    def _init_weights(self, module: torch.nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, MultiheadAttention | Position):
            module.reset_parameters()


@pytest.mark.parametrize("scheme", [Shaw(4, 3), Huang(4, 5), T5Bias(4), TransformerXL(4, 4)])
def test_tables_that_a_folder_lacks_are_drawn(scheme: Position, tmp_path: Path):
    class Own(ModelThatDraws):
        def __init__(self, config: Config) -> None:
            PreTrainedModel.__init__(self, config)
            self.inner = MultiheadAttention(16, 4, position=copy.deepcopy(scheme))
            self.post_init()

    saved = MultiheadAttention(16, 4)  # without positions
    model = Own(Config(subject="none"))
    model.inner.load_state_dict(saved.state_dict(), strict=False)
    kept = {f"inner.{name}": x for name, x in saved.state_dict().items()}
    model.save_pretrained(tmp_path, state_dict=kept)
    found = Own.from_pretrained(tmp_path).inner
    for name, x in saved.state_dict().items():
        assert torch.equal(found.state_dict()[name], x), name
    for name, x in found.position.named_parameters():
        fresh = scheme.get_parameter(name)
        assert (x == 0).all() == (fresh == 0).all(), name
        assert x.abs().max() <= 4 * fresh.abs().max(), name


@each_subject
def test_a_module_is_built_of_tensors_that_are_none(name: str):
    with FakeTensorMode():
        module = SUBJECTS[name].make()
    assert all(isinstance(x, FakeTensor) for x in module.parameters())


@each_subject
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_a_module_moves_to_another_dtype(name: str, dtype: torch.dtype):
    exact = made(name, torch.float64)(*inputs(name, 5, torch.float64))
    module = made(name).to(dtype)
    output = module(*inputs(name, 5, dtype))
    assert output.dtype == dtype
    if dtype == torch.float64:
        # Drawn in float32 like the other's, so that only the sums differ.
        assert_close(output, exact, rtol=1e-6, atol=1e-6)
    else:
        assert (output - exact).abs().max() < 16 * torch.finfo(dtype).eps * exact.abs().max()


@each_subject
def test_autocast_is_near_the_exact_numbers(name: str):
    module, given = made(name), inputs(name, 33)
    leaves = [x.requires_grad_() for x in given]
    with torch.autocast("cpu", torch.bfloat16):
        output = module(*leaves)
    exact = module(*given)
    assert (output - exact).abs().max() < 16 * torch.finfo(torch.bfloat16).eps * exact.abs().max()
    output.float().square().sum().backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in leaves)
    for label, parameter in module.named_parameters():
        assert parameter.grad is None or parameter.grad.dtype == torch.float32, label


def test_projections_take_lora_by_name():
    """PEFT wraps the attention of a block for it."""
    torch.manual_seed(0)
    attention, cross = (MultiheadAttention(16, 2, position=Shaw(8, 3)) for _ in range(2))
    model = nn.ModuleDict({"block": DecoderBlock(attention, cross=cross)})
    x, targets = torch.randn(1, 9, 16), ["attention.in_proj_weight", "cross.in_proj_weight"]
    want = model["block"](x, memory=x)
    config = LoraConfig(target_modules=[], target_parameters=targets, init_lora_weights=False)
    block = get_peft_model(model, config).base_model.model["block"]
    output = block(x, memory=x)
    assert (output - want).abs().max() > 1e-3
    output.sum().backward()
    learns = {name for name, x in block.named_parameters() if x.grad is not None}
    assert learns
    assert all("lora" in name for name in learns)


@pytest.mark.parametrize("table", ["keys", "values"])
def test_parametrizations_of_tables_of_vectors_are_refused_by_torch(table: str):
    position = Shaw(8, max_distance=3)
    with pytest.raises(KeyError, match=f"attribute '{table}' already exists"):
        spectral_norm(position, table)
    # ModuleDict has methods of these names; it has none that is called bias.
    spectral_norm(T5Bias(2), "bias")


@pytest.mark.parametrize(
    ("trace", "error", "words"),
    [
        (torch.fx.symbolic_trace, TypeError, "got Proxy"),
        (torch.jit.script, NotSupportedError, "keyword-only arguments"),
    ],
)
@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.no_typecheck
def test_tracers_that_read_code_are_refused(
    trace: Callable[[nn.Module], nn.Module], error: type[Exception], words: str
):
    with pytest.raises(error, match=words):
        trace(made("EncoderBlock"))
