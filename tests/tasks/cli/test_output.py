"""What commands print of their figures."""

from relpos_tasks.cli.output import print_rows


def test_figures_of_several_seeds_are_a_mean_and_a_spread(capsys):
    print_rows("held out", {"huang": [0.5, 0.6], "one": [0.25], "counting": 1.0}, digits=2)
    assert capsys.readouterr().out.splitlines() == [
        "held out",
        "  huang     0.55 ± 0.07",
        "  one       0.25",
        "  counting  1.00",
    ]
