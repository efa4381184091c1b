"""Pages of the documentation site that are no files of docs/ (hooks of mkdocs.yml).

The README and what lies beside it are pages under the names that `OUTSIDE` gives them, and each
public package is one of `reference/`: its public names, as their docstrings have them. Links
between documents are written for those who read the files; here they lead to the site's pages.
"""

from __future__ import annotations

import inspect
import posixpath
import re
from importlib import import_module
from pathlib import Path
from types import ModuleType

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
# Page of the site: document of the repository.
OUTSIDE = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "benchmarks.md": "benchmarks/README.md",
}
PACKAGES = ("relpos", "positions", "layers", "adapters", "distributed", "plots", "definition")
# Whose modules say, above the class, the formula and its source.
FORMULAS = {"positions"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Those of docs/, and the pages that are made."""
    for page, document in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / document).read_text()))
    for name in PACKAGES:
        page = f"reference/{name}.md"
        files.append(File.generated(config, page, content=reference_page(name)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """A page with the links of the document as links of the site."""
    here = page.file.src_uri
    document = OUTSIDE.get(here, f"docs/{here}")
    return re.sub(
        r"\]\((?!https?:|#)([^)#\s]+)(#[^)]*)?\)",
        lambda link: _site_link(here, document, link[1], link[2] or "", config, files),
        markdown,
    )


def _site_link(
    here: str, document: str, target: str, anchor: str, config: MkDocsConfig, files: Files
) -> str:
    """`](target)` of a document, from the page that it is."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(document), target))
    pages = {other: page for page, other in OUTSIDE.items()}
    at = pages.get(path) or path.removeprefix("docs/")
    if files.get_file_from_path(at) is None and (ROOT / path).is_file():
        # A file of the repository that a reader may want to have, such as an example.
        file = File.generated(config, path, abs_src_path=str(ROOT / path))
        files.append(file)
        at = path
    return f"]({posixpath.relpath(at, posixpath.dirname(here) or '.')}{anchor})"


def reference_page(name: str) -> str:
    """Markdown of a package: what it says of itself, then its public names."""
    title = name if name == "relpos" else f"relpos.{name}"
    package = import_module(title)
    parts = [f"# {title}", _text(package)]
    for module, names in _by_module(package).items():
        if name in FORMULAS:
            parts += [f"## {', '.join(names)}", _text(import_module(module))]
        parts += [f"::: {title}.{public}" for public in names]
    return "\n\n".join(parts) + "\n"


def _by_module(package: ModuleType) -> dict[str, list[str]]:
    """The public names of a package by the module that they are of, but for its packages."""
    found: dict[str, list[str]] = {}
    for public in sorted(package.__all__, key=str.lower):
        value = getattr(package, public)
        if not inspect.ismodule(value) and not public.startswith("__"):
            found.setdefault(getattr(value, "__module__", package.__name__), []).append(public)
    return found


def _text(module: ModuleType) -> str:
    return inspect.cleandoc(module.__doc__ or "")
