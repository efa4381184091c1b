"""Where a package of an extra is missing, the command names the extra in one line."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
HIDDEN = """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hide())
sys.argv = ["relpos", *{arguments!r}]
"""
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
# Where a package is imported by another name.
MODULES = {"pillow": "PIL", "scikit-learn": "sklearn"}


def packages_of(extra):
    """The names of the packages that an extra lists, without relpos itself."""
    names = {re.split(r"[<>=\[; ]", needed)[0] for needed in EXTRAS[extra]}
    return sorted(names - {"relpos"})


def everything_of(extra):
    """The packages of an extra and of the extras that it names."""
    names = set(packages_of(extra))
    for needed in EXTRAS[extra]:
        if found := re.fullmatch(r"relpos\[(.*)\]", needed):
            names |= {name for other in found[1].split(",") for name in everything_of(other)}
    return names


@pytest.mark.no_typecheck
@pytest.mark.parametrize(
    "start",
    [
        "from relpos_tasks.cli import main; main()",
        "import runpy; runpy.run_module('relpos', run_name='__main__')",
    ],
    ids=["relpos", "python -m relpos"],
)
@pytest.mark.parametrize(
    ("arguments", "hidden", "package", "extra"),
    [
        ([], "all", "typer", "train"),
        (["--help"], "all", "typer", "train"),
        (["plot", "shear"], "all", "typer", "train"),
        (["music", "compare"], "all", "typer", "music"),
        (["plot", "shear"], ["matplotlib"], "matplotlib", "train"),
        (["music", "generate", "nowhere"], ["safetensors"], "safetensors", "music"),
    ],
)
@pytest.mark.costly(2)
def test_without_an_extra_one_line_names_it(arguments, hidden, package, extra, start, tmp_path):
    # NumPy is for relpos itself as well, whose import is not what is tried here.
    everything = {*packages_of("music"), *packages_of("train")} - {"numpy"}
    names = everything if hidden == "all" else hidden
    done = subprocess.run(
        [sys.executable, "-c", HIDDEN.format(hidden=names, arguments=arguments) + start],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    said = f'relpos: {package} is not installed; run: pip install "relpos[{extra}]"\n'
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("extra", ["music", "translation", "vision", "train"])
def test_every_package_of_an_extra_is_known_to_the_command(extra, monkeypatch, relpos):
    for package in packages_of(extra):
        module = MODULES.get(package, package)

        def refuse(arguments, name=module):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

        monkeypatch.setattr("relpos_tasks.cli.app.run", refuse)
        said = f'relpos: {module} is not installed; run: pip install "relpos[{extra}]"\n'
        assert relpos("plot") == (2, "", said)


def test_a_tasks_extra_has_what_its_commands_need():
    """The extra of the task that was asked for is the one that is named."""
    for package in (*packages_of("music"), *packages_of("translation"), *packages_of("train")):
        assert package in everything_of("translation")
    assert {*packages_of("train")} < everything_of("vision")


def test_lightnings_own_words_for_a_missing_extra_are_understood(monkeypatch, relpos):
    def refuse(arguments):
        raise ModuleNotFoundError("Neither `tensorboard` nor `tensorboardX` is available.")

    monkeypatch.setattr("relpos_tasks.cli.app.run", refuse)
    assert "tensorboard is not installed; run: pip install" in relpos("music", "train")[2]


def test_our_own_missing_module_is_a_bug_and_not_an_extra(monkeypatch, relpos):
    monkeypatch.setitem(sys.modules, "relpos_tasks.cli.app", None)
    with pytest.raises(ModuleNotFoundError, match=r"relpos_tasks\.cli\.app"):
        relpos()
