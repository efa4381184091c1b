"""NeMo's Conformer beside its adapted copy: streams, contexts, masks, other attentions."""

from __future__ import annotations

import copy
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.utilities.imports import _OMEGACONF_AVAILABLE
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization
from transformers.utils import import_utils

from relpos.adapters import Adapted, adapt, register, restore
from tests.apart import import_apart
from tests.factories import normal

from .models.case import draw
from .models.nemo_models import WIDTH, Frames
from .results import original_and_adapted

pytestmark = pytest.mark.no_typecheck


def encoder(**settings: Any) -> Any:
    torch.manual_seed(0)
    model = Frames(**settings)
    draw(model)
    return model.encoder.double().eval()


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11)


def stream(model: Any, features: Tensor, *, chunk: int, cache: int) -> Tensor:
    """The frames of a stream, encoded chunk by chunk."""
    config = model.streaming_cfg
    config.last_channel_cache_size, config.cache_drop_size = cache, 0
    config.drop_extra_pre_encoded = 0
    batch = len(features)
    channels = features.new_zeros(2, batch, cache, 32)
    times = features.new_zeros(2, batch, 32, 4)
    count, found = torch.zeros(batch, dtype=torch.int64), []
    for piece in features.split(chunk, 2):
        output, _, channels, times, count = model(
            audio_signal=piece, length=torch.full((batch,), piece.shape[2]),
            cache_last_channel=channels, cache_last_time=times, cache_last_channel_len=count,
        )  # fmt: skip
        found.append(output)
    return torch.cat(found, 2)


CAUSAL = {"conv_context_size": "causal", "conv_norm_type": "layer_norm"}


@pytest.mark.parametrize(
    ("style", "sizes", "cache"),
    [("chunked_limited", [8, 3], 8), ("chunked_limited", [-1, 3], 40), ("regular", [8, 0], 8)],
)
def test_a_stream_equals_the_originals(style: str, sizes: list[int], cache: int):
    models = original_and_adapted(
        encoder(att_context_style=style, att_context_size=sizes, **CAUSAL)
    )
    features = normal(2, WIDTH, 36)
    theirs, ours = (stream(model, features, chunk=4, cache=cache) for model in models)
    assert_same(ours, theirs)
    whole = models[1](audio_signal=features, length=None)[0]
    if style == "chunked_limited":
        assert_same(ours, whole)


@pytest.mark.parametrize("sizes", [[4, 3, 2], [-1, 4, 0], [0, 5, 7], [-1, -1, -1]])
def test_chunks_with_a_context_to_their_right_equal_the_originals(sizes: list[int]):
    theirs, ours = original_and_adapted(encoder(att_context_style="chunked_limited_with_rc"))
    features, length = normal(2, WIDTH, 30), torch.tensor([30, 21])
    found = []
    for model in (theirs, ours):
        model.att_context_size = sizes
        found.append(model(audio_signal=features, length=length)[0])
    for n, real in enumerate(length):
        assert_same(found[1][n, :, :real], found[0][n, :, :real])


def test_an_attention_takes_a_mask_of_all_pairs():
    theirs, ours = original_and_adapted(encoder().layers[0].self_attn)
    x, positions = normal(2, 9, 32), normal(1, 17, 32)
    mask = torch.rand(2, 9, 9) > 0.6
    mask[1, 3] = True  # a query without any key
    assert mask.any()
    assert_same(ours(x, x, x, mask, positions), theirs(x, x, x, mask, positions))
    assert_same(ours(x, x, x, None, positions), theirs(x, x, x, None, positions))
    each = normal(2, 17, 32)  # a table for each sequence
    assert_same(ours(x, x, x, mask, each), theirs(x, x, x, mask, each))


def test_under_autocast_it_errs_as_the_original():
    theirs, ours = original_and_adapted(encoder().float())
    features = torch.randn(2, WIDTH, 30)
    exact = theirs(audio_signal=features, length=None)[0]
    with torch.autocast("cpu", torch.bfloat16):
        errors = [
            float((model(audio_signal=features, length=None)[0] - exact).detach().abs().max())
            for model in (theirs, ours)
        ]
    assert errors[1] < 2 * errors[0]


# What NeMo's models give their encoder.
CONFIG = {
    "d_model": 32, "n_heads": 4, "dropout": 0.0, "dropout_emb": 0.0, "dropout_att": 0.0,
    "pos_emb_max_len": 64,
}  # fmt: skip


@pytest.mark.parametrize("kind", ["rel_pos", "rel_pos_local_attn", "abs_pos"])
def test_with_other_attentions_it_masks_as_before(kind: str):
    theirs, ours = original_and_adapted(encoder(att_context_size=[6, 2]))
    features, length = normal(2, WIDTH, 30), torch.tensor([30, 21])
    found = []
    for model in (theirs, ours):
        model._cfg = SimpleNamespace(**CONFIG)
        model.change_attention_model(kind, att_context_size=[5, 1], update_config=False)
        for layer in model.layers:
            layer.self_attn = layer.self_attn.double()
        found.append(model.eval()(audio_signal=features, length=length)[0])
    assert not any(isinstance(layer.self_attn, Adapted) for layer in ours.layers)
    assert_same(found[1], found[0])


def test_an_encoder_without_relative_positions_has_none_to_adapt():
    with pytest.raises(ValueError, match="with none"):
        adapt(encoder(self_attention_model="abs_pos"))


def test_with_one_attention_left_all_are():
    model: Any = encoder()
    attention = model.layers[0].self_attn
    attention.forward = lambda *args, **kwargs: type(attention).forward(attention, *args, **kwargs)
    report = adapt(model)
    assert not report.adapted
    assert len(report.left) == 2
    restore(model)


@pytest.mark.slow
def test_what_its_checks_of_types_wrap_compiles_as_a_whole():
    _, model = original_and_adapted(encoder(att_context_size=[6, 2]))
    features, length = normal(2, WIDTH, 30), torch.tensor([30, 21])
    expected = model(audio_signal=features, length=length)[0]
    torch._dynamo.reset()
    compiled = torch.compile(model.forward_internal, backend="aot_eager", fullgraph=True)
    assert_same(compiled(features, length)[0], expected)


@pytest.mark.filterwarnings("ignore:torch.get_autocast_gpu_dtype:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:CUDA is not available:UserWarning")
def test_under_a_gpus_autocast_it_projects_in_float32(monkeypatch: pytest.MonkeyPatch):
    module = encoder().float().layers[0].self_attn
    _, ours = original_and_adapted(module)
    seen: list[torch.dtype] = []
    ours.linear_q.register_forward_pre_hook(lambda _, args: seen.append(args[0].dtype))
    x, positions = torch.randn(2, 9, 32).bfloat16(), torch.randn(1, 17, 32)
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device=None: device is None)
    ours(x, x, x, None, positions)
    assert seen == [torch.float32]


def test_a_window_is_a_context():
    theirs = encoder(att_context_size=[4, 4])
    ours = encoder()
    ours.load_state_dict(theirs.state_dict())
    adapt(ours, window=(4, 4))
    features = normal(2, WIDTH, 30)
    expected = theirs(audio_signal=features, length=None)[0]
    assert_same(ours(audio_signal=features, length=None)[0], expected)


def test_an_encoder_with_adapters_is_adapted_and_masks_as_before_where_they_attend():
    module = import_apart("nemo.collections.asr.modules.conformer_encoder")
    theirs = encoder()
    theirs.__class__ = module.ConformerEncoderAdapter
    theirs, ours = original_and_adapted(theirs)
    features, length = normal(2, WIDTH, 30), torch.tensor([30, 21])
    masks = ours._create_masks([-1, -1], length, 30, None, torch.device("cpu"))[1]
    assert not isinstance(masks, Tensor)
    for layer in ours.layers:
        layer.is_adapter_available = lambda: True
    masks = [
        model._create_masks([-1, -1], length, 30, None, torch.device("cpu"))[1]
        for model in (theirs, ours)
    ]
    assert torch.equal(*masks)
    for layer in ours.layers:
        del layer.is_adapter_available
    found = [model(audio_signal=features, length=length)[0] for model in (theirs, ours)]
    assert_same(found[1][1, :, :21], found[0][1, :, :21])


def test_the_report_says_that_a_subclass_is_left():
    model = encoder()
    model.__class__ = type("Mine", (type(model),), {})
    assert "a subclass of ConformerEncoder" in str(adapt(model))


class Mine:
    """Changes nothing."""


@pytest.mark.parametrize("way", ["subclass", "parametrization"])
def test_what_lies_in_another_module_computes_the_same(way: str):
    theirs, features = encoder(), normal(2, WIDTH, 33)
    name = "RelPositionMultiHeadAttention"
    for attention in [x for x in theirs.modules() if type(x).__name__ == name]:
        if way == "subclass":
            attention.__class__ = type("Own", (Mine, type(attention)), {"__module__": __name__})
            register(type(attention), like=f"nemo.{name}")
    ours = copy.deepcopy(theirs)
    assert len(adapt(ours, strict=True).adapted) == 2
    if way == "parametrization":
        for attention in [x for x in ours.modules() if type(x).__name__ == name]:
            register_parametrization(attention, "pos_bias_u", nn.Identity())
    length = torch.tensor([33, 20])
    found = [model(audio_signal=features, length=length)[0] for model in (theirs, ours)]
    assert_same(found[1][1, :, :20], found[0][1, :, :20])
    assert_same(found[1][0], found[0][0])


class Internal(nn.Module):
    """The encoder without what checks types."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, features: Tensor, length: Tensor) -> Tensor:
        return self.model.forward_internal(features, length)[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [{}, {"att_context_size": [5, 2]},
     {"att_context_size": [8, 3], "att_context_style": "chunked_limited"}],
)  # fmt: skip
@pytest.mark.costly(1)
def test_a_program_serves_other_lengths(settings: dict[str, Any]):
    _, ours = original_and_adapted(encoder(**settings))
    dynamic = ({2: torch.export.Dim.AUTO}, None)
    given = (normal(3, WIDTH, 41), torch.tensor([41, 30, 17]))
    program = torch.export.export(Internal(ours), given, dynamic_shapes=dynamic, strict=False)
    for count in (30, 50):
        features, length = normal(3, WIDTH, count), torch.tensor([count, count - 5, 10])
        assert_same(program.module()(features, length), Internal(ours)(features, length))


def test_what_stands_in_for_its_requirements_is_seen_by_nobody_else():
    import_apart("nemo.collections.asr.modules.conformer_encoder")
    import_apart("speechbrain.nnet.attention")
    for name in ("omegaconf", "hydra", "hyperpyyaml", "sentencepiece", "torchaudio", "timm"):
        assert name in ("timm", "torchaudio") or find_spec(name) is None
        assert not getattr(import_utils, f"is_{name}_available", bool)()
    assert not _OMEGACONF_AVAILABLE
