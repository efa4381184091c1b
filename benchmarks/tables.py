"""Write the README's tables and docs/benchmark.md from the JSON of measured runs.

No figure there is typed by hand.

python benchmarks/tables.py            # rewrites both
python benchmarks/tables.py --check    # exits 1 if one of them is not what the JSON says
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from cases import NATIVE, TRITON
from cuda_scenes import ON_CUDA, RIVALS
from figures import PASSES, amount, by_contender, grid, has, load, machine_note, ratio
from page import page
from targets import TARGETS, verdict

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGE = ROOT / "docs" / "benchmark.md"
SCENE = "L=2048"
NO_CUDA = (
    "On a GPU: not measured ([docs/benchmark.md](docs/benchmark.md) has what is wanted of one)."
)


def time_table(result: dict) -> str:
    """Ratios to plain SDPA, the compiled kernel's first, and how much longer the rivals take."""
    found, settings = by_contender(result, SCENE), result["scenes"][SCENE]
    ours, rivals = [], []
    for case in settings["cases"]:
        native, tiled = (found.get((case, f"relpos {name}"), {}) for name in ("native", "tiled"))
        error = f"{native['forward']['error']:.0e}" if native else "none"
        ours.append([case, *(ratio(native, label) for label in PASSES),
                     *(ratio(tiled, label, spread=False) for label in PASSES), error])  # fmt: skip
    for (case, contender), passes in found.items():
        if not contender.startswith("relpos"):
            times = [ratio(passes, label, NATIVE, spread=False) for label in PASSES]
            rivals.append([contender, case, *times])
    note = (
        f"Time as a multiple of plain `scaled_dot_product_attention` (causal where the scheme is): "
        f"medians of ratios within interleaved rounds, 20th to 80th percentile; largest "
        f"difference of native's output from float64. B={settings['batch']}, "
        f"H={settings['heads']}, L={settings['queries']}, d={settings['width']}, "
        f"{settings['dtype']}, {machine_note(result['machine'])}."
    )
    head = ["scheme", "native, forward", "forward + backward",
            "tiled, forward", "forward + backward", "error"]  # fmt: skip
    beside = (
        "How many times as long as native others take (FlexAttention has no backward on the CPU):"
    )
    rivals_head = ["what people run", "scheme", "forward", "forward + backward"]
    measured = sum(one.measured(result) is not None for one in TARGETS)
    missed = sum(one.missed(result) for one in TARGETS)
    summary = (
        f"[docs/benchmark.md](docs/benchmark.md) has other lengths, few heads, bfloat16, decoding "
        f"and short sequences, and {len(TARGETS)} targets: {measured} measured, {missed} missed."
    )
    return "\n\n".join([note, grid(head, ours), beside, grid(rivals_head, rivals, 2), summary])


def memory_table(result: dict) -> str:
    """Peaks of processes at the longest length."""
    sizes = result["scenes"]
    longest = max(sizes[row["scene"]]["queries"] for row in result["memory"])
    rows = [
        [row["case"], row["contender"], f"{row['growth_mib']:.0f} ({row['unit_growth_mib']:.0f})",
         f"{row['peak_mib']:.0f} ({row['unit_peak_mib']:.0f})", amount(row["peak_ratio"])]
        for row in result["memory"]
        if sizes[row["scene"]]["queries"] == longest
    ]  # fmt: skip
    head = ["scheme", "computed by", "growth, MiB", "whole process, MiB", "ratio"]
    note = (
        f"Peak memory of a fresh process over forward and backward at L={longest}, B=1, H=8, in "
        "brackets that of plain SDPA, and the ratio of the processes."
    )
    return f"{note}\n\n{grid(head, rows, 2)}"


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


def cuda_table(result: dict) -> str:
    """Ratios to the fastest SDPA on a GPU, and what became of the targets."""
    rows = [
        [scene, case, *(ratio(passes, label) for label in PASSES),
         f"{passes['forward']['error']:.0e}"]
        for scene in (one.name for one in ON_CUDA if RIVALS not in one.name)
        for (case, contender), passes in by_contender(result, scene).items()
        if contender == TRITON
    ]  # fmt: skip
    note = (
        "On a GPU, as a multiple of the fastest of torch's SDPA backends (causal where the scheme "
        "is): medians of ratios within interleaved rounds, 20th to 80th percentile; largest "
        f"difference from float64. H=16, bfloat16, {machine_note(result['machine'])}."
    )
    head = ["setting", "scheme", "triton, forward", "forward + backward", "error"]
    return "\n\n".join([note, grid(head, rows, 2), verdict(result).splitlines()[-1] + "."])


def readme(text: str, result: dict, cuda: dict | None = None) -> str:
    """The README with each part between its markers made anew."""
    parts = {
        "time": time_table(result),
        "memory": memory_table(result),
        "chorales": chorale_table(load("chorales.json")),
        "literature": chorale_table(load("literature.json")),
    }
    parts["cuda"] = NO_CUDA if cuda is None else cuda_table(cuda)
    for name, part in parts.items():
        pattern = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
        text, count = re.subn(
            pattern, lambda m, part=part: f"{m[1]}{part}\n{m[2]}", text, flags=re.S
        )
        if count != 1:
            sys.exit(f"benchmarks/tables.py: README.md must have one <!-- {name} --> part")
    return text


def main() -> None:
    result, cuda = load("cpu.json"), load("cuda.json") if has("cuda.json") else None
    written = {
        README: readme(README.read_text(), result, cuda),
        PAGE: page(result, load("choice.json"), load("training.json"), cuda),
    }
    for path, text in written.items():
        if "--check" not in sys.argv:
            path.write_text(text)
            print(f"wrote {path.relative_to(ROOT)}")
        elif not path.exists() or path.read_text() != text:
            sys.exit(f"{path.relative_to(ROOT)} is not what the JSON says: run make bench")


if __name__ == "__main__":
    main()
