"""`attn_implementation="relpos"` on the page of adapters: its limits, time, memory, the sweep."""

from __future__ import annotations

from ..measure.adapted import ADAPTED
from ..measure.adapted_memory import LIMIT_GIB
from ..measure.implementation_sweep import AGREES
from ..workloads.adapted import WITHOUT_RELATIVE
from .adapter_tables import gains_table, measured_on, memory_table
from .cells import markdown_table

__all__ = ["implementation_section", "sweep_table"]

HEAD = """\
## Models without relative positions: `attn_implementation="relpos"`

A model whose positions are rotary, or at its input, has nothing to adapt, but can attend by
`relpos.attention` all the same:

```python
from transformers import MistralConfig, MistralForCausalLM
from relpos.adapters import register_attn_implementation

register_attn_implementation()    # once; then from_pretrained(..., attn_implementation="relpos")
config = MistralConfig(
    vocab_size=1000, hidden_size=64, intermediate_size=64, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, sliding_window=128,
)
model = MistralForCausalLM(config)
model.set_attn_implementation("relpos")
```

- Masks are ranges of keys, two numbers for each query, wherever each query sees keys in one piece:
  causality, sliding windows, chunks, packed texts (`position_ids`) and images within a text, with
  padding on either side or between tokens. Nothing of size `L x L` is kept then, and what nobody
  sees is not computed. (Rules beyond causality and the configuration's window are looked at pair by
  pair once, 16 million at a time.) To a model they are the masks that they stand for: one that
  works on its masks itself (T5Gemma 2, DeepSeek-V4, Doge) has them of all pairs from there on, as
  under SDPA.
- So do compiled and exported models, with fullgraph, whole or layer by layer. Traced whole, rules
  beyond causality and the configuration's window are masks of all pairs; without an
  `attention_mask` and a cache transformers puts the rule of packed texts there: give one.
- Softcaps (Gemma 2) and sinks (GPT-OSS), for which transformers has no SDPA, are computed in `O(L)`
  too. `output_attentions` gives weights, which are `L x L`, and a choice of keys (DeepSeek-V3.2's
  `indices`) becomes a mask of that size.
- Outputs at real tokens, gradients and generated texts (greedy, beams, static caches, prompt
  lookup) are those of the model's own implementation
  (tests/adapters/test_attn_implementation.py).
- **Only for models that attend by transformers' interface.** One whose code has eager attention of
  its own alone (BLOOM, CodeGen, XGLM) is refused where it makes its masks so; refused are choices
  of blocks of keys too. A few look for a class of that name and raise `KeyError` (Falcon,
  Data2Vec's images, SAM). What does not ask the configuration how to attend goes on as it was,
  without a word from `from_pretrained` (`set_attn_implementation` warns): DeBERTa, WavLM, XLNet,
  Swin v2, ViTDet, and parts of other models (the text of GIT, the audio of Gemma 4). For relative
  positions there is `adapt`, before which the implementation must be one of transformers' own.
"""

TIME = """\
One layer at the sizes of published models with random weights, and its attention module alone:
how many times as fast as under the fastest of its own implementations (eager or SDPA; eager alone
for softcaps and sinks, for which transformers has no SDPA), medians of ratios within interleaved
rounds, float32; one text, with padding two, of which one is half as long
(`benchmarks/attn_implementation.py`). Masks are made before the layers, outside of what is timed.
What a layer does beside attention is the same code on both sides.
Measured on {machine}.
"""

MEMORY = """\
Growth of a fresh process by one forward pass of two layers, masks included, in MiB; an original
that asks for more than {limit} GiB in all is told no.
"""

SWEEP = """\
The first class that transformers lists of every model for texts (causal, with encoder and decoder,
masked), classes of images, speech (its letters, or with a decoder), images beside texts, and texts
about images, made small, in float32: {agree} of the {tried} classes that ran agree in their outputs
with an implementation of their own to {bound:g} of the largest, the {padded} that take a mask of
padding with padding on either side, between tokens and without; of {generate} that generate texts
from texts, {equal} generate the same (`--sweep`, commit {commits}). Models of texts about images
are called with a text, and {pictures} of them with images by themselves.
"""


def implementation_section(result: dict) -> str:
    """The section, of a run of `benchmarks.attn_implementation`."""
    parts = [HEAD, TIME.format(machine=measured_on(result, "time"))]
    parts += [gains_table(result, WITHOUT_RELATIVE), MEMORY.format(limit=LIMIT_GIB)]
    parts += [memory_table(result, ADAPTED)]
    if result.get("sweep"):
        parts += [_sweep_words(result), sweep_table(result)]
    return "\n\n".join(part.strip() for part in parts)


def _sweep_words(result: dict) -> str:
    rows = _by_class(result["sweep"])
    outcomes = [row["outcome"] for row in rows]
    texts = [row["texts"] for row in rows if row.get("texts") in ("equal", "differ")]
    commits = {commit for name, commit in result["commits"].items() if name.startswith("sweep: ")}
    agree = [row for row in rows if row["outcome"] == "agrees"]
    return SWEEP.format(
        agree=len(agree),
        tried=sum(outcome in ("agrees", "differs", "fails") for outcome in outcomes),
        padded=sum(row.get("padding", False) for row in agree),
        pictures=sum(row.get("images") == "compared" for row in agree),
        bound=AGREES, generate=len(texts), equal=texts.count("equal"),
        commits=", ".join(sorted(commits)),
    )  # fmt: skip


def _by_class(sweep: list[dict]) -> list[dict]:
    """A row for each class: of one that is of several kinds, that in which the most was seen."""
    order = ("differs", "fails", "agrees", "no attention", "not made", "no interface")
    best: dict[str, dict] = {}
    for row in sorted(sweep, key=lambda row: order.index(row["outcome"]), reverse=True):
        before = best.get(row["class"], {})
        same = before.get("outcome") == row["outcome"]
        padding = row.get("padding", False) or (same and before.get("padding", False))
        best[row["class"]] = (before if same else {}) | row | {"padding": padding}
    return list(best.values())


def sweep_table(result: dict) -> str:
    """Models by what came of them."""
    words = {
        "agrees": "agree",
        "differs": "differ",
        "fails": "fail",
        "no interface": "do not take transformers' interface",
        "no attention": "do not call an implementation, or give the same whatever it gives",
        "not made": "did not run at the sweep's sizes",
    }
    rows, classes = [], _by_class(result["sweep"])
    for outcome, name in words.items():
        models = [row["model"] for row in classes if row["outcome"] == outcome]
        if models:
            rows.append([name, ", ".join(sorted(set(models))), str(len(models))])
    return markdown_table(["of these", "models", "classes"], rows, 2)
