"""The league of schemes on made-up figures: its order, its noise, its guide and its refusals."""

from __future__ import annotations

import json
import re

import pytest

from benchmarks import files, tables
from benchmarks.report.league_grounds import GROUNDS
from benchmarks.report.league_page import league_page
from benchmarks.report.league_standings import standings


def of_training(held_out, **more):
    """What every run has: `none` has 1,000 parameters, each scheme after it 10 more."""
    parameters = {name: 1000 + 10 * n for n, name in enumerate(held_out)}
    metrics = {"machine": {}, "held_out": held_out, "parameters": parameters, "steps": 1150}
    return metrics | more


def music(nats, lengths=None):
    """A run on music: the held-out nats by scheme and seed, at longer windows 0.1 more."""
    held_out = {
        name: {"nats": sum(seeds) / len(seeds), "nats_by_seed": seeds}
        for name, seeds in nats.items()
    }
    if lengths is None:
        windows = ("256", "512", "1024")
        lengths = {
            name: [{window: seed + 0.1 * n for n, window in enumerate(windows)} for seed in seeds]
            for name, seeds in nats.items()
        }
    return of_training(held_out, lengths_by_seed=lengths)


def vision(accuracies):
    tests = ("same", "shifted", "32x32", "12x40")
    return of_training(
        {
            name: {"by_seed": [dict(zip(tests, seed, strict=True)) for seed in seeds]}
            for name, seeds in accuracies.items()
        }
    )


def translation(bleu):
    """A run on sentences: BLEU by scheme and seed, with intervals of one point to either side."""
    return of_training(
        {
            name: {
                "nats_by_seed": [2.0] * len(seeds),
                "bleu_by_seed": seeds,
                "bleu_low": seeds[0] - 1,
                "bleu_high": seeds[0] + 1,
            }
            for name, seeds in bleu.items()
        }
    )


def step(task, scheme, median, p20, p80, growth=70.4):
    return {
        "task": task,
        "scheme": scheme,
        "ratio": {"median": median, "p20": p20, "p80": p80},
        "growth_mib": growth,
    }


STEPS = {
    "machine": {
        "processor": "processor", "capability": "AVX2", "threads": 2, "torch": "2", "commit": "c",
    },
    "batches": {"music": "8 sequences of 256 tokens"},
    "steps": [
        step("music", "none", 1.0, 1.0, 1.0),
        step("music", "alibi", 1.01, 0.99, 1.03),
        step("music", "huang", 1.25, 1.2, 1.3, growth=None),
    ],
}  # fmt: skip

# The scheme with one seed is 0.004 above the best; s is 0.002.
THREE_SEEDS = {
    "none": [0.600, 0.602, 0.598],
    "shaw": [0.450, 0.452, 0.448],
    "huang": [0.453, 0.455, 0.451],
    "alibi": [0.454],
}


def rows(page):
    """The cells of a page's table rows by scheme."""
    lines = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| `")]
    return {cells[0].split("`")[1]: cells for cells in lines}


def section(page, title):
    return re.split(r"^## ", page, flags=re.M)[[*GROUNDS].index(title) + 2]


def test_without_any_run_the_page_says_how_to_make_them():
    page = league_page({}, None)
    assert "Nothing is measured yet." in page
    for task, ground in GROUNDS.items():
        assert f"Not measured yet: `{ground.command}`" in section(page, task)
        assert f"keep_run runs/league_{task}`" in section(page, task)
    assert "What steps cost is not measured yet: `python -m benchmarks.steps`." in page


def test_schemes_stand_in_the_order_of_the_first_figure_and_ties_with_the_best_are_marked():
    page = league_page({"league_music.json": music(THREE_SEEDS)}, STEPS)
    table = rows(page)
    assert list(table) == ["shaw", "huang", "alibi", "none"]
    assert table["shaw"][1] == "**0.450 ± 0.002**"
    # 0.003 is less than 2 * 0.002 * sqrt(2 / 3), and 0.004 than 2 * 0.002 * sqrt(4 / 3).
    assert table["huang"][1] == "**0.453 ± 0.002**"
    assert table["alibi"][1] == "**0.454**"
    assert table["none"][1] == "0.600 ± 0.002"
    assert table["shaw"][2:5] == ["0.450 ± 0.002", "0.550 ± 0.002", "0.650 ± 0.002"]
    assert "1,150 steps each; 3 schemes with 3 seeds, 1 scheme with 1 seed." in page
    assert "s is 0.002." in page


def test_a_difference_of_more_than_the_noise_is_not_marked():
    apart = THREE_SEEDS | {"huang": [0.4535, 0.4555, 0.4515]}
    one = standings("music", {"league_music.json": music(apart)})
    assert one is not None
    assert one.tied_with_best("held out") == ["alibi"]


def test_with_one_seed_each_no_order_is_claimed():
    page = league_page({"league_music.json": music({"none": [0.6], "shaw": [0.4]})}, None)
    assert "**0." not in page
    assert "How much a figure changes with the seed is not known" in page
    assert "`shaw`, 0.400 nats per token, with one seed each: how sure that is" in page


def test_the_run_with_the_most_seeds_counts_and_others_are_kept():
    page = league_page(
        {
            "league_music_seeds.json": music({"shaw": [0.45, 0.46]}),
            "league_music.json": music({"none": [0.6], "shaw": [0.7]}),
        },
        None,
    )
    table = rows(page)
    assert table["shaw"][1] == "**0.455 ± 0.007**"
    assert table["none"][1] == "0.600"
    # The parameters are those of the run that was taken.
    assert [table[name][5] for name in ("none", "shaw")] == ["1,000", "1,000"]


def test_prices_and_memory_stand_beside_the_schemes_that_were_timed():
    table = rows(league_page({"league_music.json": music(THREE_SEEDS)}, STEPS))
    assert table["alibi"][-3:] == ["1,030", "1.01 (0.99 to 1.03)", "70"]
    assert table["huang"][-2:] == ["1.25 (1.20 to 1.30)", "not measured yet"]
    assert table["shaw"][-2:] == ["not measured yet", "not measured yet"]


def test_the_guide_fills_in_the_figures():
    lengths = {
        "none": [{"256": 0.60, "512": 0.60, "1024": 0.63}],
        "shaw": [{"256": 0.45, "512": 0.45, "1024": 0.4496}],
        "huang": [{"256": 0.45, "512": 0.50, "1024": 0.764}],
    }
    run = music({"none": [0.60, 0.61], "shaw": [0.45, 0.46], "huang": [0.49, 0.48]}, lengths)
    page = league_page({"league_music.json": run}, STEPS)
    guide = page[page.index("## Which") : page.index("## Music")]
    assert (
        "- Music: `shaw`, 0.455 ± 0.007 nats per token; all others are worse by more than the noise"
        in guide
    )
    assert (
        "at most 0.03 nats per token worse than at 256 tokens are `shaw` 0.450 (+0.000), " in guide
    )
    assert "`none` 0.630 (+0.030)." in guide
    assert (
        "more than 0.03 nats per token worse than at 256 tokens is `huang` 0.764 (+0.314)." in guide
    )
    assert (
        "- Music: as far as the rounds show no dearer than without positions: `alibi`; "
        "the most costs `huang`, 1.25 times as much." in guide
    )
    assert "- Music: the fewest of its own has `shaw`, 10; the most `huang`, 20." in guide
    assert "Maps" not in guide


def test_a_need_without_figures_is_left_out_of_the_guide():
    page = league_page({"league_music.json": music({"shaw": [0.4]}, lengths={})}, None)
    assert "`shaw`, 0.400 nats per token; no other was measured." in page
    guide = page[page.index("## Which") : page.index("## Music")]
    assert re.findall(r"\*\*(.+)\*\*", guide) == ["Best at the lengths and sizes of training"]


def test_on_maps_more_is_better_and_each_test_has_a_best():
    run = vision(
        {
            "none": [(0.70, 0.70, 0.62, 0.63), (0.71, 0.71, 0.63, 0.62)],
            "grid": [(0.93, 0.93, 0.87, 0.91), (0.94, 0.94, 0.88, 0.92)],
            "absolute": [(0.935, 0.64, 0.56, 0.60)],
        }
    )
    page = league_page({"league_vision.json": run}, None)
    table = rows(page)
    assert list(table) == ["grid", "absolute", "none"]
    assert table["absolute"][1:5] == ["**0.935**", "0.640", "0.560", "0.600"]
    assert "- Vision: `grid`, 0.935 ± 0.007 of the ink pixels; within the noise of it" in page
    assert (
        "- Vision, 12 x 40: `grid`, 0.915 ± 0.007 of the ink pixels; all others are worse" in page
    )


def test_bleu_whose_intervals_overlap_is_in_no_order():
    run = translation({"sinusoidal": [34.0], "shaw-16": [35.5], "shaw-4-keys": [36.5]})
    page = league_page({"league_translation.json": run}, None)
    table = rows(page)
    assert list(table) == ["shaw-4-keys", "shaw-16", "sinusoidal"]
    assert table["shaw-4-keys"][:2] == [
        "`shaw-4-keys`: Shaw, k = 4, keys alone", "**36.5 (35.5 to 37.5)**",
    ]  # fmt: skip
    assert table["shaw-16"][1] == "**35.5 (34.5 to 36.5)**"
    assert table["sinusoidal"][1:3] == ["34.0 (33.0 to 35.0)", "2.000"]
    assert (
        "`shaw-16`; the others are worse by more than the choice of sentences explains; what"
        in page
    )


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ({"a.json": music({"grid": [0.4]})}, "a.json: schemes must be those of music, got 'grid'"),
        ({"a.json": vision({"none": [(1, 1, 1, 1)]})}, "a.json: must be of `relpos music compare`"),
        ({"a.json": {"machine": {}}}, "a.json: must be of `relpos music compare`: KeyError"),
        (
            {"a.json": music({"shaw": [0.4]}), "b.json": music({"shaw": [0.4]}) | {"steps": 9}},
            "b.json: steps must be 1150 as in the first run, got 9",
        ),
        (
            {"a.json": music({"shaw": [0.4]}), "b.json": music({"shaw": [0.4]}, {})},
            "b.json: tests must be held out, 256 tokens, 512 tokens, 1,024 tokens as in the first",
        ),
    ],
)
def test_a_run_that_does_not_belong_here_is_refused_by_name(runs, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        standings("music", runs)


def test_the_program_names_a_kept_run_that_is_of_another_task(monkeypatch, tmp_path):
    monkeypatch.setattr(files, "RESULTS", tmp_path)
    (tmp_path / "league_vision.json").write_text(json.dumps(music({"shaw": [0.4]})))
    with pytest.raises(SystemExit, match=r"league_vision.json: must be of `relpos vision compare`"):
        tables.league()


def test_the_program_takes_all_runs_that_were_kept(monkeypatch, tmp_path):
    monkeypatch.setattr(files, "RESULTS", tmp_path)
    (tmp_path / "league_music.json").write_text(json.dumps(music({"none": [0.6]})))
    (tmp_path / "league_music_seeds.json").write_text(json.dumps(music({"shaw": [0.4, 0.41]})))
    (tmp_path / "steps.json").write_text(json.dumps(STEPS))
    page = tables.league()
    assert list(rows(page)) == ["shaw", "none"]
    assert "Steps were timed on 2 threads of an processor (AVX2)" in page


def remedied(**settings):
    """A run of two schemes with options."""
    lengths = {name: [{"256": 0.5, "512": 0.51, "1024": 0.52}] for name in ("absolute", "huang")}
    run = music({"absolute": [0.6], "huang": [0.48]}, lengths)
    return run | {"settings": {"max_distance": 64, "random_start": True} | settings}


def test_remedies_stand_beside_what_they_mend():
    plain = music({"none": [0.9], "absolute": [0.55], "huang": [0.47]})
    page = league_page({"league_music.json": plain, "league_music_remedies.json": remedied()}, None)
    _, section = page.split("### Beyond the length of training")
    assert "| `huang` | 0.470 | 0.470 | 0.570 | 0.670 | +0.200 |" in section
    assert "| `huang` `--max-distance 64` | 0.480 | 0.500 | 0.510 | 0.520 | +0.020 |" in section
    assert "| `absolute` `--random-start` | 0.600 | 0.500 | 0.510 | 0.520 | +0.020 |" in section


@pytest.mark.parametrize(
    ("plain", "settings", "message"),
    [
        (["none", "huang"], {}, "schemes must be in the league, got 'absolute'"),
        (["absolute", "huang"], {"max_distance": None}, "huang must be trained with --max-dist"),
        (["absolute", "huang"], {"random_start": False}, "absolute must be trained with --rand"),
    ],
)
def test_remedies_of_nothing_are_refused(plain, settings, message):
    runs = {
        "league_music.json": music({name: [0.5] for name in plain}),
        "league_music_remedies.json": remedied(**settings),
    }
    with pytest.raises(ValueError, match=f"league_music_remedies.json: {message}"):
        league_page(runs, None)
