"""What Inklings alone have: profiles that others wrap, and distances of pairs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor

from relpos.adapters import adapt

from .models import BY_NAME
from .results import original_and_adapted

pytestmark = pytest.mark.no_typecheck

PROFILES = {
    "inkling": "rel_logits_proj.proj",
    "inkling2": "relative_position_bias.proj",
    "inkling2_loop": "relative_position_bias.proj",
}
each = pytest.mark.parametrize("name", PROFILES)


@each
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.parametrize("order", ["adapt, LoRA", "LoRA, adapt"])
def test_profiles_take_lora(name: str, order: str):
    case = BY_NAME[name]
    inputs = case.inputs(2, 33, "right")

    def trained(adapted: bool) -> tuple[Tensor, list[Tensor]]:
        model: Any = case.model()
        if adapted and order == "adapt, LoRA":
            adapt(model)
        config = LoraConfig(
            r=2, target_modules=[], target_parameters=[PROFILES[name]], init_lora_weights=False
        )
        torch.manual_seed(0)
        model = get_peft_model(model, config)
        if adapted and order == "LoRA, adapt":
            adapt(model)
        output = case.of_tokens(model(**inputs).logits, inputs)
        output.square().sum().backward()
        return output, [x.grad for x in model.parameters() if x.requires_grad]

    (theirs, expected), (ours, gradients) = trained(adapted=False), trained(adapted=True)
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
    for got, wanted in zip(gradients, expected, strict=True):
        assert float((got - wanted).norm()) < 1e-3 * float(wanted.norm())


@pytest.mark.parametrize("name", ["inkling2", "inkling2_loop"])
def test_an_original_that_is_called_within_an_adapted_one_has_its_distances(name: str):
    original, adapted = original_and_adapted(BY_NAME[name].model())
    ids = torch.randint(3, 50, (2, 20))
    found = []
    with torch.no_grad():
        expected = original(ids).logits
        embeds = original.get_input_embeddings()(ids)
        layer = adapted.model.layers[0]
        layer.register_forward_hook(lambda *_: found.append(original(ids).logits))
        layer.register_forward_hook(lambda *_: found.append(original(inputs_embeds=embeds).logits))
        adapted(ids)
        adapted(inputs_embeds=embeds)
    assert len(found) == 4
    assert all(torch.equal(x, expected) for x in found)
