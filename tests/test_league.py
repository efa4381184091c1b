"""The league of schemes on made-up figures: its order, what seeds tell, its guide and refusals."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from benchmarks import files, tables
from benchmarks.report.league_excerpt import league_excerpt
from benchmarks.report.league_grounds import GROUNDS, LONG_SENTENCES
from benchmarks.report.league_page import league_page
from benchmarks.report.league_standings import standings

PARAMETERS = {"none": 1000, "shaw": 1010, "huang": 1020, "alibi": 1030}


def of_training(held_out, seeds, **more):
    """What every run has, its settings too; other schemes than those above have 500 parameters."""
    conditions = {
        "settings": {
            "max_distance": None,
            "random_start": False,
            "training": {"batch": 8, "seed": seeds[0]},
        },
        "model": {"width": 128},
        "data": {"name": "a", "digest": "b", "split": "c"},
    }
    metrics = {
        "machine": {},
        "held_out": held_out,
        "parameters": {name: PARAMETERS.get(name, 500) for name in held_out},
        "steps": 1150,
        "seeds": list(seeds),
    }
    return metrics | conditions | more


def seeds_of(figures):
    return range(len(next(iter(figures.values()))))


def music(nats, lengths=None, first_seed=0):
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
    seeds = [first_seed + n for n in seeds_of(nats)]
    return of_training(held_out, seeds, lengths_by_seed=lengths)


def vision(accuracies):
    tests = ("same", "shifted", "32x32", "12x40")
    return of_training(
        {
            name: {"by_seed": [dict(zip(tests, seed, strict=True)) for seed in seeds]}
            for name, seeds in accuracies.items()
        },
        seeds_of(accuracies),
    )


def scores(bleu, baseline):
    """Of each scheme, with intervals of one point to either side."""
    found = {}
    for name, by_seed in bleu.items():
        value = by_seed[0]
        found[name] = {"bleu_by_seed": by_seed, "bleu_low": value - 1, "bleu_high": value + 1}
        if name != baseline:
            less = value - bleu[baseline][0]
            interval = {"value": less, "low": less - 0.5, "high": less + 0.5}
            found[name]["difference"] = {"from": baseline, "bleu": interval, "p_value": 0.012}
    return found


def translation(bleu, beyond=None):
    """A run on sentences: BLEU by scheme and seed, and where it is given that of longer ones."""
    baseline = next(iter(bleu))
    held_out = scores(bleu, baseline)
    for found in held_out.values():
        found["nats_by_seed"] = [2.0] * len(found["bleu_by_seed"])
    if beyond is not None:
        for name, found in scores(beyond, baseline).items():
            held_out[name]["beyond_training"] = found
    measured = {"sentences": 1014, "signatures": {"bleu": "v"}}
    return of_training(held_out, seeds_of(bleu), translations=measured)


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

# By seeds, `huang` is worse than `shaw` by 0.002, 0.003 and 0.004, `none` by 0.149 to 0.151.
THREE_SEEDS = {
    "shaw": [0.450, 0.452, 0.448],
    "huang": [0.452, 0.455, 0.452],
    "none": [0.600, 0.602, 0.597],
}
RUNS = {
    "league_music.json": music({"alibi": [0.454]}),
    "league_music_seeds.json": music(THREE_SEEDS),
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


def test_schemes_stand_in_the_order_of_the_first_figure_and_seeds_tell_them_apart():
    page = league_page(RUNS, STEPS)
    table = rows(page)
    assert list(table) == ["shaw", "huang", "alibi", "none"]
    assert table["shaw"][1] == "**0.450 ± 0.002**"
    # Its t is 0.003 / (0.001 / sqrt(3)) = 5.2: above 4.3, but not above 6.2, as two are compared.
    assert table["huang"][1] == "**0.453 ± 0.002**"
    assert table["alibi"][1] == "0.454"
    assert table["none"][1] == "0.600 ± 0.003"
    assert table["shaw"][2:5] == ["0.450 ± 0.002", "0.550 ± 0.002", "0.650 ± 0.002"]
    assert (
        "1,150 steps each; 3 schemes with seeds 0, 1, 2; 1 scheme with seed 0. "
        "Over seeds `shaw` was compared with `huang` and `none`." in page
    )


def told(nats, **more):
    one = standings(GROUNDS["music"], {"a.json": music(nats)} | more)
    assert one is not None
    return one.verdict("held out")


def test_fewer_comparisons_ask_for_less():
    alone = {name: THREE_SEEDS[name] for name in ("shaw", "huang")}
    verdict = told(alone)
    assert (verdict.best, verdict.apart, verdict.alike) == ("shaw", ["huang"], [])
    assert told(THREE_SEEDS).alike == ["huang"]


def test_an_unstable_scheme_does_not_set_the_bound_for_others():
    assert told(THREE_SEEDS | {"huang": [0.46, 0.70, 0.50]}).apart == ["none"]


def test_two_seeds_of_a_scheme_hardly_tell_anything():
    nats = {"shaw": [0.450, 0.451], "huang": [0.456, 0.458]}
    # 0.0065 is thirteen standard errors, and Student's t with one degree of freedom 12.7 at 5 %.
    assert told(nats).apart == ["huang"]
    assert told(nats | {"none": [0.6, 0.7]}).alike == ["huang", "none"]


def test_seeds_are_compared_with_the_same_seeds_alone():
    others = {"b.json": music({"huang": [0.6, 0.601, 0.602]}, first_seed=2)}
    verdict = told({"shaw": [0.45, 0.46, 0.44], "none": [0.7, 0.712, 0.691]}, **others)
    # They have seed 2 in common.
    assert (verdict.apart, verdict.untested) == (["none"], ["huang"])
    assert told({"shaw": [0.45, 0.46]}, **others) is None


def test_what_is_better_with_the_same_seeds_is_not_called_worse():
    others = {"b.json": music({"huang": [0.4, 0.4101, 0.6]}, first_seed=1)}
    verdict = told({"shaw": [0.1, 0.5, 0.51]}, **others)
    # With seeds 1 and 2 Huang is better by 0.1 and 0.0999; with others Shaw is.
    assert (verdict.best, verdict.alike, verdict.apart) == ("shaw", ["huang"], [])


def test_the_same_difference_with_each_seed_is_no_evidence():
    assert told({"shaw": [0.25, 0.5], "none": [0.5, 0.75]}).alike == ["none"]
    assert told({"shaw": [0.1, 0.2], "none": [0.4, 0.5]}).alike == ["none"]


def test_a_best_scheme_with_one_seed_tells_nothing_apart_by_itself():
    page = league_page(RUNS | {"league_music.json": music({"alibi": [0.4]})}, None)
    assert next(iter(rows(page))) == "alibi"
    assert rows(page)["alibi"][1] == "0.400"
    assert (
        "- Music: `alibi`, 0.400 nats per token, with one seed; of those with several `shaw`, "
        "0.450 ± 0.002 nats per token; not told apart from it: `huang`; worse by more than another "
        "seed explains: `none`; not told apart, for want of seeds: `alibi`." in page
    )


def test_seldom_is_the_best_called_worse():
    """Of schemes that are all equally good, though of unequal spread, none is the worse one."""
    draw, spread = np.random.default_rng(0), [0.1, 1, 1, 1, 1, 10]
    names, wrong, trials = ["none", "shaw", "huang", "alibi", "t5", "rotary"], 0, 400
    for _ in range(trials):
        verdict = told(
            {n: list(s * draw.normal(size=3)) for n, s in zip(names, spread, strict=True)}
        )
        # Any one of them may be called the best in truth.
        wrong += "none" in verdict.apart
    assert wrong <= 0.05 * trials


def test_with_one_seed_each_no_order_is_claimed():
    page = league_page({"league_music.json": music({"none": [0.6], "shaw": [0.4]})}, None)
    assert "**0." not in page
    assert (
        "2 schemes with seed 0. No two have several seeds in common, so nothing is told apart."
        in page
    )
    assert "`shaw`, 0.400 nats per token, told apart from no other for want of seeds." in page


def test_nothing_is_called_noise_or_chance():
    page = league_page(RUNS, STEPS)
    assert "noise" not in page
    assert "chance" not in page


def test_the_run_with_the_most_seeds_counts_and_others_are_kept():
    page = league_page(
        {
            "league_music_seeds.json": music({"shaw": [0.45, 0.46]}),
            "league_music.json": music({"none": [0.6], "shaw": [0.7]}),
        },
        None,
    )
    table = rows(page)
    assert table["shaw"][1] == "0.455 ± 0.007"
    assert table["none"][1] == "0.600"
    assert [table[name][5] for name in ("none", "shaw")] == ["1,000", "1,010"]


def test_prices_and_memory_stand_beside_the_schemes_that_were_timed():
    table = rows(league_page(RUNS, STEPS))
    assert table["alibi"][-3:] == ["1,030", "1.01 (0.99 to 1.03)", "70"]
    assert table["huang"][-2:] == ["1.25 (1.20 to 1.30)", "not measured yet"]
    assert table["shaw"][-2:] == ["not measured yet", "not measured yet"]
    untimed = league_page(RUNS, None)
    assert " step |" not in untimed
    assert "A step is a whole one" not in untimed


def test_the_guide_fills_in_the_figures():
    lengths = {
        "none": [{"256": 0.60, "512": 0.60, "1024": 0.63}],
        "shaw": [{"256": 0.45, "512": 0.45, "1024": 0.4496}],
        "huang": [{"256": 0.45, "512": 0.50, "1024": 0.764}],
    }
    lengths = {name: one * 3 for name, one in lengths.items()}
    nats = {"none": [0.60, 0.61, 0.62], "shaw": [0.45, 0.46, 0.46], "huang": [0.55, 0.56, 0.57]}
    run = music(nats, lengths)
    page = league_page({"league_music.json": run}, STEPS)
    guide = page[page.index("## Which") : page.index("## Music")]
    assert (
        "- Music: `shaw`, 0.457 ± 0.006 nats per token; worse by more than another seed explains: "
        "all others." in guide
    )
    assert "Music, trained on 256 tokens, read 1,024 tokens at a time:" in guide
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


def test_the_readmes_table_has_the_longest_inputs_and_the_price():
    table = rows(league_excerpt(RUNS, STEPS))
    assert list(table) == ["shaw", "huang", "alibi", "none"]
    assert table["alibi"] == ["`alibi`: ALiBi", "0.454", "0.454", "0.654", "1.01"]
    assert table["huang"][1:] == ["0.453 ± 0.002", "0.453 ± 0.002", "0.653 ± 0.002", "1.25"]
    assert table["shaw"][-1] == "not measured"
    assert "after 1,150 steps on 256 tokens at a time" in league_excerpt(RUNS, None)
    assert league_excerpt({}, STEPS) == "Not measured yet."


def test_a_need_without_figures_is_left_out_of_the_guide():
    page = league_page({"league_music.json": music({"shaw": [0.4]}, lengths={})}, None)
    assert "`shaw`, 0.400 nats per token; no other was measured." in page
    guide = page[page.index("## Which") : page.index("## Music")]
    assert re.findall(r"\*\*(.+)\*\*", guide) == ["Best at the lengths and sizes of training"]


def test_on_maps_more_is_better_and_each_test_has_a_best():
    run = vision(
        {
            "none": [(0.70, 0.70, 0.62, 0.63), (0.71, 0.71, 0.63, 0.62), (0.69, 0.71, 0.62, 0.62)],
            "grid": [(0.93, 0.93, 0.87, 0.91), (0.94, 0.94, 0.88, 0.92), (0.93, 0.94, 0.88, 0.91)],
        }
    )
    page = league_page({"league_vision.json": run}, None)
    table = rows(page)
    assert list(table) == ["grid", "none"]
    assert table["none"][1:5] == [
        "0.700 ± 0.010", "0.707 ± 0.006", "0.623 ± 0.006", "0.623 ± 0.006",
    ]  # fmt: skip
    assert (
        "- Vision, 12 x 40: `grid`, 0.913 ± 0.006 of the ink pixels; worse by more than another "
        "seed explains: all others." in page
    )


def test_bleu_of_one_seed_is_compared_on_the_same_sentences_and_with_the_first_scheme_alone():
    run = translation({"sinusoidal": [34.0], "shaw-16": [35.5], "shaw-4-keys": [36.5]})
    page = league_page({"league_translation.json": run}, None)
    table = rows(page)
    assert list(table) == ["shaw-4-keys", "shaw-16", "sinusoidal"]
    # Though the intervals of the first and the last do not overlap, no seed says so.
    assert "**3" not in page
    assert table["shaw-4-keys"][:4] == [
        "`shaw-4-keys`: Shaw, k = 4, keys alone", "36.5 (35.5 to 37.5)", "2.000",
        "`sinusoidal`: +2.5 (+2.0 to +3.0)",
    ]  # fmt: skip
    assert table["sinusoidal"][3] == "-"
    assert (
        "- Translation: `shaw-4-keys`, 36.5 BLEU, told apart from no other for want of seeds; "
        "with the first seed and its sentences drawn anew it has +2.0 to +3.0 BLEU against "
        "`sinusoidal` (95 %, not corrected for its having been picked as the best)." in page
    )


def test_longer_sentences_have_a_table_of_their_own():
    bleu, beyond = (
        {"sinusoidal": [30.0], "shaw-16": [30.5]},
        {"sinusoidal": [9.0], "shaw-16": [15.0]},
    )
    run = translation(bleu, beyond)
    page = league_page({"league_translation_lengths.json": run}, None)
    _, section = page.split("### Longer sentences")
    assert "| scheme | BLEU, longer | BLEU, all | BLEU, longer, less | parameters |" in section
    assert (
        "| `shaw-16`: Shaw, k = 16 | 15.0 (14.0 to 16.0) | 30.5 | `sinusoidal`: +6.0 "
        "(+5.5 to +6.5) | 500 |" in section
    )
    guide = page[page.index("## Which") : page.index("## Music")]
    assert "**Inputs longer than those of training**" in guide
    assert "trained on at most 10 words: `shaw-16`, 15.0 BLEU beyond 12 words" in guide
    plain = league_page({"league_translation.json": translation(bleu)}, None)
    assert f"Not measured yet: `{LONG_SENTENCES.command}`" in plain
    assert "keep_run runs/league_translation_lengths`" in plain


def test_the_test_of_longer_sentences_is_no_plain_run():
    run = translation({"sinusoidal": [30.0]})
    with pytest.raises(ValueError, match=r"lengths\.json: must be of `relpos translation compare "):
        league_page({"league_translation_lengths.json": run}, None)


def with_setting(part, **change):
    run = music({"shaw": [0.4]})
    return run | {part: run[part] | change}


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ({"a.json": music({"grid": [0.4]})}, "a.json: schemes must be those of music, got 'grid'"),
        ({"a.json": vision({"none": [(1, 1, 1, 1)]})}, "a.json: must be of `relpos music compare`"),
        ({"a.json": {"machine": {}}}, "a.json: must be of `relpos music compare`: KeyError"),
        (
            {"a.json": music({"shaw": [0.4]}), "b.json": music({"shaw": [0.4]}) | {"steps": 9}},
            "b.json: must be made as the runs before it: steps was 1150, now 9",
        ),
        (
            {"a.json": music({"shaw": [0.4]}), "b.json": music({"shaw": [0.4]}, {})},
            "b.json: must be made as the runs before it: columns was ['held out', '256 tokens',",
        ),
        (
            {"a.json": music({"shaw": [0.4]}), "b.json": with_setting("model", width=64)},
            "b.json: must be made as the runs before it: model.width was 128, now 64",
        ),
        (
            {"a.json": music({"none": [0.4]}), "b.json": with_setting("data", digest="z")},
            "b.json: must be made as the runs before it: data.digest was b, now z",
        ),
        (
            {
                "a.json": music({"none": [0.4]}),
                "b.json": with_setting("settings", training={"batch": 9, "seed": 0}),
            },
            "b.json: must be made as the runs before it: settings.training.batch was 8, now 9",
        ),
        (
            {
                "a.json": with_setting("machine", precision="32-true"),
                "b.json": with_setting("machine", precision="bf16-mixed"),
            },
            "b.json: must be made as the runs before it: precision was 32-true, now bf16-mixed",
        ),
        (
            {
                "a.json": music({"shaw": [0.4]}),
                "b.json": music({"shaw": [0.4]}) | {"parameters": {"shaw": 9}},
            },
            "b.json: shaw must have 1,010 parameters as in the runs before it, got 9",
        ),
        (
            {"a.json": music({"shaw": [0.4]}) | {"seeds": [0, 1]}},
            "a.json: shaw must have 2 figures, one for each seed, got 1",
        ),
    ],
)
def test_a_run_that_does_not_belong_here_is_refused_by_name(runs, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        standings(GROUNDS["music"], runs)


def test_other_seeds_and_another_name_of_the_same_data_are_no_difference():
    other = music({"huang": [0.4]}, first_seed=3)
    other["data"] = other["data"] | {"name": "elsewhere"}
    one = standings(GROUNDS["music"], {"a.json": music({"shaw": [0.4]}), "b.json": other})
    assert one is not None
    assert one.seeds == {"shaw": [0], "huang": [3]}


def test_runs_from_before_their_settings_were_kept_say_so():
    old = {
        name: value
        for name, value in music(THREE_SEEDS).items()
        if name not in ("settings", "model", "data")
    }
    page = league_page(
        {"league_music.json": music({"alibi": [0.5]}), "league_music_seeds.json": old}, None
    )
    assert "The settings of league_music_seeds.json are unknown" in page
    assert "The settings of league_music.json" not in page


def test_the_program_names_a_kept_run_that_is_of_another_task(monkeypatch, tmp_path):
    monkeypatch.setattr(files, "RESULTS", tmp_path)
    monkeypatch.setattr(tables, "pages", tables.league)
    monkeypatch.setattr("sys.argv", ["tables"])
    (tmp_path / "league_vision.json").write_text(json.dumps(music({"shaw": [0.4]})))
    with pytest.raises(SystemExit, match=r"league_vision.json: must be of `relpos vision compare`"):
        tables.main()


def test_the_program_takes_all_runs_that_were_kept(monkeypatch, tmp_path):
    monkeypatch.setattr(files, "RESULTS", tmp_path)
    (tmp_path / "league_music.json").write_text(json.dumps(music({"none": [0.6]})))
    (tmp_path / "league_music_seeds.json").write_text(json.dumps(music({"shaw": [0.4, 0.41]})))
    (tmp_path / "steps.json").write_text(json.dumps(STEPS))
    page = tables.league()
    assert list(rows(page)) == ["shaw", "none"]
    assert "Steps were timed on 2 threads of an processor (AVX2)" in page


def test_schemes_that_the_first_run_left_out_stand_beside_the_others():
    page = league_page(
        {
            "league_translation.json": translation({"sinusoidal": [35.0], "shaw": [36.0]}),
            "league_translation_rest.json": translation({"sinusoidal": [35.0], "alibi": [34.0]}),
        },
        None,
    )
    cells = rows(section(page, "translation"))
    assert list(cells) == ["shaw", "sinusoidal", "alibi"]
    assert all(cells[name][3].startswith("`sinusoidal`") for name in ("shaw", "alibi"))


def test_a_scheme_measured_again_leaves_no_difference_of_before():
    before = translation({"shaw-16": [36.0], "shaw-0": [27.0]})
    after = translation({"sinusoidal": [35.0], "shaw-16": [36.5]})
    page = league_page(
        {"league_translation.json": after, "league_translation_ablation.json": before}, None
    )
    cells = rows(section(page, "translation"))
    # The ablation comes later, and in it nothing is subtracted from its baseline.
    assert cells["shaw-16"][3] == "-"
    assert "sinusoidal" not in "".join(cells["shaw-0"])


def test_the_ablation_stands_beside_the_papers():
    run = translation({"shaw-16": [36.0], "shaw-0": [27.0], "shaw-16-keys": [36.5]})
    page = league_page({"league_translation_ablation.json": run}, None)
    section = page.split("### Beside the paper's ablation")[1].split("###")[0]
    assert "| 0 | 27.0 (26.0 to 28.0) | 12.5 |" in section
    assert "| 16 | 36.0 (35.0 to 37.0) | 25.8 |" in section
    assert "| keys | 36.5 (35.5 to 37.5) | 25.8 |" in section
    assert "from memory" in section
    alone = translation({"sinusoidal": [36.0], "shaw-16": [36.0]})
    assert "ablation" not in league_page({"league_translation.json": alone}, None)


def remedied(nats=0.52, **settings):
    """A run of two schemes with options."""
    lengths = {name: [{"256": 0.5, "512": 0.51, "1024": nats}] for name in ("absolute", "huang")}
    run = music({"absolute": [0.6], "huang": [0.48]}, lengths)
    options = {"max_distance": 64, "random_start": True} | settings
    return run | {"settings": run["settings"] | options}


PLAIN = music({"none": [0.9], "absolute": [0.55], "huang": [0.47]})


def remedies(run, plain=PLAIN):
    page = league_page({"league_music.json": plain, "league_music_remedies.json": run}, None)
    return page.split("### Beyond the length of training")[1]


def test_remedies_stand_beside_what_they_are_for():
    section = remedies(remedied())
    assert "| `huang` | 0.470 | 0.470 | 0.570 | 0.670 | +0.200 |" in section
    assert "| `huang` `--max-distance 64` | 0.480 | 0.500 | 0.510 | 0.520 | +0.020 |" in section
    assert "| `absolute` `--random-start` | 0.600 | 0.500 | 0.510 | 0.520 | +0.020 |" in section
    page = league_page({"league_music.json": PLAIN, "league_music_remedies.json": remedied()}, None)
    assert (
        "- Music, good at both: held out at most 0.03 nats per token behind the best, and no more "
        "than that worse at 1,024 tokens: `huang` with `--max-distance 64` 0.480 (one seed)."
        in page
    )
    assert (
        "- Music, `absolute` with `--random-start`: 0.520 (+0.020) at 1,024 tokens in place of "
        "0.750 (+0.200), and held out 0.600 in place of 0.550.\n" in page
    )


def test_remedies_that_do_not_help_are_not_called_good():
    runs = {"league_music.json": PLAIN, "league_music_remedies.json": remedied(0.9)}
    assert "good at both" not in league_page(runs, None)


def test_a_remedy_that_does_not_do_is_said_to_be_none():
    page = league_page(
        {"league_music.json": PLAIN, "league_music_remedies.json": remedied(0.531)}, None
    )
    assert page.count("It is still more than 0.03 worse there than at the shortest length.") == 2


def test_a_remedy_stands_beside_the_same_seeds():
    plain = music({"none": [0.9] * 3, "absolute": [0.5, 0.6, 0.7], "huang": [0.4, 0.5, 0.6]})
    run = remedied() | {"seeds": [1]}
    section = remedies(run, plain)
    assert "| `absolute` | 0.600 | " in section
    assert "| `huang` | 0.500 | " in section
    message = r"absolute must have a seed of the league's \(0, 1 and 2\), got 5"
    with pytest.raises(ValueError, match=message):
        remedies(run | {"seeds": [5]}, plain)


def test_remedies_stand_beside_a_league_without_them():
    plain = PLAIN | {"settings": PLAIN["settings"] | {"max_distance": 64}}
    message = "must stand beside a league without max_distance, got 64"
    with pytest.raises(ValueError, match=f"remedies.json: {message}"):
        remedies(remedied(), plain)


@pytest.mark.parametrize("name", ["t5", "rotary", "absolute-keys"])
def test_remedies_are_of_schemes_that_an_option_changes(name):
    run = music({name: [0.5]})
    settings = run["settings"] | {"max_distance": 64}
    message = f"schemes must be such as an option changes, got '{name}'"
    with pytest.raises(ValueError, match=message):
        remedies(run | {"settings": settings}, run)


@pytest.mark.parametrize(
    ("plain", "settings", "message"),
    [
        (["none", "huang"], {}, "schemes must be in the league, got 'absolute'"),
        (["absolute", "huang"], {"max_distance": None}, "huang must be trained with --max-dist"),
        (["absolute", "huang"], {"random_start": False}, "absolute must be trained with --rand"),
        (
            ["absolute", "huang"],
            {"training": {"batch": 4, "seed": 0}},
            "must be made as the runs before it: settings.training.batch was 8, now 4",
        ),
    ],
)
def test_remedies_of_nothing_are_refused(plain, settings, message):
    run = music({name: [0.5] for name in plain})
    with pytest.raises(ValueError, match=f"league_music_remedies.json: {message}"):
        remedies(remedied(**settings), run)


def test_remedies_without_their_settings_are_refused():
    run = {name: value for name, value in remedied().items() if name != "settings"}
    with pytest.raises(ValueError, match=r"remedies\.json: must say its settings, got none"):
        remedies(run)
