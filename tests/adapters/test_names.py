"""Where other people's names are found: in `relpos.adapters`, and where they were looked for."""

import pytest

from relpos import adapters, layers, positions


@pytest.mark.parametrize(
    ("module", "names"),
    [
        (positions, ["AbsPosEmb1D", "RelPosEmb1D", "RelPosEmb2D"]),
        (layers, ["RelativeGlobalAttention"]),
    ],
)
def test_names_of_adapters_are_listed_and_given(module, names):
    for name in names:
        assert name in dir(module)
        assert getattr(module, name) is getattr(adapters, name)
    assert set(module.__all__) <= set(dir(module))
    assert dir(module) == sorted(dir(module))


@pytest.mark.parametrize("module", [positions, layers])
def test_a_name_that_there_is_not_is_named(module):
    with pytest.raises(AttributeError, match=rf"module '{module.__name__}' has no attribute 'Ros'"):
        module.Ros  # noqa: B018
