"""The list of packages and the one C extension; everything declarative is in pyproject.toml.

The list is computed because one kept by hand silently drops new subpackages from the wheel.
"""

from setuptools import Extension, find_namespace_packages, setup

GRAMMAR = "core/text/grammar"
PARTS = ("core", "lsp", "tui", "bisect")


def packages() -> list[str]:
    """The four parts under their import names, with every folder below them that holds Python."""
    found: list[str] = []
    for part in PARTS:
        found.append(f"hloscope.{part}")
        found.extend(
            f"hloscope.{part}.{sub}"
            for sub in find_namespace_packages(part, exclude=["text.grammar", "text.grammar.*"])
            if "__pycache__" not in sub.split(".")
        )
    return found


setup(
    packages=packages(),
    ext_modules=[
        Extension(
            "hloscope.core.text._hlo_grammar",
            sources=[f"{GRAMMAR}/binding.c", f"{GRAMMAR}/src/parser.c", f"{GRAMMAR}/src/scanner.c"],
            depends=[f"{GRAMMAR}/src/tree_sitter/parser.h"],
            include_dirs=[f"{GRAMMAR}/src"],
            define_macros=[("Py_LIMITED_API", "0x030B0000"), ("TREE_SITTER_HIDE_SYMBOLS", None)],
            extra_compile_args=["-std=c11", "-fvisibility=hidden"],
            py_limited_api=True,
            # without a C compiler the highlighter uses its regular expressions
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
