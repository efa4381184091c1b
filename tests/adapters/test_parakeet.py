"""Parakeet beyond its attention: long inputs in pieces, dropped positions."""

from __future__ import annotations

import accelerate
import pytest
import torch
from transformers import ParakeetEncoder, ParakeetEncoderConfig

from relpos.adapters import adapt
from relpos.adapters.adaptations import parakeet, pieces

from .models.case import draw
from .models.parakeet import ENCODER

pytestmark = pytest.mark.no_typecheck


def encoder(**options) -> ParakeetEncoder:
    torch.manual_seed(0)
    model = ParakeetEncoder(ParakeetEncoderConfig(**ENCODER | {"subsampling_factor": 8} | options))
    draw(model)
    return model.double().eval()


@pytest.mark.parametrize("length", [8 * 16, 8 * 16 + 1, 8 * 40 - 3, 8 * 48])
@pytest.mark.parametrize("padded", ["not", "left", "right"])
def test_pieces_of_long_audio_are_exact(length: int, padded: str, monkeypatch: pytest.MonkeyPatch):
    model, features = encoder(), torch.randn(2, length, 16).double()
    counts = torch.tensor([length, length // 2 - 5])
    mask = (torch.arange(length) < counts[:, None]).long()
    mask = {"not": None, "left": mask.flip(1), "right": mask}[padded]
    with torch.no_grad():
        expected = model(features, mask).last_hidden_state
        adapt(model)
        whole = model(features, mask).last_hidden_state
        monkeypatch.setattr(pieces, "_PIECE", 16)
        by_piece = model(features, mask).last_hidden_state
        monkeypatch.setattr(parakeet, "_LONG_TABLE", 8)
        by_head = model(features, mask).last_hidden_state
    real = (
        slice(None)
        if mask is None
        else model._get_output_attention_mask(mask, target_length=expected.shape[1])
    )
    for found in (whole, by_piece, by_head):
        torch.testing.assert_close(found[real], expected[real], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("gradients", [False, True])
def test_pieces_are_for_inference_alone(gradients: bool, monkeypatch: pytest.MonkeyPatch):
    model, features = encoder(), torch.randn(1, 8 * 40, 16).double()
    adapt(model)
    monkeypatch.setattr(pieces, "_PIECE", 16)
    calls = []
    model.subsampling.layers[0].register_forward_hook(lambda *_: calls.append(1))
    with torch.set_grad_enabled(gradients):
        model(features)
    assert len(calls) == (1 if gradients else 3)


@pytest.mark.parametrize("gradients", [False, True])
def test_tables_are_made_head_by_head_for_inference_alone(
    gradients: bool, monkeypatch: pytest.MonkeyPatch
):
    model, features = encoder(), torch.randn(1, 8 * 40, 16).double()
    adapt(model)
    monkeypatch.setattr(parakeet, "_LONG_TABLE", 8)
    calls = []
    for layer in model.layers:
        layer.self_attn.relative_k_proj.register_forward_hook(lambda *_: calls.append(1))
    with torch.set_grad_enabled(gradients):
        model(features)
    assert len(calls) == (2 if gradients else 0)


def test_tables_are_made_as_a_whole_where_weights_come_when_a_module_is_called(
    monkeypatch: pytest.MonkeyPatch,
):
    model, features = encoder(), torch.randn(1, 8 * 40, 16).double()
    adapt(model)
    monkeypatch.setattr(parakeet, "_LONG_TABLE", 8)
    with torch.no_grad():
        expected = model(features).last_hidden_state
        accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
        found = model(features).last_hidden_state
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.:FutureWarning")
@pytest.mark.parametrize("gradients", [False, True])
def test_an_exported_encoder_serves_other_lengths(gradients: bool):
    model, features = encoder(), torch.randn(2, 8 * 12 + 3, 16).double()
    adapt(model)
    shapes = {"input_features": {1: torch.export.Dim.DYNAMIC}}
    with torch.set_grad_enabled(gradients):
        program = torch.export.export(
            model, (), {"input_features": features}, dynamic_shapes=shapes
        ).module()
        for length in (8 * 12 + 3, 8 * 7, 8 * 21 - 1):
            given = torch.randn(2, length, 16).double()
            found = program(input_features=given).last_hidden_state
            torch.testing.assert_close(found, model(given).last_hidden_state)


def test_dropped_positions_run_as_before_in_training_and_are_adapted_otherwise():
    model, features = encoder(dropout_positions=0.5), torch.randn(2, 120, 16).double()
    expected = model(features).last_hidden_state
    report = adapt(model)
    assert report.adapted[0][1] == (
        "Transformer-XL; in training as before, since dropout_positions is not 0"
    )
    torch.testing.assert_close(model(features).last_hidden_state, expected, rtol=1e-11, atol=1e-11)

    with pytest.raises(ValueError, match="adapt: window must be None"):
        adapt(encoder(dropout_positions=0.5), window=(4, 4))

    def trained(model: ParakeetEncoder) -> torch.Tensor:
        torch.manual_seed(4)
        return model.train()(features).last_hidden_state

    original = encoder(dropout_positions=0.5)
    torch.testing.assert_close(trained(model), trained(original), rtol=1e-11, atol=1e-11)
