"""Tokens per second of the music model with its cache, with relative terms and without.

Every round draws a whole sequence with each model, one after the other; a ratio is taken within its
round. Weights are random.

    python -m benchmarks.generation
    python -m benchmarks.generation --presets default --tokens 256 --rounds 2 --out some.json
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch import Tensor

from relpos.ops.native.library import instructions
from relpos_tasks.models.decoder import DecoderConfig, DecoderLM
from relpos_tasks.models.generation import sample
from relpos_tasks.music.settings import preset
from relpos_tasks.music.tokens import Vocabulary

from .files import RESULTS, save
from .measure.machine import machine
from .measure.timing import percentiles
from .options import check_out

NO_POSITIONS = "none"
POSITIONS = ("huang", "shaw", NO_POSITIONS)
SIZES = ("default", "paper")  # presets of the task
TOKENS = 4096
LAST = 512  # tokens that are counted by themselves, too


def make_model(name: str, position: str, tokens: int) -> DecoderLM:
    """The model of a preset, with rows for so many tokens."""
    settings = preset(name)
    torch.manual_seed(0)
    config = DecoderConfig(
        vocabulary=Vocabulary(lowest=36, highest=81).size,
        width=settings.width,
        layers=settings.layers,
        heads=settings.heads,
        hidden=settings.hidden,
        position=position,
        max_length=tokens,
    )
    return DecoderLM(config)


def seconds_of_tokens(model: DecoderLM, tokens: int) -> list[float]:
    """When each of so many tokens is drawn, after the start."""
    times = []

    def note(_: Tensor, logits: Tensor) -> Tensor:
        times.append(time.perf_counter() - start)
        return logits

    prompt = torch.zeros(1, 1, dtype=torch.int64)
    start = time.perf_counter()
    sample(model, prompt, tokens, constrain=note, generator=torch.Generator().manual_seed(0))
    return times


def measure(name: str, tokens: int, rounds: int) -> list[dict]:
    """Rows of the result, one for each scheme of positions."""
    models = {position: make_model(name, position, tokens) for position in POSITIONS}
    last = min(LAST, tokens - 1)
    whole: dict[str, list[float]] = {position: [] for position in POSITIONS}
    end: dict[str, list[float]] = {position: [] for position in POSITIONS}
    for model in models.values():
        seconds_of_tokens(model, 16)  # loads what is loaded once
    for _ in range(rounds):
        for position, model in models.items():
            times = seconds_of_tokens(model, tokens)
            whole[position].append(times[-1])
            end[position].append(times[-1] - times[-1 - last])
    rows = []
    for position in POSITIONS:
        rows.append(
            {
                "model": name,
                "position": position,
                "tokens_per_second": percentiles([tokens / one for one in whole[position]]),
                "last_tokens_per_second": percentiles([last / one for one in end[position]]),
                "ratio": _ratios(whole, position),
                "last_ratio": _ratios(end, position),
            }
        )
        print(
            f"{name:8} {position:6} {rows[-1]['tokens_per_second']['median']:7.0f} tokens/s, "
            f"{rows[-1]['ratio']['median']:.2f} times as long as none; of the last {last} "
            f"{rows[-1]['last_tokens_per_second']['median']:7.0f} tokens/s, "
            f"{rows[-1]['last_ratio']['median']:.2f}",
            flush=True,
        )
    return rows


def _ratios(seconds: dict[str, list[float]], position: str) -> dict[str, float]:
    """As multiples of those without positions, round by round."""
    pairs = zip(seconds[position], seconds[NO_POSITIONS], strict=True)
    return percentiles([own / none for own, none in pairs])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--presets", nargs="+", choices=SIZES, default=SIZES, help="(all)")
    parser.add_argument("--tokens", type=int, default=TOKENS, help=f"({TOKENS})")
    parser.add_argument("--rounds", type=int, default=3, help="(3)")
    parser.add_argument("--out", type=Path, help="benchmarks/results/generation.json")
    options = parser.parse_args()
    if options.tokens < 2 or options.rounds < 2:
        parser.error("--tokens and --rounds: must be 2 or more")
    if options.out is None and (set(options.presets) != set(SIZES) or options.tokens != TOKENS):
        parser.error("--out: must be given with --presets or --tokens, whose result is a part")
    out = options.out or RESULTS / "generation.json"
    check_out(parser, out)
    rows = [
        row for name in options.presets for row in measure(name, options.tokens, options.rounds)
    ]
    result = {
        "machine": machine() | {"instructions": instructions()},
        "tokens": options.tokens,
        "last": min(LAST, options.tokens - 1),
        "generation": rows,
    }
    save(out, result)
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
