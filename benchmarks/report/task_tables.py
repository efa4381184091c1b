"""Tables of the runs of tasks, for the pages: music, translation, vision."""

from __future__ import annotations

from relpos_tasks.models.map_positions import MAP_POSITIONS
from relpos_tasks.models.positions import POSITIONS
from relpos_tasks.music.reported import Reported
from relpos_tasks.training.comparison import mean_and_spread
from relpos_tasks.translation.positions import title_of
from relpos_tasks.vision.wording import TEST_TITLES

from .cells import format_change, markdown_table

__all__ = ["music_table", "translation_table", "vision_table"]


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
