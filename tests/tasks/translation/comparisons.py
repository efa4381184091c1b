"""Results of comparisons nobody trained for: untrained models, made-up translations and times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from relpos_tasks.training.clock import TrainingTime
from relpos_tasks.training.settings import TrainingSettings
from relpos_tasks.training.trained import TrainedModel
from relpos_tasks.translation import Pair, Source, Split, learn_subwords
from relpos_tasks.translation.measure import scored
from relpos_tasks.translation.results import ComparisonResults
from relpos_tasks.translation.settings import ChoraleSettings, TextSettings
from relpos_tasks.translation.source import TranslationSource
from relpos_tasks.translation.train import build
from tests.tasks.translation.sentences import pairs

_SIZES = {
    "width": 8,
    "layers": 1,
    "heads": 2,
    "hidden": 8,
    "training": TrainingSettings(steps=130, batch=64, warmup=2, valid_every=65),
}
TEXT = TextSettings(**_SIZES, vocabulary=300, most_subwords=20)
LENGTH_TEST = replace(TEXT, length_test=True)
CHORALES = ChoraleSettings(**_SIZES, window=16)
CURVES = {"train": [(65, 5.0), (130, 4.0)], "valid": [(130, 4.5)]}


def text_source(held_out: Sequence[Pair] | None = None) -> Source:
    """Forty short pairs to train on; held out, unless others are given, are some of each length."""
    if held_out is None:
        held_out = [pair for words in (4, 8, 14, 18) for pair in pairs(6, words=words)]
    split = Split(pairs(40), pairs(3), tuple(held_out))
    subwords = learn_subwords((text for pair in split.train for text in pair), size=300)
    return Source("made-up", ("en", "de"), "0", split, subwords)


def results_of(
    positions: Sequence[str],
    settings: TextSettings | ChoraleSettings,
    source: TranslationSource,
    *,
    seeds: int = 1,
) -> ComparisonResults:
    """Untrained models after 65 seconds, each with fewer nats than the one before it."""
    trained = {}
    for name in positions:
        models = [build(name, settings.with_seed(seed), source).eval() for seed in range(seeds)]
        trained[name] = [
            TrainedModel(model, CURVES, TrainingTime(65.0), _parameters(model), 130)
            for model in models
        ]
    nats = {
        name: [2 - 0.125 * n - 0.03 * seed for seed in range(seeds)]
        for n, name in enumerate(positions)
    }
    return ComparisonResults(trained, nats, seeds=range(seeds))


def text_results(
    positions: Sequence[str], settings: TextSettings, source: Source, *, seeds: int = 1
) -> ComparisonResults:
    """Each position is right in more of the sentences than the one before it."""
    references = [pair.target for pair in source.split.held_out]
    systems = {}
    for n, name in enumerate(positions):
        right = [round(len(references) * (n + 1) / len(positions)) - seed for seed in range(seeds)]
        systems[name] = [
            [text if k % len(references) < most else _wrong(text) for k, text in _mixed(references)]
            for most in right
        ]
    found = scored([pair.source for pair in source.split.held_out], references, systems)
    return replace(results_of(positions, settings, source, seeds=seeds), translations=found)


def timed(results: ComparisonResults, **times: TrainingTime) -> ComparisonResults:
    """The same with other times of training."""
    trained = {
        name: [replace(one, time=times.get(name, one.time)) for one in models]
        for name, models in results.trained.items()
    }
    return replace(results, trained=trained)


def _mixed(references: Sequence[str]) -> list[tuple[int, str]]:
    """Sentences of all lengths are among the first numbers."""
    return [(7 * n, text) for n, text in enumerate(references)]


def _wrong(text: str) -> str:
    return " ".join([*text.split()[:-1], "nie"])


def _parameters(model) -> int:
    return sum(p.numel() for p in model.parameters())
