"""The two compiled parts, in plain C. Everything else about the package is in pyproject.toml."""

import os

from setuptools import Extension, setup

FLAGS = [] if os.name == "nt" else ["-O3", "-std=c11", "-fno-math-errno"]


def compiled(name: str, sources: list[str], headers: list[str]) -> Extension:
    folder = f"cavalcade/{name.split('.')[0]}"
    return Extension(
        f"cavalcade.{name}",
        [f"{folder}/{source}.c" for source in sources],
        depends=[f"{folder}/{header}.h" for header in headers],
        extra_compile_args=FLAGS,
        py_limited_api=True,
    )


setup(
    ext_modules=[
        compiled("table._core", ["module", "columns", "items", "selectors"], ["core", "columns"]),
        compiled("transport._words", ["words"], ["bell"]),
    ]
)
