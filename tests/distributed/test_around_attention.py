"""What adapted models do with their tokens besides attention: as in one process, or refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import relpos.distributed as cut
from relpos.adapters import Adapted, adapt
from relpos.distributed import ContextParallel
from tests.distributed.cut import relative_error, world

pytestmark = pytest.mark.no_typecheck

T5: dict[str, Any] = {
    "d_model": 16, "d_kv": 4, "num_heads": 4, "d_ff": 32, "vocab_size": 50, "num_layers": 2,
    "dropout_rate": 0.0, "decoder_start_token_id": 0,
}  # fmt: skip
DEBERTA: dict[str, Any] = {
    "vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 32, "relative_attention": True, "pos_att_type": ["c2p", "p2c"],
    "max_relative_positions": 16, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
TOKENS = torch.randint(2, 50, (2, 2, 17), generator=torch.Generator().manual_seed(1))
TEXT = {"input_ids": TOKENS[0], "decoder_input_ids": TOKENS[1]}
# The second text has padding on the last rank alone.
PADDING = (torch.arange(17) < torch.tensor([[17], [15]])).long()


def t5() -> nn.Module:
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**T5))


def umt5() -> nn.Module:
    return transformers.UMT5ForConditionalGeneration(transformers.UMT5Config(**T5))


def deberta() -> nn.Module:
    return transformers.DebertaForTokenClassification(transformers.DebertaConfig(**DEBERTA))


def deberta_v2() -> nn.Module:
    return transformers.DebertaV2ForTokenClassification(transformers.DebertaV2Config(**DEBERTA))


MODELS: dict[str, tuple[Callable[[], nn.Module], dict[str, Tensor]]] = {
    "T5": (t5, TEXT),
    "T5 with padding": (t5, TEXT | {"attention_mask": PADDING, "decoder_attention_mask": PADDING}),
    "T5 with labels": (t5, {"input_ids": TOKENS[0], "labels": TOKENS[1]}),
    "UMT5": (umt5, TEXT),
    "UMT5 with padding": (umt5, TEXT | {"attention_mask": PADDING}),
    "DeBERTa with positions": (deberta, {"input_ids": TOKENS[0]}),
    "DeBERTa v2 with positions": (deberta_v2, {"input_ids": TOKENS[0]}),
    "DeBERTa v2 with padding": (deberta_v2, {"input_ids": TOKENS[0], "attention_mask": PADDING}),
}


def adapted(make: Callable[[], nn.Module]) -> Any:
    torch.manual_seed(0)
    model = make()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    adapt(model)
    return model.double().eval()


@pytest.mark.parametrize(
    ("layout", "method"), [("zigzag", "auto"), ("zigzag", "ring"), ("contiguous", "gather")]
)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.costly(12)
def test_a_model_is_as_in_one_process(two, name: str, layout: str, method: str):
    two.run(_check, name, layout, method)


def _check(rank, size, name, layout, method) -> None:
    make, given = MODELS[name]
    model = adapted(make)
    expected = model(**given).logits
    seen = given.get("decoder_attention_mask", torch.ones(2, 17))
    if "decoder_input_ids" not in given:
        seen = given.get("attention_mask", seen)
    expected = expected * seen.unsqueeze(-1)
    for check in (True, False):
        style = ContextParallel(layout=layout, method=method, check=check)
        even = 17 if check else 16  # unchecked, shards are of one length
        local = {key: cut.shard(x[:, :even], world(), layout) for key, x in given.items()}
        wanted = (
            expected
            if check
            else model(**{key: x[:, :16].contiguous() for key, x in given.items()}).logits
        )
        style.apply_to(model, world())
        found = copy.deepcopy(model)(**local).logits
        own = cut.shard(seen[:, :even], world(), layout).unsqueeze(-1)
        wanted = wanted * seen[:, :even].unsqueeze(-1)
        assert relative_error(found * own, cut.shard(wanted, world(), layout)) <= 1e-12
        style.remove_from(model)
        again = model(**given).logits * seen.unsqueeze(-1)
        assert torch.equal(again, expected)


def test_what_cannot_be_made_right_is_refused(two):
    two.run(_refused)


def _refused(rank, size) -> None:
    switch = transformers.SwitchTransformersConfig(
        **T5, num_sparse_encoder_layers=1, num_sparse_decoder_layers=1, num_experts=2
    )
    picture = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4, "d_kv": 4}
    pix2struct = transformers.Pix2StructConfig(
        text_config={**picture, "vocab_size": 50, "num_heads": 4, "d_ff": 32, "num_layers": 1},
        vision_config={**picture, "patch_embed_hidden_size": 16, "d_ff": 32},
    )
    for model, said in (
        (
            transformers.UdopForConditionalGeneration(
                transformers.UdopConfig(**T5, image_size=8, patch_size=4)
            ),
            "no UdopAttention, whose sequence cannot be cut: relpos.adapters.adapt has not adapted",
        ),
        (
            transformers.Pix2StructForConditionalGeneration(pix2struct),
            "no Pix2StructVisionAttention, whose sequence cannot be cut: relpos.adapters.adapt has",
        ),
        (
            transformers.SwitchTransformersForConditionalGeneration(switch),
            "no SwitchTransformersTop1Router, whose sequence cannot be cut: it counts the tokens",
        ),
        (
            transformers.DebertaV2ForSequenceClassification(
                transformers.DebertaV2Config(**DEBERTA)
            ),
            "no ContextPooler, whose sequence cannot be cut: it reads a token that lies on one",
        ),
    ):
        adapt(model)
        with pytest.raises(ValueError, match=f"ContextParallel: module must have {said}"):
            ContextParallel().apply_to(model, world())
        assert not any("attend_elsewhere" in vars(part) for part in model.modules())
    within: Any = adapted(deberta_v2)
    encoder = within.deberta.encoder
    assert isinstance(encoder, Adapted)
    encoder.add_module("other", type("OtherAttention", (nn.Linear,), {})(2, 2))
    with pytest.raises(
        ValueError, match=r"must have no OtherAttention, .* module\.deberta\.encoder"
    ):
        ContextParallel().apply_to(within, world())
    prompted = adapted(t5)
    prompted.peft_config = {"default": SimpleNamespace(is_prompt_learning=True)}  # as peft has it
    with pytest.raises(ValueError, match="it puts tokens of its own before those of every rank"):
        ContextParallel().apply_to(prompted, world())


def test_more_tokens_than_a_table_has_are_refused_on_every_rank(two):
    two.run(_too_many_tokens)


def _too_many_tokens(rank, size) -> None:
    model = adapted(deberta)
    ContextParallel().apply_to(model, world())
    rows = model.deberta.embeddings.position_embeddings.num_embeddings
    tokens = cut.shard(torch.zeros(1, rows + 1).long(), world())
    with pytest.raises(ValueError, match=f"position_embeddings has rows, {rows}, got {rows + 1}"):
        model(input_ids=tokens)
    model(input_ids=cut.shard(torch.zeros(1, rows).long(), world()))


def test_another_implementation_is_refused_when_it_is_called(two):
    two.run(_another_implementation)


def _another_implementation(rank, size) -> None:
    model = adapted(t5)
    with pytest.raises(ValueError, match="key_layout must be None or the layout for adapted"):
        ContextParallel(key_layout="contiguous").apply_to(model, world())
    model.add_module("norm", nn.LayerNorm(16, elementwise_affine=False))  # without a weight
    ContextParallel().apply_to(model, world())
    whole = model.prepare_decoder_input_ids_from_labels(TOKENS[1])
    assert torch.equal(whole[:, 1:], TOKENS[1][:, :-1])
    local = {key: cut.shard(x, world()) for key, x in TEXT.items()}
    cache = model(**local, use_cache=True).cache
    with pytest.raises(ValueError, match="must be called with an empty cache or none, got one of"):
        model(**local, cache=cache)
    model.set_attn_implementation("sdpa")
    with pytest.raises(ValueError, match="T5Attention: cut by ContextParallel, it must be called"):
        model(**local)
