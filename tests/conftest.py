"""Two test processes share the cores, so each may use one thread; set before NumPy is imported."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from tests.helpers.on_backends import gradient_of, on  # noqa: F401
