"""Write the README's tables from the JSON of measured runs; no figure there is typed by hand.

python benchmarks/tables.py            # rewrites README.md
python benchmarks/tables.py --check    # exits 1 if README.md is not what the JSON says
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
README = HERE.parent / "README.md"


def load(name: str) -> dict:
    return json.loads((HERE / "results" / name).read_text())


def grid(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table; the first column to the left, the others to the right."""
    rule = ["---"] + ["---:"] * (len(head) - 1)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *rows))


def time_table(result: dict) -> str:
    """Ratios to plain SDPA by case and contender."""
    by_row: dict[tuple[str, str], dict[str, dict]] = {}
    for row in result["time"]:
        by_row.setdefault((row["case"], row["contender"]), {})[row["pass"]] = row

    def ratio(passes: dict[str, dict], name: str) -> str:
        if name not in passes:
            return "none"
        own = passes[name]["ratio"]
        return f"{own['median']:.2f} ({own['p20']:.2f} to {own['p80']:.2f})"

    rows = [
        [case, contender, ratio(passes, "forward"), ratio(passes, "forward+backward"),
         f"{passes['forward']['error']:.0e}"]
        for (case, contender), passes in by_row.items()
    ]  # fmt: skip
    head = ["scheme", "computed by", "forward", "forward + backward", "error"]
    settings, machine = result["settings"], result["machine"]
    length = result["time"][0]["length"]
    note = (
        f"Time as a multiple of plain `scaled_dot_product_attention` (causal where the scheme is): "
        f"medians of ratios within {settings['rounds']} interleaved rounds, 20th to 80th "
        f"percentile; largest difference from float64 in the output. B={settings['batch']}, "
        f"H={settings['heads']}, L={length}, d={settings['width']}, {settings['dtype']}, "
        f"{machine['threads']} threads of an {machine['processor']} ({machine['capability']}), "
        f"torch {machine['torch']}. FlexAttention has no backward on the CPU."
    )
    return f"{note}\n\n{grid(head, rows)}"


def memory_table(result: dict) -> str:
    """Growth of a process by forward and backward."""
    rows = [
        [f"{row['case']}, L={row['length']}, B={row['batch']}", row["contender"],
         f"{row['growth_mib']:.0f}", f"{row['peak_mib']:.0f}"]
        for row in result["memory"]
    ]  # fmt: skip
    head = ["scheme", "computed by", "growth, MiB", "whole process, MiB"]
    note = "Peak memory of a fresh process over forward and backward (inputs and gradients count)."
    return f"{note}\n\n{grid(head, rows)}"


def chorale_table(metrics: dict) -> str:
    """Held-out nats per token of the main job, and by length."""
    held = metrics["held_out"]
    rows = [["Huang, relative", f"{held['huang']:.3f}"],
            ["learned absolute", f"{held['absolute']:.3f}"]]  # fmt: skip
    rows += [[f"counting: {name}", f"{nats:.3f}"] for name, nats in held["counting"].items()]
    lengths = list(metrics["lengths"]["huang"])
    by_length = [
        [name, *(f"{metrics['lengths'][key][tokens]:.3f}" for tokens in lengths)]
        for key, name in (("huang", "Huang, relative"), ("absolute", "learned absolute"))
    ]
    return (
        f"Held-out nats per token after {metrics['steps']} steps each "
        f"({metrics['seconds']:.0f} s for the whole job on this machine):\n\n"
        f"{grid(['model', 'nats per token'], rows)}\n\n"
        f"Trained at {lengths[0]} tokens, measured at more:\n\n"
        f"{grid(['tokens', *lengths], by_length)}"
    )


def written(text: str) -> str:
    """The README with each part between its markers made anew."""
    attention, chorales = load("cpu.json"), load("chorales.json")
    parts = {
        "time": time_table(attention),
        "memory": memory_table(attention),
        "chorales": chorale_table(chorales),
        "literature": chorale_table(load("literature.json")),
    }
    for name, part in parts.items():
        pattern = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
        text, count = re.subn(
            pattern, lambda m, part=part: f"{m[1]}{part}\n{m[2]}", text, flags=re.S
        )
        if count != 1:
            sys.exit(f"benchmarks/tables.py: README.md must have one <!-- {name} --> part")
    return text


def main() -> None:
    before = README.read_text()
    after = written(before)
    if "--check" in sys.argv:
        sys.exit(after != before and "README.md is not what the JSON says: run make bench")
    README.write_text(after)
    print(f"wrote {README.name}")


if __name__ == "__main__":
    main()
