"""One self-contained HTML page: every figure and file lies inside it."""

from __future__ import annotations

import base64

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from .blocks import Report

__all__ = ["data_uri", "render"]


def render(report: Report) -> str:
    """The page as HTML.

    Args:
        report: what it says.
    """
    environment = Environment(
        loader=PackageLoader("relpos_tasks", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["data_uri"] = data_uri
    return environment.get_template(report.template).render(report=report)


def data_uri(content: str | bytes, media_type: str) -> Markup:
    """The content as an address that needs no file.

    Args:
        content: text or bytes.
        media_type: such as `"image/svg+xml"`.

    >>> data_uri("relpos", "text/plain")
    Markup('data:text/plain;base64,cmVscG9z')
    """
    raw = content.encode() if isinstance(content, str) else content
    return Markup(f"data:{media_type};base64,{base64.b64encode(raw).decode()}")
