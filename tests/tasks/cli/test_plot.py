"""`relpos plot ...` as it is typed."""

import xml.etree.ElementTree as ET

import pytest

from relpos.plots import SCHEMES

PNG = b"\x89PNG\r\n\x1a\n"
SMALL = ["--length", "6", "--heads", "2", "--head-dim", "4"]


def files(folder):
    return sorted(file.name for file in folder.iterdir())


@pytest.mark.parametrize("suffix", [".svg", ".png"])
@pytest.mark.parametrize(
    "command",
    [
        ["shear", "--length", "3"],
        ["ranges", "--length", "5"],
        ["tables", "alibi", *SMALL],
        ["tables", "{runs}/huang"],
        ["attention", "{runs}/huang", "--data", "{grid}", "--tokens", "9"],
    ],
    ids=lambda command: "-".join(command[:2]).replace("{runs}/", ""),
)
@pytest.mark.costly(4)
def test_each_picture_is_written_as_png_or_svg_and_the_same_again(
    command, suffix, relpos, checkpoints, grid, tmp_path
):
    given = [text.format(runs=checkpoints, grid=grid) for text in command]
    out = tmp_path / "new" / f"picture{suffix}"
    assert relpos("plot", *given, "--out", out) == (0, f"wrote {out}\n", "")
    content = out.read_bytes()
    assert files(out.parent) == [out.name]
    if suffix == ".png":
        assert content.startswith(PNG)
        return
    assert ET.fromstring(content).tag.endswith("svg")
    assert relpos("plot", *given, "--out", out)[0] == 0
    assert out.read_bytes() == content


def test_default_names(relpos, checkpoints, grid, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert relpos("plot", "shear")[1] == "wrote shear.svg\n"
    assert relpos("plot", "tables", "t5", *SMALL)[1] == "wrote t5-tables.svg\n"
    assert relpos("plot", "ranges")[1] == "wrote ranges.svg\n"
    assert files(tmp_path) == ["ranges.svg", "shear.svg", "t5-tables.svg"]
    folder = checkpoints / "huang"
    weights = folder / "model.safetensors"
    assert relpos("plot", "tables", weights)[1] == f"wrote {folder / 'tables.svg'}\n"
    said = relpos("plot", "attention", folder, "--data", grid)[1]
    assert said == f"wrote {folder / 'attention.svg'}\n"


def test_a_scheme_is_named_on_the_command_line_and_its_seed_matters(relpos, tmp_path):
    one, same, other = (tmp_path / f"{n}.svg" for n in range(3))
    for path, seed in ((one, 0), (same, 0), (other, 1)):
        assert relpos("plot", "tables", "huang", *SMALL, "--seed", seed, "--out", path)[0] == 0
    assert one.read_bytes() == same.read_bytes() != other.read_bytes()


def test_absolute_positions_have_rows_but_add_nothing_to_scores(relpos, checkpoints, tmp_path):
    out = tmp_path / "rows.svg"
    assert relpos("plot", "tables", checkpoints / "absolute", "--out", out)[0] == 0
    content = out.read_text()
    assert "<!-- position (tokens) -->" in content
    assert "Added to the scores" not in content


def test_a_layer_and_a_piece_can_be_chosen(relpos, checkpoints, grid, tmp_path):
    out = tmp_path / "maps.svg"
    given = ["--data", grid, "--piece", "valid-001", "--layer", 1, "--out", out]
    assert relpos("plot", "attention", checkpoints / "huang", *given)[0] == 0
    assert "<!-- Layer 1: valid-001 -->" in out.read_text()
    given = ["--layer", 1, "--out", out]
    assert relpos("plot", "tables", checkpoints / "huang", *given)[0] == 0
    assert "layer 1 keys" in out.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["shear", "--length", "0"], "Invalid value for '--length'"),
        (["shear", "--length", "7"], "Invalid value for '--length'"),
        (["ranges", "--length", "3"], "Invalid value for '--length'"),
        (["ranges", "--length", "33"], "Invalid value for '--length'"),
        (["shear", "--out", "a.pdf"], "'--out': must end in .png or .svg, got 'a.pdf'"),
        (["shear", "--out", "a"], "'--out': must end in .png or .svg, got 'a'"),
        (["shear", "--out", "{grid}/a.svg"], "a.svg: cannot be written, "),
        (["tables"], "Missing argument"),
        (["tables", "rotari"], f"schemes are {', '.join(SCHEMES)}"),
        (["tables", "no/where"], "no/where: no such file or folder"),
        (["tables", "{runs}"], "is not a checkpoint, model.safetensors is missing; did you mean"),
        (["tables", "shaw", "--length", "0"], "Invalid value for '--length'"),
        (["tables", "shaw", "--heads", "0"], "Invalid value for '--heads'"),
        (["tables", "shaw", "--head-dim", "0"], "Invalid value for '--head-dim'"),
        (["tables", "shaw", "--seed", "-1"], "Invalid value for '--seed'"),
        (["tables", "shaw", "--layer", "1"], "--layer: must be left out for a scheme, got 1"),
        (["tables", "{runs}/huang", "--heads", "2"], "--heads: must be left out for a checkpoint"),
        (["tables", "{runs}/huang", "--layer", "2"], "--layer: must be among 1, got 2"),
        (["tables", "{runs}/none"], "none: its model has no positions to draw"),
        (["tables", "{runs}/absolute", "--layer", "1"], "left out, no layer has positions"),
        (["tables", "shaw", "--out", "a.gif"], "must end in .png or .svg"),
        (["attention", "nowhere"], "nowhere: no such file or folder"),
        (["attention", "{runs}/huang"], "was trained on the pieces of jsb.json"),
        (["attention", "{huang}", "--layer", "2"], "--layer: must be in 1..1, got 2"),
        (["attention", "{huang}", "--tokens", "1"], "Invalid value for '--tokens'"),
        (["attention", "{huang}", "--tokens", "4000"], "--tokens: must be at most the 137 tokens"),
        (
            ["attention", "{huang}", "--piece", "x"],
            "must be a held-out piece (valid-000, valid-001)",
        ),
        (["dance"], "No such command 'dance'"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line_and_exit_2(
    arguments, message, relpos, checkpoints, grid, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    given = []
    for text in arguments:
        if text == "{huang}":
            given += [checkpoints / "huang", "--data", grid]
        else:
            given.append(text.format(runs=checkpoints, grid=grid))
    status, out, err = relpos("plot", *given)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1, err
    assert err.startswith("relpos: ")
    assert message in err
    assert not list(tmp_path.iterdir())


def test_without_a_picture_there_is_help(relpos):
    status, out, err = relpos("plot")
    assert (status, err) == (0, "")
    for picture in ("shear", "tables", "attention"):
        assert picture in out
        assert "Usage: relpos plot" in relpos("plot", picture, "--help")[1]
