"""Runs that are kept, and the pages' tables of them."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks import keep_run
from benchmarks.report.task_tables import music_table, translation_table
from benchmarks.seeds import with_seeds_of
from relpos_tasks.music.reported import HUANG_2018


@pytest.fixture
def run(tmp_path, monkeypatch):
    """The folder of a finished run, and beside it that of the results."""
    monkeypatch.setattr(keep_run, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(keep_run, "commit", lambda: "abc")
    folder = tmp_path / "runs" / "league_music"
    folder.mkdir(parents=True)
    (folder / "metrics.json").write_text('{"steps": 5}')
    (folder / "machine.json").write_text('{"cores": "2"}')
    return folder


def keep(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["keep_run", *map(str, arguments)])
    keep_run.main()


def test_a_run_is_kept_under_the_name_of_its_folder_or_the_one_given(monkeypatch, run, capsys):
    keep(monkeypatch, run)
    keep(monkeypatch, run, "--name", "vision")
    for name in ("league_music", "vision"):
        result = json.loads((run.parent.parent / "results" / f"{name}.json").read_text())
        assert result == {"machine": {"cores": "2", "commit": "abc"}, "steps": 5}


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        (None, "must be the folder of a finished `compare`"),
        ("{", "must hold metrics.json as JSON"),
        ("[]", "must hold an object in metrics.json, got a list"),
    ],
)
def test_a_run_that_is_not_finished_is_refused_and_nothing_is_written(
    metrics, message, monkeypatch, run, capsys
):
    (run / "metrics.json").unlink()
    if metrics is not None:
        (run / "metrics.json").write_text(metrics)
    with pytest.raises(SystemExit, match="2"):
        keep(monkeypatch, run)
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (run.parent.parent / "results").exists()


@pytest.mark.parametrize("name", ["", "a/b", "../b", "..", ".b"])
def test_a_name_that_is_a_path_is_refused(name, monkeypatch, run, capsys):
    with pytest.raises(SystemExit, match="2"):
        keep(monkeypatch, run, "--name", name)
    assert "argument --name: must be a file's name" in capsys.readouterr().err


def test_a_name_that_is_too_long_is_refused(monkeypatch, run, capsys):
    with pytest.raises(SystemExit, match="2"):
        keep(monkeypatch, run, "--name", 300 * "a")
    assert "File name too long" in capsys.readouterr().err


def of_seed(seed, nats, lengths, **changes):
    """A result of `relpos music compare` with one seed."""
    return {
        "machine": {"processor": f"AMD {seed}", "cores": "2"},
        "held_out": {"huang": {"nats": nats, "nats_by_seed": [nats]}},
        "counting": {"+ beat": 0.7},
        "lengths": {"huang": lengths},
        "lengths_by_seed": {"huang": [lengths]},
        "parameters": {"huang": 7},
        "steps_per_second": {"huang": seed + 1.0},
        "training_seconds": {"huang": 10.0},
        "cores_used_by_others": {"huang": 0.1},
        "peak_memory_mib": {"huang": 100.0 + seed},
        "timed_on_a_busy_machine": {"huang": seed == 1},
        "curves": {"huang": [seed]},
        "seeds": [seed],
        "seconds": 20.5,
        "settings": {"window": 256, "training": {"steps": 5, "seed": seed}},
        "steps": 5,
        "model": {"width": 8},
        "data": {"name": f"folder {seed}", "digest": "abc"},
    } | changes


def test_seeds_are_added_to_a_kept_result_as_one_comparison_would_have_them(monkeypatch, run):
    for seed, nats, lengths in [(0, 0.25, {"256": 0.5}), (1, 0.75, {"256": 1.0})]:
        found = of_seed(seed, nats, lengths)
        (run / "machine.json").write_text(json.dumps(found.pop("machine")))
        (run / "metrics.json").write_text(json.dumps(found))
        keep(monkeypatch, run, "--name", "literature", *(["--add-seeds"] if seed else []))
    result = json.loads((run.parent.parent / "results" / "literature.json").read_text())
    assert result == of_seed(0, 0.25, {}) | {
        "machine": {"processor": "AMD 0; AMD 1", "cores": "2", "commit": "abc"},
        "held_out": {"huang": {"nats": 0.5, "nats_by_seed": [0.25, 0.75]}},
        "lengths": {"huang": {"256": 0.75}},
        "lengths_by_seed": {"huang": [{"256": 0.5}, {"256": 1.0}]},
        "steps_per_second": {"huang": 1.5},
        "peak_memory_mib": {"huang": 101.0},
        "timed_on_a_busy_machine": {"huang": True},
        "seeds": [0, 1],
        "seconds": 41.0,
    }


def test_the_third_seed_counts_as_much_as_the_first():
    results = [of_seed(n, nats, {}) for n, nats in enumerate([0.0, 0.0, 3.0])]
    three = with_seeds_of(with_seeds_of(*results[:2]), results[2])
    assert three["held_out"]["huang"]["nats"] == 1.0
    assert three["steps_per_second"]["huang"] == 2.0
    assert three["machine"] == {"processor": "AMD 0; AMD 1; AMD 2", "cores": "2"}
    of_two_machines = with_seeds_of(*results[:2])
    again = with_seeds_of(of_two_machines, results[2] | {"machine": results[1]["machine"]})
    assert again["machine"] == of_two_machines["machine"]
    assert with_seeds_of(results[0], results[1] | {"peak_memory_mib": {"huang": None}})[
        "peak_memory_mib"
    ] == {"huang": None}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"machine": {"precision": "32-true"}}, "alone, got precision was None, now 32-true"),
        ({"seeds": [0]}, "seeds must not be in the result yet, got 0"),
        ({"model": {"width": 16}}, "results must differ in .* got model.width was 8, now 16"),
        ({"settings": {"window": 8, "training": {"seed": 1}}}, "settings.training.steps was 5"),
        ({"held_out": {"shaw": {}}}, r"positions was \['huang'\], now \['shaw'\]"),
        ({"data": {"digest": "abd"}}, "data.digest was abc, now abd"),
    ],
)
def test_seeds_of_another_comparison_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        with_seeds_of(of_seed(0, 0.5, {}), of_seed(1, 0.5, {}, **changes))


def test_seeds_are_added_to_music_alone_and_to_what_was_kept(monkeypatch, run, capsys):
    with pytest.raises(SystemExit, match="2"):
        keep(monkeypatch, run, "--add-seeds")
    assert "No such file or directory" in capsys.readouterr().err
    keep(monkeypatch, run)
    with pytest.raises(SystemExit, match="2"):
        keep(monkeypatch, run, "--add-seeds")
    assert "must be of `relpos music compare`" in capsys.readouterr().err


MACHINE = {"processor": "AMD EPYC", "cores": "2 (1 used)"}
METRICS = {
    "held_out": {
        "absolute": {"nats": 0.55, "nats_by_seed": [0.5, 0.6]},
        "shaw": {"nats": 0.465, "nats_by_seed": [0.46, 0.47]},
        "t5": {"nats": 0.5, "nats_by_seed": [0.5, 0.5]},
    },
    "counting": {"previous pitch": 1.0634},
    "lengths": {
        "absolute": {"256": 0.522, "512": 8.221, "1024": 7.713},
        "shaw": {"256": 0.464, "512": 0.463, "1024": 0.4641},
        "t5": {"256": 0.5, "512": 0.5, "1024": 0.49},
    },
    "machine": MACHINE,
    "steps": 1150,
    "seconds": 300.77,
}


def test_the_music_table_has_every_scheme_and_what_length_costs_it():
    text = music_table(METRICS)
    assert "after 1150 steps each, means of 2 seeds (301 s for the whole job on AMD EPYC, " in text
    assert "| learned absolute | 0.550 ± 0.071 |" in text
    assert "| T5, relative | 0.500 ± 0.000 |" in text
    assert "| counting: previous pitch | 1.063 |" in text
    assert "| tokens | 256 | 512 | 1024 | 1024 against 256 |" in text
    assert "| Shaw, relative | 0.464 | 0.463 | 0.464 | +0.000 |" in text
    assert "| learned absolute | 0.522 | 8.221 | 7.713 | +7.191 |" in text


def test_a_time_names_the_instructions_and_a_busy_machine_has_none():
    metrics = METRICS | {
        "machine": MACHINE | {"instructions": "AVX512"},
        "timed_on_a_busy_machine": {"absolute": False, "shaw": False, "t5": False},
    }
    assert "(301 s for the whole job on AMD EPYC (AVX512), 2 cores (1 used)):" in music_table(
        metrics
    )
    busy = music_table(metrics | {"timed_on_a_busy_machine": {"absolute": False, "shaw": True}})
    assert (
        "seeds (on AMD EPYC (AVX512), 2 cores (1 used); it was busy, so no time is told):" in busy
    )
    assert "301 s" not in busy


def test_where_no_piece_was_long_enough_the_chorales_have_one_table():
    for lengths in ({}, {name: {} for name in METRICS["lengths"]}):
        text = music_table(METRICS | {"lengths": lengths})
        assert "| Shaw, relative | 0.465 ± 0.007 |" in text
        assert "measured at more" not in text


def test_the_table_says_what_translations_are_worth():
    bleu = {"value": 0.4, "low": -0.3, "high": 1.1}
    scores = {"bleu": 35.0, "bleu_low": 33.1, "bleu_high": 37.0, "chrf": 60.0, "nats": 1.6}
    text = translation_table(
        {
            "held_out": {
                "sinusoidal": scores,
                "shaw-16": scores | {"difference": {"from": "sinusoidal", "bleu": bleu}},
            },
            "machine": MACHINE,
            "steps": 3000,
            "seeds": [0],
            "seconds": 1800.0,
            "translations": {"sentences": 1014, "signatures": {"bleu": "nrefs:1"}},
        }
    )
    assert "1,014 held-out sentences after 3000 steps each, one seed;" in text
    assert "| sinusoidal | 35.0 (33.1 to 37.0) | the baseline | 60.0 | 1.600 |" in text
    assert "| Shaw, k = 16 | 35.0 (33.1 to 37.0) | +0.4 (-0.3 to +1.1) | 60.0 | 1.600 |" in text


def test_figures_of_others_stand_below_ours_and_say_that_they_are_from_memory():
    text = music_table(METRICS, HUANG_2018)
    theirs = [line for line in text.splitlines() if "Huang et al." in line]
    assert len(theirs) == len(HUANG_2018.nats)
    assert all("(from memory)" in line for line in theirs)
    assert "Huang et al." not in music_table(METRICS)
