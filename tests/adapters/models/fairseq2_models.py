"""fairseq2's two modules of relative attention, each in layers that project for it."""

from functools import partial
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional

from tests.apart import import_apart

from .case import Case, padded

WIDTH, HEADS = 32, 4


def of_transformer(file):
    return import_apart(f"fairseq2.models.transformer.{file}")


def softmax(*args, **kwargs):
    """Torch's of the moment: the originals' own, which rounds to float32, was bound earlier."""
    return functional.softmax(*args, **kwargs)


def shaw(bias, **settings):
    return of_transformer("sdpa.shaw").ShawRelativePositionSDPA(WIDTH, HEADS, bias, **settings)


def relative(bias):
    module = of_transformer("sdpa.relative")
    positions = module.RelativePositionalEncoding(WIDTH, 2048)
    return module.RelativePositionSDPA(WIDTH, HEADS, positions, bias)


class Layer(nn.Module):
    """As fairseq2's, which asks how many devices there are."""

    def __init__(self, sdpa):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv, self.output_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.sdpa = sdpa

    def forward(self, x, layout, cache):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, HEADS, -1)).unbind(2)
        output, _ = self.sdpa(q, layout, k, layout, v, cache, needs_weights=False)
        return x + self.output_proj(output.flatten(2))


class Frames(nn.Module):
    """Layers of an encoder, or of a decoder."""

    def __init__(self, sdpa, *, reach=None, causal=False, **settings):
        super().__init__()
        biases = of_transformer("attention_bias")
        bias = biases.IdentityBias()
        if causal:
            bias = biases.CausalAttentionBias(attn_window_len=reach)
        of_transformer("sdpa.naive").softmax = softmax
        self.layers = nn.ModuleList(Layer(sdpa(bias, **settings)) for _ in range(2))

    def forward(self, inputs_embeds, attention_mask=None):
        lengths = None if attention_mask is None else attention_mask.sum(1).tolist()
        layout = import_apart("fairseq2.nn").BatchLayout.of(inputs_embeds, lengths)
        x, cache = inputs_embeds, of_transformer("attention_bias").AttentionBiasCache()
        for layer in self.layers:
            x = layer(x, layout, cache)
        return SimpleNamespace(last_hidden_state=x)


def inputs(batch, length, padding):
    found = {"inputs_embeds": torch.randn(batch, length, WIDTH)}
    if padding != "none":
        found["attention_mask"] = padded(batch, length, padding)
    return found


def case(name, sdpa, positions, *, first=False, **settings):
    return Case(
        name, partial(Frames, sdpa, **settings), inputs, positions=positions, adapted=2,
        attention="layers.1.sdpa", paddings=("none", "right"), pretrained=False, attentions=None,
        linears=("qkv", "output_proj"), cancelling=("u_bias",), first=first,
    )  # fmt: skip


CASES = [
    case(
        "fairseq2 shaw", shaw, ("rel_k_embed", "rel_v_embed"), first=True, max_lhs_rel_pos=7,
        use_rel_pos_values=True,
    ),
    case(
        "fairseq2 shaw, causal", shaw, ("rel_k_embed",), causal=True, reach=9, max_lhs_rel_pos=5,
        max_rhs_rel_pos=3,
    ),
    case("fairseq2 relative", relative, ("r_proj", "u_bias", "v_bias")),
]  # fmt: skip
