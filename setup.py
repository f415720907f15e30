"""The one compiled part, in plain C. Everything else about the package is in pyproject.toml."""

import os

from setuptools import Extension, setup

FOLDER = "cavalcade/table"

setup(
    ext_modules=[
        Extension(
            "cavalcade.table._core",
            [f"{FOLDER}/{name}.c" for name in ("module", "columns", "items", "selectors")],
            depends=[f"{FOLDER}/{name}.h" for name in ("core", "columns", "bell")],
            extra_compile_args=[] if os.name == "nt" else ["-O3", "-std=c11", "-fno-math-errno"],
            py_limited_api=True,
        )
    ]
)
