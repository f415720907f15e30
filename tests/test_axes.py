"""The four axes never name each other: read from the imports, not from good intentions."""

import ast
from pathlib import Path

import pytest

import cavalcade

ROOT = Path(cavalcade.__file__).parent
LIBRARIES = {"torch", "jax", "flax", "optax", "ray", "autograd"}
MEETING_POINT = "cavalcade.experiment"

# layer -> what its files may never import (prefixes)
FORBIDDEN = {
    "algorithms": {
        *LIBRARIES,
        "multiprocessing",
        "gymnasium",
        "cavalcade.backends",
        "cavalcade.architectures",
        "cavalcade.runtimes",
        "cavalcade.table",
        "cavalcade.adders",
        "cavalcade.acting",
        "cavalcade.learning",
        "cavalcade.program",
        "cavalcade.envs",
    },
    "architectures": {
        *LIBRARIES,
        "multiprocessing",
        "cavalcade.algorithms",
        "cavalcade.backends",
        "cavalcade.runtimes",
    },
    "runtimes": {
        "torch",
        "jax",
        "flax",
        "cavalcade.algorithms",
        "cavalcade.algorithm",
        "cavalcade.architectures",
        "cavalcade.backends",
        "cavalcade.learning",
        "cavalcade.acting",
        "cavalcade.table",
        "cavalcade.ops",
    },
    "backends": {
        "ray",
        "gymnasium",
        "cavalcade.algorithms",
        "cavalcade.algorithm",
        "cavalcade.architectures",
        "cavalcade.runtimes",
        "cavalcade.learning",
        "cavalcade.acting",
        "cavalcade.table",
        "cavalcade.ops",
    },
    "ops": {
        *LIBRARIES,
        "cavalcade.backends",
        "cavalcade.algorithms",
        "cavalcade.architectures",
        "cavalcade.runtimes",
    },
    "table": {
        *LIBRARIES,
        "cavalcade.backends",
        "cavalcade.algorithms",
        "cavalcade.architectures",
        "cavalcade.runtimes",
    },
    "envs": {
        *LIBRARIES,
        "cavalcade.backends",
        "cavalcade.algorithms",
        "cavalcade.architectures",
        "cavalcade.runtimes",
    },
}
AXES = ("algorithms", "architectures", "runtimes")


def imports(path: Path) -> set[str]:
    """Every module a file imports, `from a import b` as `a.b`, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def breaches(path: Path, forbidden: set[str]) -> set[str]:
    return {name for name in imports(path) if any(name == f or name.startswith(f + ".") for f in forbidden)}


@pytest.mark.parametrize("layer", FORBIDDEN)
def test_layer_imports_only_what_it_may(layer):
    files = sorted((ROOT / layer).glob("*.py"))
    assert files, f"the folder {layer} is empty"
    found = {str(path.relative_to(ROOT)): breaches(path, FORBIDDEN[layer]) for path in files}
    assert {name: names for name, names in found.items() if names} == {}


def test_backends_import_their_own_library_only():
    own = {
        "torch_backend": "torch",
        "torch_modules": "torch",
        "torch_recording": "torch",
        "jax_backend": "jax",
        "flax_modules": "jax",
        "numpy_backend": "",
    }
    for path in (ROOT / "backends").glob("*.py"):
        foreign = {"torch", "jax", "ray", "flax", "optax"} - {own.get(path.stem, ""), "flax", "optax"}
        if own.get(path.stem) != "jax":
            foreign |= {"flax", "optax"}
        assert breaches(path, foreign) == set(), path.name


def test_one_module_names_all_four_axes():
    naming = {}
    for path in ROOT.rglob("*.py"):
        relative = path.relative_to(ROOT)
        if relative.parts[0] in AXES:
            continue
        named = {axis for axis in AXES if breaches(path, {f"cavalcade.{axis}"})}
        if named:
            naming[str(relative)] = named
    assert naming == {"experiment.py": set(AXES), "typed_settings.py": {"algorithms"}}


def test_the_rule_can_fail(tmp_path):
    culprit = tmp_path / "dqn.py"
    culprit.write_text("def act():\n    from torch import nn\n    import cavalcade.table.table\n    return nn\n")
    assert breaches(culprit, FORBIDDEN["algorithms"]) == {"torch", "torch.nn", "cavalcade.table.table"}


def test_no_file_is_called_utils_and_none_is_long():
    for path in ROOT.rglob("*.py"):
        assert "utils" not in path.stem
        assert path.read_text().count("\n") <= 400, path
