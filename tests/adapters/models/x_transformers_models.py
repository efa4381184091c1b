"""x-transformers' encoders and decoders with a bias for each offset."""

import warnings
from functools import partial
from types import SimpleNamespace

import torch
from torch import nn

from .case import Case, padded

VOCABULARY = 64
SOFTMAX = nn.functional.softmax  # not the one that tests put in its place


def in_double(module, args):
    weights = [p for p in module.parameters() if p.dtype == torch.float64]
    return tuple(x.double() for x in args) if weights else args


class Tokens(nn.Module):
    """A wrapper without positions of its own, with a name for what it gives."""

    def __init__(self, kind, **settings):
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it uses torch.jit
            import x_transformers

        layers = getattr(x_transformers, kind)(
            dim=32, depth=2, heads=4, attn_dim_head=8, ff_mult=1, **settings
        )
        self.model = x_transformers.TransformerWrapper(
            num_tokens=VOCABULARY, max_seq_len=0, attn_layers=layers, use_abs_pos_emb=False
        )

        if settings.get("dynamic_pos_bias"):
            # Its network is given float32, whatever it is in.
            layers.rel_pos.mlp[0].register_forward_pre_hook(in_double)

    def forward(self, tokens, attention_mask=None):
        if self.model.token_emb.emb.weight.dtype == torch.float64:
            # It keeps torch's softmax with float32 as its dtype.
            for module in self.modules():
                if hasattr(module, "attn_fn"):
                    module.attn_fn = partial(SOFTMAX, dim=-1)
        mask = None if attention_mask is None else attention_mask.bool()
        output = self.model(tokens, mask=mask, return_embeddings=True)
        return SimpleNamespace(last_hidden_state=output)


def inputs(batch, length, padding):
    mask = padded(batch, length, padding)
    found = {"tokens": torch.randint(VOCABULARY, (batch, length))}
    return found if mask is None else found | {"attention_mask": mask}


def drop(module, probability):
    # By SDPA it asks the number.
    module.attn_dropout.p = module.dropout = probability


def without_alibi(model):
    for module in model.modules():
        if hasattr(module, "slopes"):
            module.slopes.zero_()


def case(name, kind, positions=(), **settings):
    of_case = {key: settings.pop(key) for key in ("first", "without_relative") if key in settings}
    return Case(
        name, partial(Tokens, kind, **settings), inputs, positions=positions, adapted=1,
        attention="model.attn_layers.layers.2.1.attend", pretrained=False, attentions=None,
        dropout=drop, without=("half", "fp16"), linears=("to_q", "to_out"), **of_case,
    )  # fmt: skip


CASES = [
    case("x_transformers t5", "Encoder", ("relative_attention_bias",), rel_pos_bias=True),
    case(
        "x_transformers t5, causal", "Decoder", ("relative_attention_bias",), rel_pos_bias=True,
        attn_kv_heads=2, attn_softclamp_logits=True, attn_logit_softclamp_value=3, first=False,
    ),
    case("x_transformers computed", "Encoder", ("rel_pos.mlp",), dynamic_pos_bias=True),
    case(
        "x_transformers alibi", "Decoder", alibi_pos_bias=True, alibi_num_heads=3,
        attn_one_kv_head=True, attn_qk_norm=True, without_relative=without_alibi,
    ),
    case(
        "x_transformers alibi, flash", "Decoder", alibi_pos_bias=True, attn_flash=True,
        attn_add_zero_kv=True, without_relative=without_alibi, first=False,
    ),
    case(
        "x_transformers with sinks", "Encoder", alibi_pos_bias=True, attn_head_learned_sink=True,
        attn_add_zero_kv=True, without_relative=without_alibi, first=False,
    ),
]  # fmt: skip
