"""x-transformers beside its adapted copies: masks, memories, caches, and what is read of pairs."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from relpos.adapters import adapt, restore

from .largest_tensor import LargestTensor
from .models.case import draw
from .results import original_and_adapted

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it uses torch.jit
    import x_transformers
    from x_transformers.x_transformers import DynamicPositionBias

pytestmark = pytest.mark.no_typecheck

BIASES = {
    "t5": {"rel_pos_bias": True},
    "computed": {"dynamic_pos_bias": True},
    "alibi": {"alibi_pos_bias": True, "alibi_num_heads": 3},
}
biases = pytest.mark.parametrize("bias", BIASES.values(), ids=BIASES)


def layers(kind: str = "Encoder", **settings: Any) -> Any:
    cls = getattr(x_transformers, kind)
    return cls(**{"dim": 32, "depth": 2, "heads": 4, "attn_dim_head": 8, **settings})


def pair(model: nn.Module) -> tuple[Any, Any]:
    """A model with drawn parameters, and an adapted copy of it."""
    torch.manual_seed(0)
    draw(model)
    return original_and_adapted(model.eval())


def language_model(**settings: Any) -> Any:
    return x_transformers.TransformerWrapper(
        num_tokens=40, max_seq_len=0, attn_layers=layers("Decoder", **settings),
        use_abs_pos_emb=False,
    )  # fmt: skip


def assert_same(ours: Any, theirs: Any) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def assert_same_with_gradients(theirs: Any, ours: Any, *args: Any, **kwargs: Any) -> None:
    """The outputs and the gradients of all parameters."""
    found = []
    for model in (theirs, ours):
        output = model(*args, **kwargs)
        output.square().sum().backward()
        found.append([output, *(p.grad for p in model.parameters() if p.grad is not None)])
    assert len(found[0]) > 10
    # Of a number that is added to all scores the gradient is a sum that cancels.
    largest = max(float(x.detach().abs().max()) for x in found[0])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-6 * largest)


def masks() -> dict[str, Tensor]:
    drawn = torch.rand(2, 4, 9, 9, generator=torch.Generator().manual_seed(2)) > 0.4
    pairs = drawn | torch.eye(9, dtype=torch.bool)
    # The last has queries without any key.
    return {
        "pairs": pairs[0, 0], "pairs of heads": pairs[0], "pairs of each": pairs,
        "pairs with empty rows": drawn[0, 0] & (torch.arange(9)[:, None] % 3 > 0),
    }  # fmt: skip


@biases
@pytest.mark.parametrize("kind", ["Encoder", "Decoder"])
@pytest.mark.parametrize("name", [None, *masks()])
@pytest.mark.parametrize("padded", [False, True], ids=["", "padding"])
def test_masks_hide_as_the_originals(
    bias: dict[str, Any], kind: str, name: str | None, padded: bool
):
    theirs, ours = pair(layers(kind, **bias))
    given = {
        "mask": torch.arange(9) < torch.tensor([[9], [6]]) if padded else None,
        "attn_mask": None if name is None else masks()[name],
    }
    assert_same_with_gradients(theirs, ours, torch.randn(2, 9, 32), **given)


@biases
@pytest.mark.parametrize(
    "settings",
    [
        {"attn_kv_heads": 2},
        {"attn_one_kv_head": True},
        {"attn_qk_norm": True},
        {"attn_value_dim_head": 5},
        {"attn_softclamp_logits": True, "attn_logit_softclamp_value": 2},
        {"attn_head_learned_sink": True},
        {"attn_add_zero_kv": True},
        {"attn_add_zero_kv": True, "attn_head_learned_sink": True},
        {"attn_gate_values": True, "attn_head_scale": True},
        {"cross_attend": True},
    ],
    ids=" ".join,
)
def test_settings_of_attention(bias: dict[str, Any], settings: dict[str, Any]):
    theirs, ours = pair(layers("Decoder", **bias, **settings))
    x, given = torch.randn(2, 9, 32), {}
    if "cross_attend" in settings:
        given = {"context": torch.randn(2, 5, 32), "context_mask": torch.ones(2, 5).bool()}
    assert_same_with_gradients(theirs, ours, x, **given)


@pytest.mark.parametrize("kind", ["Encoder", "Decoder"])
@pytest.mark.parametrize("causal", [None, True, False])
def test_a_call_may_say_whether_it_is_causal(kind: str, causal: bool | None):
    for flash in (False, True):
        theirs, ours = pair(layers(kind, alibi_pos_bias=True, attn_flash=flash))
        x = torch.randn(2, 9, 32)
        assert_same(ours(x, causal=causal), theirs(x, causal=causal))


@biases
def test_prefixes(bias: dict[str, Any]):
    if "rel_pos_bias" in bias:
        bias = {**bias, "rel_pos_num_buckets": 8, "rel_pos_max_distance": 16}
    theirs, ours = pair(layers("PrefixDecoder", **bias))
    x = torch.randn(2, 9, 32)
    for prefix in (3, torch.tensor([2, 7])):
        assert_same(ours(x, prefix_attn_len=prefix), theirs(x, prefix_attn_len=prefix))


@biases
def test_memories_lie_before_the_tokens(bias: dict[str, Any]):
    theirs, ours = pair(layers("Decoder", **bias))
    x, mems = torch.randn(2, 5, 32), [torch.randn(2, 7, 32) for _ in range(2)]
    assert_same(ours(x, mems=mems), theirs(x, mems=mems))


@biases
@pytest.mark.parametrize("settings", [{}, {"attn_kv_heads": 2}], ids=["", "grouped"])
def test_generation_gives_the_same_tokens(bias: dict[str, Any], settings: dict[str, Any]):
    theirs, ours = pair(language_model(**bias, **settings))
    prompt, found = torch.randint(40, (2, 6)), []
    for model in (theirs, ours):
        wrapped = x_transformers.AutoregressiveWrapper(model)
        found.append([])
        for kept in (True, False):  # the original's tokens are others without a cache
            torch.manual_seed(1)
            found[-1].append(wrapped.generate(prompt, 12, cache_kv=kept))
    assert all(len(tokens.unique()) > 3 for tokens in found[0])
    assert all(torch.equal(ours, theirs) for theirs, ours in zip(*found, strict=True))


@biases
def test_weights_and_losses_of_scores_are_computed_when_they_are_read(bias: dict[str, Any]):
    theirs, ours = pair(language_model(**bias))
    tokens, found = torch.randint(40, (2, 9)), []
    for model in (theirs, ours):
        _, maps = model(tokens, return_attn=True)
        logits, between = model(tokens, return_attn_z_loss=True, return_intermediates=True)
        between.attn_z_loss.backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        found.append([*maps, logits, between.attn_z_loss, *gradients])
    assert len(found[0]) > 10
    for one, other in zip(*found, strict=True):
        assert_same(other, one)


def between(model: Any, x: Tensor) -> Any:
    """What the first layer gives of its attention."""
    return model(x, return_hiddens=True)[1].attn_intermediates[0]


def test_what_is_read_has_the_gradients_and_the_autocast_of_the_call():
    found, x = [], torch.randn(2, 9, 32)
    for model in pair(layers(**BIASES["t5"])):
        with torch.autocast("cpu", torch.bfloat16):
            first = between(model, x)
        with torch.no_grad():
            logged = first.post_softmax_attn.mean()
        assert first.pre_softmax_attn.requires_grad
        first.pre_softmax_attn.square().mean().backward()
        gradient = model.rel_pos.relative_attention_bias.weight.grad
        found.append([logged, first.pre_softmax_attn, gradient])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other, one, rtol=0.02, atol=0.02)


def test_what_is_read_can_be_written_copied_and_saved():
    theirs, ours = pair(layers(**BIASES["t5"]))
    x = torch.randn(2, 9, 32)
    with torch.no_grad():
        expected, first = between(theirs, x), between(ours, x)
        for again in (
            pickle.loads(pickle.dumps(first)), copy.copy(first),
            dataclasses.replace(first, layer_type="c"),
        ):  # fmt: skip
            for field in dataclasses.fields(expected):
                if field.name != "layer_type":
                    assert_same(getattr(again, field.name), getattr(expected, field.name))
        unread = between(ours, x)
        state = torch.get_rng_state()
        copied = copy.copy(unread)
        assert not unread.known
        assert_same(copied.post_softmax_attn, expected.post_softmax_attn)
        assert torch.equal(torch.get_rng_state(), state)
        first.post_softmax_attn = None
        assert first.post_softmax_attn is None
        assert_same(first.to_tuple()[:2], expected.to_tuple()[:2])
        other = between(ours, x)
        restore(ours)
        assert_same(other.post_softmax_attn, expected.post_softmax_attn)


def test_clipping_by_scores_changes_the_weights_as_before():
    x, found = 3 * torch.randn(2, 9, 32), []
    for model in pair(layers(**BIASES["alibi"])):
        _, read = model(x, return_hiddens=True)
        model.attn_qk_clip_(read, tau=0.5)
        found.append(model.state_dict())
    assert_same(found[1], found[0])


@pytest.mark.parametrize("flash", [False, True])
def test_dropout_of_weights_is_asked_for_where_the_original_asks(flash: bool):
    _, ours = pair(layers(alibi_pos_bias=True, attn_flash=flash, attn_dropout=0.5))
    x = torch.randn(2, 9, 32)
    ours.train()
    assert not torch.equal(ours(x), ours(x))
    for module in ours.modules():
        if hasattr(module, "attn_dropout"):
            module.dropout = 0.0
            module.attn_dropout.p = 0.5 if flash else 0.0
    assert torch.equal(ours(x), ours(x))


@biases
def test_several_tokens_after_a_cache(bias: dict[str, Any]):
    found, tokens = [], torch.randint(40, (2, 9))
    for model in pair(language_model(**bias)):
        _, cache = model(tokens[:, :6], return_intermediates=True)
        found.append(model(tokens, cache=cache))
    assert_same(found[1], found[0])


def test_nothing_of_pairs_is_computed_unless_it_is_read():
    _, ours = pair(layers("Decoder", **BIASES["t5"]))
    x = torch.randn(1, 1024, 32)
    with LargestTensor() as largest:
        _, between = ours(x, return_hiddens=True)
    assert largest.entries < 1024 * 1024
    with LargestTensor() as largest:
        assert between.attn_intermediates[0].post_softmax_attn.shape == (1, 4, 1024, 1024)
    assert largest.entries >= 1024 * 1024


def test_positions_that_are_given_run_as_before():
    theirs, ours = pair(layers(alibi_pos_bias=True))
    x = torch.randn(2, 9, 32)
    for pos in (torch.arange(9) * 2.0, torch.rand(2, 9).cumsum(1)):
        assert_same(ours(x, pos=pos), theirs(x, pos=pos))


@biases
def test_what_is_added_to_weights_runs_as_before(bias: dict[str, Any]):
    theirs, ours = pair(layers("Decoder", **bias))
    q, k, v = (torch.randn(2, 4, 9, 8) for _ in range(3))
    found = [
        model.layers[0][1].attend(
            q, k, v, attn_bias=model.rel_pos(9, 9), attn_delta=torch.ones(2, 4, 9, 9)
        )[0]
        for model in (theirs, ours)
    ]
    assert_same(found[1], found[0])


def test_an_attend_with_other_parameters_is_left(monkeypatch: pytest.MonkeyPatch):
    cls = type(layers().layers[0][1].attend)

    def forward(self, q, k, v, bias):
        return q

    forward.__module__ = cls.__module__
    monkeypatch.setattr(cls, "forward", forward)
    assert "forward begins with self, q, k, v, bias, not" in adapt(
        layers(**BIASES["t5"])
    ).left[0][1]  # fmt: skip


def test_keys_without_positions_are_refused_as_before():
    theirs, ours = pair(layers(**BIASES["t5"]))
    more = [(torch.randn(2, 4, 3, 8), torch.randn(2, 4, 3, 8))] * 2
    with pytest.raises(RuntimeError):
        theirs(torch.randn(2, 9, 32), self_attn_additional_kv=more)
    with pytest.raises(ValueError, match="keys must be as many as positions, 9, got 12"):
        ours(torch.randn(2, 9, 32), self_attn_additional_kv=more)
    # Of one token the bias is that of all keys.
    x = torch.randn(2, 1, 32)
    assert_same(ours(x, self_attn_additional_kv=more), theirs(x, self_attn_additional_kv=more))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"attn_num_mem_kv": 2}, "num_mem_kv"),
        ({"attn_max_attend_past": 4}, "max_attend_past"),
        ({"attn_use_rel_proj_pos_bias": True}, "use_rel_proj_pos_bias"),
        ({"attn_pre_talking_heads": True}, "mixed between heads"),
        ({"attn_post_talking_heads": True}, "mixed between heads"),
        ({"attn_pre_scale_post_talking_heads": True}, "mixed between heads"),
        ({"attn_sparse_topk": 3}, "no softmax"),
        ({"attn_sigmoid": True}, "no softmax"),
        ({"attn_hard": True}, "no softmax"),
        ({"attn_gumbel_softmax": True}, "no softmax"),
        ({"attn_custom_attn_fn": lambda x: x.softmax(-1)}, "no softmax"),
        ({"attn_custom_attn_fn": nn.functional.softmax}, "no softmax"),  # over the heads
        ({"attn_selective": True}, "earlier queries"),
        ({"attn_cog_signed": True}, "signs"),
        ({"attn_l2_distance": True}, "distances"),
        ({"attn_use_cope": True}, "what tokens contain"),
        ({"attn_dropout": 1.0}, "dropout must be"),
        ({"attn_dropout": 1.0, "attn_flash": True}, "dropout must be"),
        ({"rotary_pos_emb": True}, "positions that are given"),
        ({"residual_attn": True}, "scores of all pairs to the next layer"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, dict) else "",
)
def test_what_has_no_such_attention_is_left_as_a_whole(settings: dict[str, Any], reason: str):
    report = adapt(layers("Decoder", alibi_pos_bias=True, **settings))
    assert not report.adapted
    assert report.left[0][0] == ""  # and what is in it that would be left by itself
    assert reason in report.left[0][1]


def test_biases_from_what_tokens_contain_take_the_place_of_others():
    model = layers("Decoder", dynamic_pos_bias=True, attn_data_dependent_alibi=True)
    assert "take the place of those of offsets" in adapt(model).left[0][1]


def test_layers_with_another_attention_are_left():
    model, kind = layers(**BIASES["t5"]), type("Own", (x_transformers.Attention,), {})
    model.layers[2][1] = kind(32, heads=4, dim_head=8)
    report = adapt(model)
    assert not report.adapted
    assert "layers.2.1, a Own: a subclass of Attention" in report.left[0][1]
    model.layers[2][1] = nn.Identity()
    assert "of another class" in adapt(model).left[0][1]


def test_layers_that_are_the_same_are_adapted_once():
    model = layers(**BIASES["t5"])
    model.layers[2] = model.layers[0]
    theirs, ours = pair(model)
    x = torch.randn(2, 9, 32)
    assert_same(ours(x), theirs(x))
    restore(ours)
    assert torch.equal(ours(x), theirs(x))


def test_an_attend_of_another_class_or_with_another_forward_is_left(
    monkeypatch: pytest.MonkeyPatch,
):
    model = layers(**BIASES["t5"])
    attend = model.layers[2][1].attend
    cls, original = type(attend), type(attend).forward

    def forward(self, q, k, v, mask=None, attn_bias=None, prev_attn=None, **others):
        return original(self, 2 * q, k, v, mask, attn_bias, prev_attn, **others)

    attend.__class__ = type("Own", (cls,), {"forward": forward})
    assert "attend, a Own: a subclass of Attend" in adapt(model).left[0][1]
    monkeypatch.setattr(cls, "forward", forward)
    model = layers(**BIASES["t5"])
    assert f"Attend.forward was replaced by one of {__name__}" in adapt(model).left[0][1]


def test_an_identity_drops_nothing_and_meta_has_no_numbers():
    for flash in (False, True):
        theirs = layers(alibi_pos_bias=True, attn_flash=flash).train()
        for layer in theirs.layers[::2]:
            layer[1].attend.attn_dropout = nn.Identity()
        theirs, ours = pair(theirs)
        x = torch.randn(2, 9, 32)
        assert_same(ours.train()(x), theirs.train()(x))
    assert layers(**BIASES["alibi"]).to("meta")(x.to("meta")).shape == x.shape
    ours = layers(**BIASES["alibi"]).to("meta")
    adapt(ours)
    assert ours(x.to("meta")).shape == x.shape


def test_another_bias_is_left():
    model = layers(dynamic_pos_bias=True)
    model.rel_pos = type("Other", (DynamicPositionBias,), {})(8, heads=4, depth=1)
    assert "rel_pos, a Other: it must be one of" in adapt(model).left[0][1]


@pytest.mark.parametrize("name", ["data_dependent_alibi", "use_rel_proj_pos_bias", "use_cope"])
def test_other_positions_are_left_by_name(name: str):
    report = adapt(layers("Decoder", **{f"attn_{name}": True}))
    assert len(report.left) == 2
    assert not report.adapted


def test_without_a_bias_there_is_nothing_to_adapt():
    with pytest.raises(ValueError, match="got a Encoder with none"):
        adapt(layers(rotary_pos_emb=True))


def test_encoder_and_decoder_are_adapted_and_restored():
    model = x_transformers.XTransformer(
        dim=32, enc_num_tokens=40, enc_depth=2, enc_heads=2, enc_max_seq_len=16,
        enc_rel_pos_bias=True, dec_num_tokens=40, dec_depth=2, dec_heads=2, dec_max_seq_len=16,
        dec_alibi_pos_bias=True,
    )  # fmt: skip
    draw(model)
    model.eval()
    source, target = torch.randint(40, (2, 9)), torch.randint(40, (2, 7))
    before = model(source, target)
    report = adapt(model)
    assert [words for _, words in report.adapted] == ["T5 bias", "ALiBi"]
    assert not report.left
    assert_same(model(source, target), before)
    restore(model)
    assert torch.equal(model(source, target), before)
