"""The list of packages; everything declarative is in pyproject.toml.

The list is computed because one kept by hand silently drops new subpackages from the wheel.
"""

from setuptools import find_namespace_packages, setup

PARTS = ("core", "lsp", "tui", "bisect")


def packages() -> list[str]:
    """The four parts under their import names, with every folder below them that holds Python."""
    found: list[str] = []
    for part in PARTS:
        found.append(f"hloscope.{part}")
        found.extend(
            f"hloscope.{part}.{sub}" for sub in find_namespace_packages(part) if "__pycache__" not in sub.split(".")
        )
    return found


setup(packages=packages())
