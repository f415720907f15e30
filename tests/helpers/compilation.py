"""A fixture for modules whose tests compile much and compute little."""

import jax
import pytest


@pytest.fixture(autouse=True, scope="module")
def quick_compilation():
    """XLA's optimisations take a third of the time of such tests and change no more than the last bits."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
