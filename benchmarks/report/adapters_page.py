"""The page docs/adapters.md and the README's table of gains, from the JSON of measured runs."""

from __future__ import annotations

from relpos.adapters import families
from relpos.adapters.not_adapted import NOT_ADAPTED

from ..measure.adapted import ADAPTED
from ..measure.adapted_memory import LIMIT_GIB
from ..measure.passes import BOTH, FORWARD
from ..workloads.adapted import MODELS
from .adapter_tables import gains_table, left_out, long_table, measured_on, memory_table
from .cells import format_ratio, machine_note, markdown_table
from .implementation_section import implementation_section

__all__ = ["adapters_page", "adapters_verdict"]

HEAD = """\
# Your model, adapted

<!-- Written by benchmarks/tables.py from benchmarks/results/adapters.json,
     attn_implementation.json, gpu_adapters.json and the registry. -->

```python
from transformers import DebertaV2Config, DebertaV2Model
from relpos.adapters import adapt, restore

model = DebertaV2Model(DebertaV2Config(         # or DebertaV2Model.from_pretrained(...)
    hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
    relative_attention=True, position_buckets=256, pos_att_type="p2c|c2p", share_att_key=True,
))
print(adapt(model))       # in place; a table of what was adapted, what was left, and why
restore(model)            # the original again, bit for bit
```

`adapt` has the relative attention of a model of transformers, NeMo, SpeechBrain, ESPnet, FunASR,
torchaudio, s3prl, fairseq2, Coqui, Piper, timm, torchvision, OpenMMLab, kornia, ultralytics,
spandrel, MONAI, x-transformers, Enformer or Borzoi, or of [a copy of one](#copies), computed by
`relpos.attention`: the same parameters and state dict, the same outputs, losses and gradients up to
rounding, and nothing of size `L x L`, not even in the encoder's own masks and position tensors. It
changes the class of the modules concerned to a subclass that reads the same parameters, so that
`generate`, `save_pretrained`, LoRA, checkpointing, `torch.compile`, copies and pickles go on as
before. It wants transformers 5.20 or newer (the extra `transformers`): all is tested with 5.24, the
families, generation and the attention implementation below with 5.20 too. A class whose methods
have other parameters in your version, or whose modules lack an attribute, is left, and the report
says so; so is one into which somebody has put a method from elsewhere. What is particular to the
others is
[below](#outside-of-transformers).

- Where positions themselves have dropout that differs within a batch (XLNet's, Parakeet's
  `dropout_positions`), training runs as before, `L x L`; so do calls with arguments that no table
  can hold (`relative_pos`, `perm_mask`), and asked-for weights are `L x L` themselves.
- Adapted models are programs of `torch.export` for other batches and lengths, and go to ONNX
  (`torch.onnx.export(dynamo=True)`, which builds the scores), wherever their originals do
  (tests/adapters/test_exported.py). XLNet with segments is exported as before, `L x L`.
- LoRA acts on projections whose weights the original multiplies by without calling them, where the
  original passes it by: WavLM's (in s3prl too), those of timm's and OpenMMLab's BEiT and Swin v2,
  and of torchvision's Swin.
- `strict=True` raises, and changes nothing, if a module of relative attention would be left.
- `window=(128, 128)` lets an encoder's tokens see only their neighbours, without retraining:
  another function than the model was trained as. `relpos adapt FOLDER --check --window 128 128`
  measures how far off it is, and without the window the gain on your machine: of a text, sound or
  image that it makes up, for any head; of a model that needs several of them it names what is
  missing, and wants the part by itself (`model.audio_tower.save_pretrained(...)`).
- Queries that are padding, or to whom the mask leaves no key, may give something else than the
  original's, and so does what is read from them. With padding on the left a decoder's loss
  predicts the first real token from padding, unless that label is -100; with padding on the right
  a classifier of XLNet reads the last token. Real frames to the right of padding may differ in
  Gemma 4, whose convolution mixes the two (its feature extractor pads on the right). Weights
  (`output_attentions`) are those before dropout. Most families return them under SDPA too, where
  the original returns none.
- Linear modules may be quantized, before or after. Where a whole tensor of activations has one
  scale (torch's `quantize_dynamic`), what padded queries give enters it, and real tokens differ by
  as much as quantization itself makes them.
- Some masks do not mean the same under all of an original's implementations, nor adapted:

  | mask | original, eager | original, SDPA | adapted |
  | --- | --- | --- | --- |
  | boolean, `(B, 1, L, L)`: T5's kin, MPNet, Inkling, BEiT | added, as 1 and 0 | hides | hides |
  | their own, of padding: Nemotron, Seamless M4T v2 | added, as 1 and 0 | hides | hides |
  | of integers, `(B, 1, L, L)` | added | added | refused: give `mask.bool()` |
  | padding: BEiT | hides | added, as 1 and 0 | hides |
  | `(B, 1, 1, L)` in a decoder: T5's kin, Inkling | sees ahead | sees ahead | stays causal |
  | `(B, 1, 1, L)` in MPT, whose True hides | sees ahead | sees ahead | sees ahead |
- LongT5's encoders want an `attention_mask`, which the model makes except where it is compiled:
  without one tokens see all of three blocks, and layers run as before. A transient-global encoder
  is adapted if its `global_block_size` is 1, 2, 4, ... (that of its authors is 16).
- Windows of few tokens gain little forward: Swin's smallest, of 49, up to a tenth.
- Choose `attn_implementation` before: `adapt` puts a name of its own into the configuration. Chosen
  afterwards, some families go on as they were, and Inkling refuses.
  Adapt before accelerate's hooks are set and before FSDP wraps; before or after loading and PEFT,
  as you like. Projections are called as modules, quantised ones too (tested with torch's own and
  with weights packed as bitsandbytes packs them; bitsandbytes and torchao were tried once). A
  module whose `forward` was replaced on the instance is left, and so is one whose class has another
  signature than the one that was tested, or whose attention has a dropout of 1.
- Hooks on what no longer runs stay silent: modules of softmax and of dropout within an attention,
  by which some read its weights. Take `output_attentions`, or `restore` the model first.
- Between an adapted T5 and one that is not, single blocks cannot be moved: `restore` before,
  `adapt` after.
- A class of your own: `relpos.adapters.register(YourAttention, YourAdaptation)`;
  [CONTRIBUTING.md](../CONTRIBUTING.md) shows one. A class that is copied from a known one:
  [below](#copies).
"""

POSITIONS = """\
## Relative positions for a model that you train

`add_positions` gives every `torch.nn.MultiheadAttention` of a model a position scheme, in place:

```python
import torch
from relpos.adapters import add_positions, remove_positions
from relpos.positions import Shaw

layer = torch.nn.TransformerEncoderLayer(d_model=64, nhead=4, batch_first=True)
model = torch.nn.TransformerEncoder(layer, num_layers=2)
optimizer = torch.optim.AdamW(model.parameters())

print(add_positions(model, lambda heads, head_dim: Shaw(head_dim, max_distance=64)))
tables = [p for name, p in model.named_parameters() if ".position." in name]
optimizer.add_param_group({"params": tables})   # an optimizer made before goes on
```

The weights stay the same objects under the same names; the state dict gains the tables, so load
an older checkpoint with `strict=False`. Tables start at zero, so that the model computes what it
did until they are trained; `zero=False` keeps the scheme's own first numbers. Schemes that act
whatever their tables are (ALiBi, rotary, KERPLE, DeBERTa's scale) are taken, and the report says
that they change the function. Choose by name: `include="layers.*"`, `exclude=["layers.0.*"]`.
Cross-attention is left alone unless `cross_attention=True`. The fused inference of
`nn.TransformerEncoder`, which knows no positions, is not used any more. `remove_positions(model)`
gives torch's modules back, bit for bit, without the tables.

PEFT's LoRA of whole attentions (`target_modules=["self_attn"]`) goes before or after, and computes
what it does with torch's modules; in inference it acts too, where torch's fused layers pass it by.
PEFT freezes what it does not train, tables that are there already too: call `requires_grad_()` on
them, and save them yourself, since `modules_to_save` does not reach into a wrapped attention.
Wrap a model with positions before its weights are frozen, and with gradients on: else PEFT says
"Only same embed for query/key/value is supported". A LoRA of `out_proj`, or of all linear layers,
comes after positions.
"""

GAINS = """\
## What is gained

One layer at the sizes of published models with random weights, and its attention module alone:
how many times as fast as the original by the fastest of its implementations (eager or SDPA;
FlexAttention, which has no backward on a CPU, is left out), medians of ratios within interleaved
rounds, float32, a batch of one. The difference is that of the layer's output from the original's,
as a part of its largest entry (`benchmarks/adapters.py`).
Measured on {machine}.
"""

ON_GPU = """\
### On a GPU

The same in bfloat16. An original runs as eager or SDPA, whichever is faster; short inputs, of which
both run kernels of microseconds, show how long Python takes. Gemma 4 attends in float32, which
blockwise PyTorch computed when this was measured; the kernels that do now were not timed in it. The
layers of T5's kin and of BLOOM are far from their own float32 in bfloat16, the originals farther
than the adapted ones (`gpu_trials.json`), and so from each other.
Measured on {machine}.
"""

MEMORY = """\
Growth of a fresh process by one forward pass of two layers, in MiB; an original that asks for
more than {limit} GiB in all is told no.
"""

LONG = """\
Inputs that no original can take, in one pass with full attention: time, and the peak of the whole
process. Beside it stands how far a short input is from the original.
Measured on {machine}.
"""

OUTSIDE = """\
## Outside of transformers

```
adapt(asr_model.encoder)        # NeMo: Parakeet, Canary, FastConformer
adapt(timm.create_model("swinv2_base_window12to24_192to384", pretrained=True))
adapt(sam.image_encoder)        # segment_anything, of SAM's authors
adapt(borzoi)                   # of borzoi-pytorch
```

- **NeMo** (tested with 3.0): Conformers and FastConformers with `rel_pos`, contexts and chunks of
  frames, streams with caches too. The encoder makes no mask of all pairs, and what it gives for
  padded frames may differ: in a stream, pad its last chunk alone. With other attentions
  (`change_attention_model`), and with adapters in its layers, an adapted encoder masks as before;
  `rel_pos_local_attn` has no tensor of all pairs and is left.
- **SpeechBrain** (1.1): `RelPosMHAXL` in Conformers, Branchformers and Transformers, where queries,
  keys and values are one tensor. It gave its weights to whoever did not refuse them; adapted, it
  gives None in their place unless `return_attn_weights=True` is said, and in training those before
  dropout.
- **timm** (1.0.31): Swin, both forms of Swin v2, BEiT, SAM, MViTv2, vision transformers with
  relative biases, MaxViT, CoAtNet, GC ViT and bottleneck attention. `set_input_size` goes before or
  after. Swin v2 "cr" trains as before, `L x L`, since its biases have dropout by pairs; in
  inference it computes them by offset. **torchvision** (0.28): Swin, Swin v2, Video Swin, MViTv2
  and MaxViT; where `create_feature_extractor` traces an adapted one, name the classes of its
  attentions in `tracer_kwargs={"leaf_modules": ...}`. TorchScript takes originals alone. Windows of
  up to 12 x 12 gain little, of 24 x 24 and whole images much.
- **OpenMMLab**: Swin of MMDetection (3.3), MMSegmentation (1.2), MMPretrain (1.2) and MMAction2
  (1.2, of videos), MMPretrain's Swin v2 and SAM, its and MMSegmentation's BEiT, its and MMAction2's
  MViTv2.
- **MViTv2** pools keys, and in some layers queries. Where the size of one grid does not divide that
  of the other along an axis, the originals round positions down, and so does an adapted one.
- **MONAI** (1.6): Swin UNETR, of images and of volumes. In a map smaller than a window the original
  takes the biases of the first tokens of a whole one; where these are not whole rows of it, as in
  the last stage for 96 x 96 x 96 voxels, it runs as before. `SABlock` and `CrossAttentionBlock`
  with `rel_pos_embedding="decomposed"`: those of images.
- **Enformer** (enformer-pytorch 0.8) and **Borzoi** (borzoi-pytorch 0.5), which read DNA, beside
  the older transformers that they ask for, too. Borzoi keeps the positions of its first call,
  whatever lengths follow; adapted, it has those of each length.
- **x-transformers** (2.31; 1.42 to 2.11 were tried): layers with `rel_pos_bias`, `dynamic_pos_bias`
  or `alibi_pos_bias`, for the first two of which it has no `attn_flash`. What is read of scores and
  weights (`return_attn`, `attn_z_loss_weight`) is computed then, `L x L`; so is ALiBi at positions
  that are given (`pos`). Layers whose weights are no softmax of such scores (talking heads, top k,
  sigmoid, CoPE), with memory keys (`attn_num_mem_kv`), `attn_max_attend_past`, `residual_attn` or
  rotary positions besides are left. Where padding on the left leaves a query of a decoder no key,
  it gives 0, not the mean of all values, which `shift_tokens` carries into real tokens.
- **NATTEN** (0.14 and 0.21 were tried) not by `adapt`: where NAT and DiNAT import
  `NeighborhoodAttention2D` from natten, import it from `relpos.adapters`, which reads their state
  dicts, biases included ([local.md](local.md#grids)).
- **ESPnet** (202511), **FunASR** (1.4: Conformer, Branchformer, E-Branchformer) and the `conformer`
  package: their relative attentions. ESPnet's and FunASR's have two forms. The first, `legacy`,
  gives a key ahead of the query the positions of the next query; its checkpoints were trained so,
  and adapted it does the same.
- **torchaudio** (2.11): WavLM. Its attention refuses `lengths`, adapted as before.
- **s3prl** (0.4): WavLM as its authors published it, in `WavLM.py` and `modules.py`. Of this file
  there are copies in many models: [register](#copies) their `MultiheadAttention`.
- **fairseq2** (0.8): `ShawRelativePositionSDPA`, which builds `L x L x d` rows of keys, and of
  values where it has those, and `RelativePositionSDPA`, of w2v-BERT's and other Conformers. Their
  masks may be none or causal, in a window too; in chunks, or with ALiBi, they run as before.
- **kornia** (0.9) and **ultralytics** (8.4): SAM's encoder of images.
- **Piper** (1.8) and **Coqui** (0.28): the encoder of text of Glow-TTS and VITS, with its mask of
  one row. Its `attn` is no longer updated: clear what an earlier call left there. Restore a model
  before it is exported by tracing, as Piper does.
- **spandrel** (0.4): the windows of SwinIR, Swin2SR, DRCT and HAT, of 64 and 256 tokens. The
  overlapping windows of HAT, whose keys reach beyond the queries, are left.
"""

COPIES = """\
## Copies

Many models hold a copy of another's file: a fork, the code beside weights on a hub
(`trust_remote_code`), Swin's windows, ESPnet's attention, VITS's `attentions.py`. `adapt` cannot
know whether a copy still computes the same, and leaves it; you can say that it does:

```
print(adapt(model))
# left as they were: 2
#   layers.{0..1}.attn  2  looks like relative attention, but relpos does not know WindowAttention;
#   if it is a copy of monai_swin.WindowAttention or timm_swin.WindowAttention:
#   relpos.adapters.register(..., like=...)

register(their_swin.WindowAttention, like="timm_swin.WindowAttention")
before = model(images)
adapt(model)
torch.testing.assert_close(model(images), before, rtol=1e-3, atol=1e-4)
```

`like` is a family and a class of [the table](#families). The report names those whose
methods take the same arguments and whose attributes the module has; how they compute is not
compared, so compare the outputs, once. A copy whose methods or attributes differ is left, and the
report says in what. Of a family with several classes (an attention and the encoder that makes its
masks) register each: those that only act together must lie in one module and are left until all
are, and an attention alone runs beside masks of all pairs. A subclass that changes nothing of the
attention is registered in the same way.
"""

FAMILIES = """\
## Families

Classes that `adapt` knows, in transformers where nothing else is said. The differences are the
largest over outputs, losses and gradients of small models (tests/adapters), with and without
padding, as a part of the largest value, in float64 and float32; float64 with the roundings to
float32 taken out that some originals make on their way. The speed-up is that of the attention
module, forward, and the memory that of two layers, original and adapted, both at the greatest
length in the tables above at which the original ran; where there is none, none was measured.
"""

LEFT_ALONE = """\
## Left as they are

These hold relative attention too, and the report of `adapt` says why it is not touched. Any other
module that looks like relative attention is reported by the name of its class, and so is a subclass
of one that is adapted. UniSpeech-SAT, Grounding DINO and DETR's kin have no relative attention of
their own in transformers.
"""


def adapters_page(result: dict, implementation: dict, gpu_result: dict | None = None) -> str:
    """The whole page.

    Args:
        result: of a CPU.
        implementation: of `benchmarks.attn_implementation`.
        gpu_result: of a GPU, if one was measured.
    """
    parts = [HEAD, GAINS.format(machine=measured_on(result, "time")), gains_table(result)]
    parts += [MEMORY.format(limit=LIMIT_GIB), memory_table(result)]
    if result.get("long"):
        parts += [LONG.format(machine=measured_on(result, "long")), long_table(result)]
    if gpu_result is not None:
        parts += [ON_GPU.format(machine=machine_note(gpu_result["machine"]))]
        parts += [gains_table(gpu_result), *left_out(gpu_result)]
    parts += [implementation_section(implementation), POSITIONS, OUTSIDE, COPIES]
    parts += [FAMILIES, _families_table(result), LEFT_ALONE, _left_table()]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _families_table(result: dict) -> str:
    errors = {row["module"]: row for row in result.get("equality", [])}
    rows = []
    for name, family in families().items():
        schemes = {cls: scheme for cls, scheme in family.schemes.items() if scheme}
        if not schemes:  # an encoder whose attention is in another file
            continue
        error = errors.get(family.module)
        rows.append([
            f"`{name}`", ", ".join(f"`{cls}`" for cls in schemes),
            "; ".join(dict.fromkeys(schemes.values())),
            *(["", ""] if error is None else
              [f"{error['float64']:.0e}", f"{error['float32']:.0e}"]),
            *_longest_measured(result, name),
        ])  # fmt: skip
    head = ["family", "classes", "scheme", "float64", "float32", "speed-up", "MiB"]
    return markdown_table(head, rows, 3)


def _longest_measured(result: dict, family: str) -> list[str]:
    """Attention's speed-ups and the memory of models, each at its greatest length."""
    speeds, memory = [], []
    for model in MODELS:
        if model.family != family:
            continue
        times = [
            row for row in result["time"]
            if (row["model"], row["part"], row["pass"]) == (model.name, "attention", FORWARD)
        ]  # fmt: skip
        sizes = [
            row for row in result["memory"] if row["model"] == model.name and row["original_mib"]
        ]
        if times:
            row = max(times, key=lambda row: row["length"])
            speeds.append(f"{format_ratio(row['speedup']['median'])} at {row['length']}")
        if sizes:
            row = max(sizes, key=lambda row: row["length"])
            original, adapted = row["original_mib"], row["adapted_mib"]
            memory.append(f"{original:.0f} -> {adapted:.0f} at {row['length']}")
    return ["; ".join(speeds), "; ".join(memory)]


def _left_table() -> str:
    rows = [
        [f"`{_model(module)}`", ", ".join(f"`{name}`" for name in names), reason]
        for module, reasons in NOT_ADAPTED.items()
        for reason, names in _by_reason(reasons).items()
    ]
    return markdown_table(["model", "classes", "why"], rows, 3)


def _model(module: str) -> str:
    """What a page calls it: of transformers the model, of others the library and its file."""
    library, *_, file = parts = module.split(".")
    return parts[-2] if library == "transformers" else f"{library} {file}"


def _by_reason(reasons: dict[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        found.setdefault(reason, []).append(name)
    return found


def adapters_verdict(result: dict) -> str:
    """Which targets are missed, a line each, and then how many there are."""
    missed, count = [], 0
    for row in result.get("time", []):
        (model,) = (model for model in MODELS if model.name == row["model"])
        wanted = model.wanted.get(row["length"]) if row["part"] == "attention" else None
        if row["pass"] == BOTH:
            wanted = None
        if row["length"] == model.lengths[0] and wanted is None:
            wanted = 0.95
        if wanted is None:
            continue
        count += 1
        if round(row["speedup"]["median"], 2) < wanted:
            missed.append(
                f"missed: {row['model']}, {row['length']}: {row['part']}, {row['pass']}: "
                f"{row['speedup']['median']:.2f} times as fast as {row['best']}, not {wanted:g}"
            )
    return "\n".join([*missed, f"{count} targets of {ADAPTED}'s adapters, {len(missed)} missed"])
