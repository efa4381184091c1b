"""How far relpos is from other implementations of the same formulas, and the page that says it.

The comparisons are those of `tests/parity`: outputs and all gradients from the same weights, the
largest difference over all cases. No figure of the page is typed by hand.

    python benchmarks/parity.py            # compares; writes results/parity.json, docs/parity.md
    python benchmarks/parity.py --page     # writes the page from the JSON
    python benchmarks/parity.py --check    # exits 1 if the page is not what the JSON says
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from figures import load
from machine import machine

ROOT = Path(__file__).parent.parent
RESULT = ROOT / "benchmarks" / "results" / "parity.json"
PAGE = ROOT / "docs" / "parity.md"

HEAD = """\
# Agreement with other implementations

<!-- Written by benchmarks/parity.py from benchmarks/results/parity.json. -->

Every scheme is compared with other people's code. Both sides get the same weights and the same
input, at lengths of 1, 33 and 65 tokens, with padding, a cache or fewer queries than keys where the
other side has them, on maps that are not square. What is compared are the outputs and the gradients
of the input and of every parameter, in float64. The differences below are the largest over all
cases, as parts of the largest value that was compared. One rounding in float64 is {epsilon}; the
tests allow one times the square root of the size of the largest tensor.

The formulas are what their code computes, in relpos's letters: `i` is the query, `j` the key,
`S = 1/sqrt(d)`. Where a row counts `i - j` its tables are read backwards.
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
  comparisons are with their other path, of the same formula, which does not.
- Sinusoids in speech encoders are made in float32. They agree with ours within that, and the
  comparisons of Transformer-XL hand ours to both sides.
- MViTv2's own code comes with torchvision or timm, which the set-up leaves out. ViTDet has its
  formula, and its function for pooled queries and keys.

Measured with torch {torch} on {system}, relpos {commit}. `make setup` installs all of these
implementations, `make test` compares them anew, and `make parity` writes this page.
"""


def measured() -> dict:
    """All comparisons, each over all its cases, and the mistakes."""
    sys.path.insert(0, str(ROOT))
    from tests.parity.comparison import compare
    from tests.parity.mistakes import MISTAKES
    from tests.parity.oracles import COMPARISONS

    rows = []
    for comparison in COMPARISONS:
        differences = [compare(comparison.run(**case)) for case in comparison.cases]
        rows.append(
            {
                **comparison.named(),
                "forward": max(difference.forward for difference in differences),
                "gradients": max(difference.gradients for difference in differences),
                "cases": len(comparison.cases),
            }
        )
        print(f"{rows[-1]['scheme']:16} {rows[-1]['implementation']:44} "
              f"{rows[-1]['forward']:.0e} {rows[-1]['gradients']:.0e}")  # fmt: skip
    mistakes = [{**mistake.named(), "difference": mistake.difference()} for mistake in MISTAKES]
    return {"machine": machine(), "comparisons": rows, "mistakes": mistakes}


def code(text: str) -> str:
    """As code in a cell of a Markdown table, where a bar would end the cell."""
    return "`" + text.replace("|", r"\|") + "`"


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    return "\n".join(
        "| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows)
    )


def page(result: dict) -> str:
    """The page, from nothing but the JSON."""
    agreeing = [
        [code(row["scheme"]), code(row["implementation"]), f"{row['package']} {row['version']}",
         code(row["formula"]), row["remark"],
         f"{row['forward']:.0e}", f"{row['gradients']:.0e}"]
        for row in result["comparisons"]
    ]  # fmt: skip
    wrong = [
        [code(row["implementation"]), f"{row['package']} {row['version']}", row["reason"],
         "none to compare" if row["difference"] is None else f"{row['difference']:.1g}",
         code(row["test"])]
        for row in result["mistakes"]
    ]  # fmt: skip
    head = ["scheme", "implementation", "package", "formula", "remark", "outputs", "gradients"]
    wrong_head = ["implementation", "package", "what it does", "difference", "test"]
    parts = [
        HEAD.format(epsilon=f"{2.0**-52:.0e}"), table(head, agreeing), AGREE, WRONG,
        table(wrong_head, wrong), END.format(**result["machine"]),
    ]  # fmt: skip
    return "\n\n".join(part.strip() for part in parts) + "\n"


def main() -> None:
    if "--check" in sys.argv:
        same = PAGE.read_text() == page(load(RESULT.name))
        sys.exit(not same and "docs/parity.md is not what the JSON says: run make parity")
    if "--page" not in sys.argv:
        RESULT.write_text(json.dumps(measured(), indent=2) + "\n")
    PAGE.write_text(page(load(RESULT.name)))
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
