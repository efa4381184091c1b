"""A comparison that replaces the report of another one says so."""

import json

import pytest

from relpos_tasks.report.replaced import replaced_report
from relpos_tasks.training.comparison import Comparison

OTHERS = Comparison(["rotary"], seed=3)


@pytest.fixture
def metrics(tmp_path):
    path = tmp_path / "run" / "metrics.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"held_out": {"huang": {}, "shaw": {}}, "seeds": [3, 4]}))
    return path


def test_a_report_of_other_models_is_named_before_it_is_replaced(metrics):
    assert replaced_report(metrics, OTHERS) == (
        f"{metrics.parent}: the report there is of huang, shaw (2 seeds); it will be replaced by "
        "one of rotary (1 seed): copy it first to keep it"
    )
    same = Comparison(["huang", "shaw"], seed=3, seeds=2)
    assert replaced_report(metrics, same) is None


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"held_out": 3, "seeds": [1]}', "\xff"])
def test_what_is_no_report_is_not_named(metrics, content):
    metrics.write_bytes(content.encode("latin-1"))
    assert replaced_report(metrics, OTHERS) is None
    assert replaced_report(metrics.parent / "none" / "metrics.json", OTHERS) is None
