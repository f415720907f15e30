"""The house: rooms with one face each, dependencies in one direction, and four axes that never reach each other. Read
from the imports, followed wherever they lead, not from good intentions."""

import ast
from functools import cache
from pathlib import Path

import pytest

import cavalcade

ROOT = Path(cavalcade.__file__).parent
LIBRARIES = {"torch", "jax", "flax", "optax", "ray", "autograd"}
# from the ground floor up: a room knows only those before it. The words that everybody uses lie beside the rooms.
ROOMS = (
    "networks",
    "ops",
    "transport",
    "checkpoints",
    "programs",
    "records",
    "backends",
    "envs",
    "table",
    "experience",
    "algorithms",
    "acting",
    "learning",
    "runtimes",
    "assembly",
    "architectures",
    "experiment",
    "runs",
)
DOORS = {  # rooms that are a collection: each of these files is a face of its own
    "ops": ("atoms", "bounds", "distributions", "losses", "mpo", "penalty", "quantiles", "returns"),
    "algorithms": ("dqn", "a2c", "ppo", "impala", "ddpg", "sac", "mpo", "pg"),
    "architectures": ("a3c", "apex", "dppo", "ga3c", "gorila", "impala", "paac", "seed", "sync"),
    "backends": ("devices", "numpy_backend", "threads"),
    "runtimes": ("inprocess", "processes", "ray"),
    "learning": ("updates", "updates.allreduce", "updates.hogwild", "updates.parameter_server"),
    "runs": ("callbacks", "checking", "inspection", "progress", "trained", "training"),
    "networks": ("normaliser",),
    "checkpoints": ("checkpoint",),
    "transport": ("_words",),
    "table": ("invariants",),
}
ALGORITHMS = {f"cavalcade.algorithms.{name}" for name in DOORS["algorithms"]}
FRAMEWORKS = {
    f"cavalcade.backends.{name}_{kind}" for name in ("torch", "jax", "flax") for kind in ("backend", "modules")
}


# uses torch to carry sums between processes, whatever learns in them
MESSENGERS = {"cavalcade.learning.updates.gloo"}


def rooms(names: str) -> set[str]:
    return {f"cavalcade.{name}" for name in names.split()}


# what a room may not reach, through however many others
NEVER_REACHED = {
    "algorithms": {
        *LIBRARIES,
        "gymnasium",
        *rooms("backends runtimes architectures acting learning envs programs"),
    },
    "architectures": {*LIBRARIES - {"autograd"}, *ALGORITHMS, *FRAMEWORKS, "cavalcade.runtimes"},
    "runtimes": {*LIBRARIES - {"ray"}, *rooms("algorithms architectures backends learning acting ops table")},
    "backends": {"ray", "gymnasium", *rooms("algorithms architectures runtimes learning acting ops table")},
    **dict.fromkeys(("networks", "ops", "transport", "checkpoints", "programs", "records", "envs", "table"), LIBRARIES),
    "experience": {*LIBRARIES, "gymnasium"},
    "acting": {*LIBRARIES - {"autograd"}, *ALGORITHMS, *FRAMEWORKS},
}


def module_of(path: Path, root: Path) -> str:
    parts = (root.name, *path.relative_to(root).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules(root: Path = ROOT) -> dict[str, Path]:
    return {module_of(path, root): path for path in root.rglob("*.py")}


def imports(path: Path, known: dict[str, Path]) -> set[str]:
    """Every module that a file imports, wherever in the file; a name out of a module counts as that module."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = {f"{node.module}.{alias.name}" for alias in node.names} & known.keys()
            found |= inside | {node.module}
    return found


@cache
def graph(root: Path = ROOT) -> dict[str, set[str]]:
    """What each module imports; who imports `a.b` imports `a` as well."""
    known = modules(root)
    reached: dict[str, set[str]] = {}
    for name, path in known.items():
        carried = {"torch", "torch.distributed"} if name in MESSENGERS else set()
        for target in imports(path, known) - carried:
            parts = target.split(".")
            whole = {".".join(parts[: n + 1]) for n in range(len(parts))}
            reached.setdefault(name, set()).update(whole - {root.name})
    return reached


def reaches(start: str, root: Path = ROOT) -> dict[str, str]:
    """All that a module leads to, and by which module each is imported."""
    by: dict[str, str] = {}
    waiting = [start]
    while waiting:
        here = waiting.pop()
        for there in graph(root).get(here, ()):
            if there not in by:
                by[there] = here
                waiting.append(there)
    return by


def room_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if parts[0] == "cavalcade" and len(parts) > 1 and parts[1] in ROOMS else ""


def breaches(start: str, forbidden: set[str], root: Path = ROOT) -> list[str]:
    by = reaches(start, root)
    found = []
    for name in sorted(by):
        if any(name == each or name.startswith(each + ".") for each in forbidden):
            way = [name]
            while way[-1] != start:
                way.append(by[way[-1]])
            found.append(" <- ".join(way))
    return found


def in_room(room: str) -> list[str]:
    return [name for name in modules() if room_of(name) == room]


@pytest.mark.parametrize("room", NEVER_REACHED)
def test_a_room_never_reaches_what_it_may_not(room):
    assert in_room(room), f"the room {room} is empty"
    found = [way for name in in_room(room) for way in breaches(name, NEVER_REACHED[room])]
    assert found == [], found


def test_every_folder_is_a_room_and_dependencies_go_one_way():
    folders = {path.name for path in ROOT.iterdir() if (path / "__init__.py").exists()}
    assert folders == set(ROOMS)
    upwards = [
        f"{name} -> {target}"
        for name, targets in graph().items()
        for target in targets
        if room_of(name) and room_of(target) and ROOMS.index(room_of(target)) > ROOMS.index(room_of(name))
    ]
    assert upwards == [], upwards
    public = ("cavalcade", "cavalcade.__main__", "cavalcade.loggers")  # what users name lies above the rooms
    base = [name for name in modules() if not room_of(name) and name not in public]
    assert [way for name in base for way in breaches(name, {f"cavalcade.{room}" for room in ROOMS})] == []


def test_who_comes_from_another_room_comes_through_the_face():
    wrong = []
    for name, path in modules().items():
        if name == "cavalcade":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("cavalcade.")):
                continue
            room, _, inside = node.module.removeprefix("cavalcade.").partition(".")
            if room not in ROOMS or room == room_of(name) or inside in DOORS.get(room, ()):
                continue
            names = {alias.name for alias in node.names}
            hidden = names if inside else names - face(room) - {*DOORS.get(room, ())}
            wrong += [f"{name}: {node.module}.{each}" for each in sorted(hidden)]
    assert wrong == [], wrong


@cache
def face(room: str) -> set[str]:
    """The names in a room's `__all__`."""
    tree = ast.parse((ROOT / room / "__init__.py").read_text())
    lists = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and [getattr(target, "id", "") for target in node.targets] == ["__all__"]
    ]
    return set(ast.literal_eval(lists[0])) if lists else set()


def test_backends_import_their_own_library_only():
    own = {
        "torch_backend": "torch",
        "torch_modules": "torch",
        "torch_namespace": "torch",
        "torch_optimiser": "torch",
        "torch_recording": "torch",
        "jax_backend": "jax",
        "flax_modules": "jax",
    }
    for path in (ROOT / "backends").glob("*.py"):
        allowed = {own.get(path.stem, "")} | ({"flax", "optax"} if own.get(path.stem) == "jax" else set())
        used = {name.split(".")[0] for name in imports(path, modules())} & {"torch", "jax", "ray", "flax", "optax"}
        assert used <= allowed, path.name


def test_one_module_names_all_four_axes():
    named: dict[str, set[str]] = {}
    axes = {"algorithms": ALGORITHMS, "architectures": None, "runtimes": None}
    for name in modules():
        for axis, members in axes.items():
            if room_of(name) != axis and any(
                target in members if members else room_of(target) == axis for target in graph().get(name, ())
            ):
                named.setdefault(name, set()).add(axis)
    assert named == {
        "cavalcade.experiment.experiment": set(axes),
        "cavalcade.experiment.typed_settings": {"algorithms"},
    }


def test_the_rules_can_fail(tmp_path):
    """Two steps away is found, and the way is said."""
    house = tmp_path / "house"
    (house / "algorithms").mkdir(parents=True)
    (house / "__init__.py").touch()
    (house / "algorithms" / "__init__.py").touch()
    (house / "algorithms" / "dqn.py").write_text("def act():\n    from house import helper\n    return helper\n")
    (house / "helper.py").write_text("from torch import nn\n")
    found = breaches("house.algorithms.dqn", {"torch"}, house)
    assert found == ["torch <- house.helper <- house.algorithms.dqn"]


def test_no_file_is_called_utils_and_none_is_long():
    for path in ROOT.rglob("*.py"):
        assert "utils" not in path.stem
        assert path.read_text().count("\n") <= 400, path
