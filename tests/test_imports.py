"""Importing the package is quick and loads no framework; a saved policy acts on NumPy alone."""

import subprocess
import sys

HEAVY = "torch jax ray numba tensorboard matplotlib"


def loaded_after(code: str) -> set[str]:
    program = f"{code}\nimport sys\nprint(*(set({HEAVY!r}.split()) & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(out.stdout.split("\n")[-2].split())


def test_import_loads_no_framework():
    assert loaded_after("import cavalcade") == set()
    assert loaded_after("import cavalcade.experiment, cavalcade.runs.trained, cavalcade.runs.training") == set()


def test_the_check_sees_a_framework():
    assert "torch" in loaded_after("import torch")


def test_unknown_attribute_is_an_attribute_error():
    import pytest

    import cavalcade

    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        cavalcade.trian  # noqa: B018
