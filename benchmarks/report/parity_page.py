"""The page docs/parity.md, from nothing but the JSON of measured differences."""

from __future__ import annotations

from .cells import markdown_table

__all__ = ["parity_page"]

HEAD = """\
# Agreement with other implementations

<!-- Written by benchmarks/parity.py from benchmarks/results/parity.json. -->

Every scheme is compared with other people's code. Both sides get the same weights and the same
input, at lengths of 1, 33 and 65 tokens, with padding, a cache or fewer queries than keys where the
other side has them, on maps that are not square. What is compared are the outputs and the gradients
of the input and of every parameter, in float64. The differences below are the largest over all
cases, as parts of the largest value that was compared. One rounding in float64 is {epsilon}; the
tests allow one times the square root of the size of the largest tensor.

The formulas are what their code computes: `i` is the query, `j` the key, `S = 1/sqrt(d)`, `x` the
layer's input. `E`, `K`, `P`, `R` and `V` before brackets are tables of vectors, `H` and `W` those
of a map's rows `y` and columns `x`, `B` tables of scalars; `W`, `Wk` and `Wq` before a vector are
projections, `R_i` before one is the rotation of position `i`. Small letters are a clipping distance
`k`, indices `f` and `bucket`, vectors `u` and `v` of Transformer-XL, slopes `m`, `r1` and `r2`,
bases `z` of xPos (`B`: its scale), sinusoids `p` in head `n` of `h`, gates `a_i` and `r_i` made of
the query and a head's constant `c` (WavLM), temperature `t` and signed logarithm `g` (Swin v2), a
softcap or a fixed factor `c`, and windows `l`, `r`, `n` and `p`. Where a row counts `i - j` its
tables are read backwards. Where keys are limited to a window or a range, tests show that one token
more or less at either end is seen, in outputs and in gradients, and so is a softcap that is
missing.
"""

AGREE = "Buckets and slopes are compared one by one as well, up to a distance of 3000 tokens."

WRONG = """\
## Wrong elsewhere

These are in use, and compute something else than they say. A test shows what; the difference is
from the definition, as a part of the largest right value.
"""

END = """\
## Not compared

- Eager attention of Parakeet, SAM and Swin takes its softmax in float32 whatever the input is; the
  comparisons are with their other path, of the same formula, which does not. LongT5, Longformer and
  Gemma 3n have no other: there the softmax is replaced by one that stays in float64. Gemma 3n's
  sinusoids, of float32, are on both sides.
- KERPLE's logarithm is in no package that the set-up installs: it is compared with the paper's
  formula alone, its power with ALiBi. Sandwich is compared with inner products of somebody else's
  sinusoids.
- Sinusoids in speech encoders are made in float32. They agree with ours within that, and the
  comparisons of Transformer-XL hand ours to both sides.
- MViTv2 as torchvision, timm and OpenMMLab have it: adapted models are compared with theirs
  ([adapters.md](adapters.md)). Here its formula is ViTDet's, and so is its function for pooled
  queries and keys.

Measured with torch {torch} on {system}, relpos {commit}. `make setup` installs all of these
implementations, `make test` compares them anew, and `make parity` writes this page.
"""


def _code(text: str) -> str:
    """As code in a cell of a Markdown table, where a bar would end the cell."""
    return "`" + text.replace("|", r"\|") + "`"


def parity_page(result: dict) -> str:
    """The whole page."""
    agreeing = [
        [_code(row["scheme"]), _code(row["implementation"]), f"{row['package']} {row['version']}",
         _code(row["formula"]), row["remark"],
         f"{row['forward']:.0e}", f"{row['gradients']:.0e}"]
        for row in result["comparisons"]
    ]  # fmt: skip
    wrong = [
        [_code(row["implementation"]), f"{row['package']} {row['version']}", row["reason"],
         "none to compare" if row["difference"] is None else f"{row['difference']:.1g}",
         _code(row["test"])]
        for row in result["mistakes"]
    ]  # fmt: skip
    head = ["scheme", "implementation", "package", "formula", "remark", "outputs", "gradients"]
    wrong_head = ["implementation", "package", "what it does", "difference", "test"]
    parts = [
        HEAD.format(epsilon=f"{2.0**-52:.0e}"), markdown_table(head, agreeing, len(head)), AGREE,
        WRONG, markdown_table(wrong_head, wrong, len(wrong_head)), END.format(**result["machine"]),
    ]  # fmt: skip
    return "\n\n".join(part.strip() for part in parts) + "\n"
