"""The `relpos` command: its groups, and how their errors leave it."""

from __future__ import annotations

from typing import Any

import typer

from .adapt import adapt_command
from .music import music
from .plan import plan_command
from .plot import plots
from .translation import translation
from .vision import vision

__all__ = ["run"]

# What Typer raises for a wrong option; versions that bring their own click keep it elsewhere.
_UsageError: Any = typer.BadParameter.__bases__[0]
# What only groups commands lists them; a command that needs an argument shows its help.
_HELPS = ([], ["music"], ["translation"], ["vision"], ["plot"], ["adapt"], ["plan"])

app = typer.Typer(
    name="relpos",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Relative position attention at work: train models on real tasks, and look inside them.",
    epilog="Begin with `relpos music compare --preset tiny` (a minute) or `relpos music compare`.",
)
app.add_typer(music, name="music")
app.add_typer(translation, name="translation")
app.add_typer(vision, name="vision")
app.add_typer(plots, name="plot")
app.command("adapt")(adapt_command)
app.command("plan")(plan_command)


def run(arguments: list[str]) -> int:
    """Run a command.

    Args:
        arguments: what follows the program's name.

    Returns:
        The exit status.

    Raises:
        ValueError: on bad input, in one line.
    """
    given = [*arguments, "--help"] if arguments in _HELPS else arguments
    try:
        status: Any = app(given, prog_name="relpos", standalone_mode=False)
    except _UsageError as error:
        raise ValueError(_in_our_words(error)) from error
    return status or 0


def _in_our_words(error: Any) -> str:
    """What Typer says of a wrong option, which some of its versions have from pydantic."""
    message: str = error.format_message().replace("Value error, ", "")
    before, found, rule = message.partition("Input should ")
    if not found:
        return message
    # pydantic's error has the value.
    of_value: Any = getattr(error.__cause__, "errors", list)()
    got = f", got {of_value[0]['input']!r}" if of_value else ""
    return f"{before}must {rule.partition(',')[0]}{got}"
