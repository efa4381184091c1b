"""Tables of targets: each bound beside what was measured, and the missed ones with their notes."""

from __future__ import annotations

from .cells import format_ratio, markdown_table
from .targets import Target, notes

__all__ = ["bounds_tables", "target_tables"]


def target_tables(result: dict, targets: tuple[Target, ...]) -> str:
    """Each group of targets with what was measured, then the missed ones with their notes."""
    return "\n\n".join([bounds_tables(result, targets), "### Missed", missed(result, targets)])


def bounds_tables(result: dict, targets: tuple[Target, ...]) -> str:
    """Each group of targets with what was measured."""
    groups: dict[str, dict[tuple[str, str, str], dict[str, Target]]] = {}
    for target in targets:
        row = target.setting, target.scheme, target.contender
        groups.setdefault(target.group, {}).setdefault(row, {})[target.quantity] = target
    return "\n\n".join(f"### {group}\n\n{_table(rows, result)}" for group, rows in groups.items())


def _table(rows: dict[tuple[str, str, str], dict[str, Target]], result: dict) -> str:
    quantities = list(dict.fromkeys(name for row in rows.values() for name in row))
    rivals = any(next(iter(row.values())).at_least for row in rows.values())
    bound = "at least" if rivals else "at most"
    head = ["setting", "scheme", *(["rival"] if rivals else [])]
    head += [cell for name in quantities for cell in (name.replace("+", " + "), bound)]
    cells = [
        [setting, scheme, *([contender] if rivals else []),
         *(cell for name in quantities for cell in _cells(row.get(name), result))]
        for (setting, scheme, contender), row in rows.items()
    ]  # fmt: skip
    return markdown_table(head, cells, 2 + rivals)


def _cells(target: Target | None, result: dict) -> tuple[str, str]:
    if target is None:
        return "", ""
    value, bound = target.measured(result), f"{target.bound:g}"
    if value is None:
        return "not measured", bound
    text = format_ratio(value)
    return (f"**{text}, missed**" if target.missed(result) else text), bound


def missed(result: dict, targets: tuple[Target, ...]) -> str:
    """The missed targets, with what was written about them."""
    written = notes()
    lines = [
        f"- {target.name}: {format_ratio(target.measured(result) or 0)} in place of "
        f"{target.bound:g}. {written.get(target.name, '')}"
        for target in targets
        if target.missed(result)
    ]
    return "\n".join(line.strip() for line in lines) or "None."
