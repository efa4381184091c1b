"""DeBERTa."""

from transformers import (
    DebertaConfig,
    DebertaModel,
    DebertaV2Config,
    DebertaV2ForMaskedLM,
    DebertaV2Model,
)

from .case import Case, tokens

SIZES = {
    "vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 48, "relative_attention": True, "max_relative_positions": 20,
    "max_position_embeddings": 64, "position_biased_input": False, "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}  # fmt: skip


V3 = {
    "position_buckets": 8, "pos_att_type": "p2c|c2p", "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
}  # fmt: skip


def case(name, build, *, inputs=tokens, linears=("query_proj", "value_proj"), **options):
    return Case(
        name,
        build,
        inputs,
        positions=("rel_embeddings",),
        adapted=2,
        linears=linears,
        dropout=lambda attention, p: setattr(attention.dropout, "p", p),
        **{"attention": "encoder.layer.1.attention.self", **options},
    )


def first_version(name, **options):
    def build():
        return DebertaModel(DebertaConfig(**SIZES, **options))

    # Under autocast the original fills half precision with the least number of float32.
    return case(name, build, linears=("in_proj",), first=name == "deberta", without=("autocast",))


def second_version(name, *, first=False, **options):
    def build():
        return DebertaV2Model(DebertaV2Config(**SIZES, **options))

    return case(name, build, first=first)


def masked_words(batch, length, padding):
    given = tokens(batch, length, padding)
    hidden = given["input_ids"] % 5 > 0
    if "attention_mask" in given:
        hidden |= given["attention_mask"] == 0
    return given | {"labels": given["input_ids"].masked_fill(hidden, -100)}


def language_model(*, legacy):
    def build():
        return DebertaV2ForMaskedLM(DebertaV2Config(**SIZES, **V3, legacy=legacy))

    return case(
        f"deberta_v3, {'legacy' if legacy else 'new'} masked words",
        build, inputs=masked_words, first=False, output="logits",
        attention="deberta.encoder.layer.1.attention.self",
    )  # fmt: skip


CASES = [
    first_version("deberta", pos_att_type="c2p|p2c"),
    first_version("deberta c2p", pos_att_type="c2p"),
    first_version("deberta p2c", pos_att_type="p2c"),
    second_version("deberta_v3", first=True, **V3),
    second_version(
        "deberta_v2 with a convolution", pos_att_type="p2c|c2p", conv_kernel_size=3,
        conv_act="gelu",
    ),
    second_version("deberta_v2 c2p", pos_att_type="c2p", position_buckets=8),
    second_version("deberta_v2 p2c", pos_att_type="p2c", share_att_key=True),
    language_model(legacy=True),
    language_model(legacy=False),
]  # fmt: skip
