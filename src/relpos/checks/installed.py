"""Whether the packages of an extra are there."""

from __future__ import annotations

from importlib.util import find_spec

__all__ = ["check_installed"]


def check_installed(module: str, *packages: str, extra: str) -> None:
    """Raise unless packages can be imported that `import relpos` does without.

    Args:
        module: the module of relpos on whose behalf the check is made.
        packages: the names by which they are imported.
        extra: of relpos, with which pip installs them.

    Raises:
        ModuleNotFoundError: with the first that is missing, and how to install it.
    """
    for package in packages:
        if find_spec(package) is None:
            raise ModuleNotFoundError(
                f"{module}: {package} must be installed: pip install 'relpos[{extra}]'",
                name=package,
            )
