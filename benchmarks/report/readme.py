"""The tables of README.md, from the JSON of measured runs."""

from __future__ import annotations

import re
import sys

from relpos_tasks.models.map_positions import MAP_POSITIONS
from relpos_tasks.models.positions import POSITIONS
from relpos_tasks.music.reported import HUANG_2018, Reported
from relpos_tasks.training.comparison import mean_and_spread
from relpos_tasks.translation.positions import title_of
from relpos_tasks.vision.wording import TEST_TITLES

from ..files import has, load
from ..measure.passes import BOTH, FORWARD
from ..workloads.adapted import MODELS
from ..workloads.gpu_settings import GPU_SETTINGS, MORE_GPU_SETTINGS, RIVALS_SUFFIX
from ..workloads.workload import NATIVE, TILED, TRITON
from .adapters_page import gains_table, measured_on
from .cells import (
    PASSES,
    by_contender,
    format_change,
    format_ratio,
    machine_note,
    markdown_table,
    ratio,
)
from .league_excerpt import league_excerpt
from .league_grounds import GROUNDS
from .local_section import local_table
from .targets import GPU_TARGETS, TARGETS, verdict

__all__ = ["readme"]

SETTING = "L=2048"
# Settings of `results/half.json`.
HALF_DTYPES = {
    "bfloat16": "bfloat16, d=64",
    "float16": "float16, d=64",
    'float32, `"high"`': "float32 (high), d=64",
}
NO_GPU = (
    "On a GPU: not measured ([docs/benchmark.md](docs/benchmark.md) has what is wanted of one)."
)


def time_table(result: dict) -> str:
    """Ratios to plain SDPA, the compiled kernel's first, and how much longer the rivals take."""
    found, sizes = by_contender(result, SETTING), result["settings"][SETTING]
    ours, rivals = [], []
    for scheme in sizes["workloads"]:
        native, tiled = (found.get((scheme, f"relpos {name}"), {}) for name in ("native", "tiled"))
        error = f"{native['forward']['error']:.0e}" if native else "none"
        ours.append([scheme, *(ratio(native, label) for label in PASSES),
                     *(ratio(tiled, label, spread=False) for label in PASSES), error])  # fmt: skip
    for (scheme, contender), passes in found.items():
        if not contender.startswith("relpos"):
            times = [ratio(passes, label, NATIVE, spread=False) for label in PASSES]
            rivals.append([contender, scheme, *times])
    note = (
        f"Time as a multiple of plain `scaled_dot_product_attention` (causal where the scheme is): "
        f"medians of ratios within interleaved rounds, 20th to 80th percentile; largest "
        f"difference of native's output from float64. B={sizes['batch']}, "
        f"H={sizes['heads']}, L={sizes['queries']}, d={sizes['width']}, "
        f"{sizes['dtype']}, {machine_note(result['machine'])}."
    )
    head = ["scheme", "native, forward", "forward + backward",
            "tiled, forward", "forward + backward", "error"]  # fmt: skip
    beside = (
        "How many times as long as native others take (FlexAttention has no backward on the CPU):"
    )
    rivals_head = ["what people run", "scheme", "forward", "forward + backward"]
    measured = sum(target.measured(result) is not None for target in TARGETS)
    missed = sum(target.missed(result) for target in TARGETS)
    summary = (
        f"[docs/benchmark.md](docs/benchmark.md) has other lengths, few heads, bfloat16, decoding "
        f"and short sequences, and {len(TARGETS)} targets: {measured} measured, {missed} missed."
    )
    return "\n\n".join(
        [note, markdown_table(head, ours), beside, markdown_table(rivals_head, rivals, 2), summary]
    )


def memory_table(result: dict) -> str:
    """Peaks of processes at the longest length."""
    sizes = result["settings"]
    longest = max(sizes[row["setting"]]["queries"] for row in result["memory"])
    rows = [
        [row["workload"], row["contender"],
         f"{row['growth_mib']:.0f} ({row['unit_growth_mib']:.0f})",
         f"{row['peak_mib']:.0f} ({row['unit_peak_mib']:.0f})", format_ratio(row["peak_ratio"])]
        for row in result["memory"]
        if sizes[row["setting"]]["queries"] == longest
    ]  # fmt: skip
    head = ["scheme", "computed by", "growth, MiB", "whole process, MiB", "ratio"]
    note = (
        f"Peak memory of a fresh process over forward and backward at L={longest}, B=1, H=8, in "
        "brackets that of plain SDPA, and the ratio of the processes."
    )
    return f"{note}\n\n{markdown_table(head, rows, 2)}"


def half_part(result: dict) -> str:
    """16 bits and split float32, at the sizes of `HALF_DTYPES`."""
    settings = {dtype: by_contender(result, name) for dtype, name in HALF_DTYPES.items()}
    sizes = result["settings"][next(iter(HALF_DTYPES.values()))]
    rows = [
        [scheme, *(ratio(found.get((scheme, NATIVE), {}), label, spread=False)
                   for found in settings.values() for label in PASSES)]
        for scheme in sizes["workloads"]
    ]  # fmt: skip
    note = (
        "In 16 bits, and in float32 where torch may make its products with less, on a processor "
        "with a matrix unit (AMX): time as a multiple of plain SDPA in the same dtype. "
        f"B={sizes['batch']}, H={sizes['heads']}, L={sizes['queries']}, d={sizes['width']}, "
        f"{machine_note(result['machine'] | {'commit': result['commits']['time']})}."
    )
    head = ["scheme", *(cell for dtype in settings for cell in (dtype, "with backward"))]
    return f"{note}\n\n{markdown_table(head, rows)}"


def local_part(result: dict) -> str:
    """Local attention beside its floor and FlexAttention."""
    note = (
        "Time as a multiple of the floor, which is the share of pairs that takes part times plain "
        "SDPA's time over all pairs; in square brackets as a multiple of plain SDPA's. "
        f"B=1, H=8, L={result['length']}, d=64, float32, {machine_note(result['machine'])}."
    )
    return f"{note}\n\n{local_table(result)}"


def adapters_part(result: dict) -> str:
    """What adapted models gain, at their longest input that is timed."""
    note = (
        "How many times as fast as the original, by the fastest of its own implementations (one "
        "layer at the sizes of published models, float32, "
        f"{measured_on(result, 'time')}):"
    )
    best_known = tuple(model for model in MODELS if model.wanted)
    return f"{note}\n\n{gains_table(result, best_known)}"


def music_table(metrics: dict, reported: Reported | None = None) -> str:
    """Held-out nats per token of a comparison on music, by scheme and by length.

    Args:
        metrics: of the run.
        reported: figures of others on the same pieces; None: there are none.
    """
    held = metrics["held_out"]
    rows = [[_music_model(name), mean_and_spread(found["nats_by_seed"])]
            for name, found in held.items()]  # fmt: skip
    if reported is not None:
        rows += [[f"{name} (from memory)", f"{nats:.3f}"] for name, nats in reported.nats.items()]
    rows += [[f"counting: {name}", f"{nats:.3f}"] for name, nats in metrics["counting"].items()]
    seeds = _seeds_in_words(len(next(iter(held.values()))["nats_by_seed"]))
    text = (
        f"Held-out nats per token after {metrics['steps']} steps each, {seeds} "
        f"({_job(metrics)}):\n\n"
        f"{markdown_table(['model', 'nats per token'], rows)}"
    )
    measured = any(metrics["lengths"].values())
    return f"{text}\n\n{_by_length(metrics['lengths'])}" if measured else text


def _by_length(lengths: dict[str, dict[str, float]]) -> str:
    """Nats per token by scheme and window, and what the longest costs against the shortest."""
    windows = sorted(next(iter(lengths.values())), key=int)
    shortest, longest = windows[0], windows[-1]
    rows = [
        [_music_model(name), *(f"{found[window]:.3f}" for window in windows),
         format_change(found[longest] - found[shortest])]
        for name, found in lengths.items()
    ]  # fmt: skip
    head = ["tokens", *windows, f"{longest} against {shortest}"]
    return f"Trained at {shortest} tokens, measured at more:\n\n{markdown_table(head, rows)}"


def _music_model(position: str) -> str:
    scheme = POSITIONS[position]
    told = not scheme.relative or "relative" in scheme.title
    return scheme.title if told else f"{scheme.title}, relative"


def _job(metrics: dict) -> str:
    """How long a whole comparison took, and on what; no time where something else ran beside."""
    machine = metrics["machine"]
    capability = f" ({machine['instructions']})" if "instructions" in machine else ""
    # Seeds that were added may be of another machine: "2 (2 used); 4 (1 used)".
    cores = machine["cores"].replace(" (", " cores (")
    where = f"{machine['processor']}{capability}, {cores}"
    if machine.get("accelerator"):
        where = f"one {machine['accelerator']} beside {where}"
    if any(metrics.get("timed_on_a_busy_machine", {}).values()):
        return f"on {where}; it was busy, so no time is told"
    return f"{metrics['seconds']:.0f} s for the whole job on {where}"


def _seeds_in_words(count: int) -> str:
    return "one seed" if count == 1 else f"means of {count} seeds"


def translation_table(metrics: dict) -> str:
    """BLEU, chrF and nats on held-out sentences, and differences from the first scheme."""
    rows = []
    for name, found in metrics["held_out"].items():
        less = "the baseline"
        if "difference" in found:
            bleu = found["difference"]["bleu"]
            less = f"{bleu['value']:+.1f} ({bleu['low']:+.1f} to {bleu['high']:+.1f})"
        rows.append(
            [
                title_of(name),
                f"{found['bleu']:.1f} ({found['bleu_low']:.1f} to {found['bleu_high']:.1f})",
                less,
                f"{found['chrf']:.1f}",
                f"{found['nats']:.3f}",
            ]
        )
    first, seeds = title_of(next(iter(metrics["held_out"]))), _seeds_in_words(len(metrics["seeds"]))
    translations = metrics["translations"]
    return (
        f"On {translations['sentences']:,} held-out sentences after {metrics['steps']} steps each, "
        f"{seeds}; intervals of 95 %, of the first seed ({_job(metrics)}; "
        f"{translations['signatures']['bleu']}):\n\n"
        + markdown_table(
            ["positions", "BLEU", f"BLEU less that of {first}", "chrF", "nats per target token"],
            rows,
        )
    )


def vision_table(metrics: dict) -> str:
    """Held-out accuracy on canvases of digits, by position and test."""
    rows = [
        [f"`{name}`: {MAP_POSITIONS[name].title}", *(f"{found[test]:.3f}" for test in TEST_TITLES)]
        for name, found in metrics["held_out"].items()
    ]
    seeds = _seeds_in_words(len(metrics["seeds"]))
    return (
        f"Share of held-out ink pixels labelled rightly after {metrics['steps']} steps each on "
        f"canvases of 16 x 16, {seeds} ({_job(metrics)}):\n\n"
        f"{markdown_table(['positions', *TEST_TITLES.values()], rows)}"
    )


def gpu_table(result: dict) -> str:
    """Ratios to the fastest SDPA on a GPU, and what became of the targets."""
    rows = [
        [one.name, scheme, ratio(passes, FORWARD),
         ratio(passes, BOTH) if one.backward else "no backward",
         f"{passes[FORWARD]['error']:.0e}"]
        for one in GPU_SETTINGS if RIVALS_SUFFIX not in one.name
        for (scheme, contender), passes in by_contender(result, one.name).items()
        if contender == TRITON
    ]  # fmt: skip
    note = (
        "On a GPU, as a multiple of the fastest of torch's SDPA backends (causal where the scheme "
        "is): medians of ratios within interleaved rounds, 20th to 80th percentile; largest "
        f"difference from float64. H=16, bfloat16, {machine_note(result['machine'])}."
    )
    head = ["setting", "scheme", "triton, forward", "forward + backward", "error"]
    return "\n\n".join(
        [note, markdown_table(head, rows, 2), verdict(result, GPU_TARGETS).splitlines()[-1] + "."]
    )


def more_gpu_table(result: dict) -> str:
    """The same in float32, and for other grids, beside the blockwise backend."""
    rows = []
    for one in MORE_GPU_SETTINGS:
        found = by_contender(result, one.name)
        for scheme in dict.fromkeys(scheme for scheme, _ in found):
            ours = found.get((scheme, TRITON))
            if ours is None:  # left out, as the page of all says
                continue
            blockwise = found.get((scheme, TILED), {})
            cells = [ratio(passes, label) for label in PASSES for passes in (ours, blockwise)]
            rows.append([one.name, scheme, *cells, f"{ours[FORWARD]['error']:.0e}"])
    note = f"In float32, and for grids in bfloat16, likewise, {machine_note(result['machine'])}."
    head = ["setting", "scheme"]
    head += [f"{backend}, {label}" for label in PASSES for backend in ("triton", "tiled")]
    return f"{note}\n\n{markdown_table([*head, 'error'], rows, 2)}"


def gpu_part(result: dict | None, more: dict | None) -> str:
    """What was measured on GPUs."""
    if result is None:
        return NO_GPU
    return gpu_table(result) if more is None else f"{gpu_table(result)}\n\n{more_gpu_table(more)}"


def readme(text: str, result: dict, gpu_result: dict | None = None) -> str:
    """The README with each part between its markers made anew."""
    parts = {
        "adapters": adapters_part(load("adapters.json")),
        "time": time_table(result),
        "memory": memory_table(result),
        "half": half_part(load("half.json")),
        "local": local_part(load("local.json")),
        "chorales": music_table(load("chorales.json")),
        "literature": music_table(load("literature.json"), HUANG_2018),
        "paper": music_table(load("paper.json")),
        "performances": music_table(load("performances.json"))
        if has("performances.json")
        else "Not measured yet.",
        "league": league_excerpt(
            {file: load(file) for file in GROUNDS["music"].files if has(file)},
            load("steps.json") if has("steps.json") else None,
        ),
        "translation": translation_table(load("translation.json"))
        if has("translation.json")
        else "Not measured yet.",
        "vision": vision_table(load("vision.json")),
    }
    more = load("cuda_more.json") if has("cuda_more.json") else None
    parts["cuda"] = gpu_part(gpu_result, more)
    for name, part in parts.items():
        pattern = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
        text, count = re.subn(
            pattern, lambda m, part=part: f"{m[1]}{part}\n{m[2]}", text, flags=re.S
        )
        if count != 1:
            sys.exit(f"benchmarks.tables: README.md must have one <!-- {name} --> part")
    return text
