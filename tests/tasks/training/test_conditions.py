"""What a comparison says of its conditions: all that its settings and its data could change."""

import json
from dataclasses import asdict

import pytest

from relpos_tasks.music.settings import PRESETS as MUSIC
from relpos_tasks.training.conditions import conditions
from relpos_tasks.translation.settings import CHORALE_PRESETS
from relpos_tasks.translation.settings import PRESETS as TEXT
from relpos_tasks.vision.settings import PRESETS as VISION

ABOUT = {"name": "a", "digest": "b", "split": "c", "vocabulary": {"size": 9}}


@pytest.mark.parametrize("presets", [MUSIC, TEXT, CHORALE_PRESETS, VISION])
def test_every_setting_is_said_once_and_as_json(presets):
    settings = presets["tiny"]
    found = conditions(settings, ABOUT)
    assert found["settings"] == settings.recorded()
    assert not found["settings"].keys() & found["model"].keys()
    assert {"width", "layers", "heads"} <= found["model"].keys()
    assert asdict(settings).keys() <= found["settings"].keys() | found["model"].keys() | {
        "compared"
    }
    assert json.loads(json.dumps(found)) == found


def test_of_the_data_only_what_tells_it_from_other_data_is_said():
    assert conditions(VISION["tiny"], ABOUT)["data"] == {"name": "a", "digest": "b", "split": "c"}
