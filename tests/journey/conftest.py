"""The package as a user has it: its wheel in a virtual environment of its own, and an empty folder to work in."""

import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("cavalcade", "pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")


class Installation:
    """Runs commands and scripts in the new environment, which knows nothing of the checkout."""

    def __init__(self, folder: Path):
        self.folder, self.programs = folder, folder / "bin"

    def run(self, *command: object, cwd: Path) -> subprocess.CompletedProcess:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
        path = f"{self.programs}{os.pathsep}{kept.get('PATH', '')}"
        words = [str(word) for word in command]
        # `timeout` is a hang, not a measurement
        return subprocess.run(words, cwd=cwd, env=kept | {"PATH": path}, capture_output=True, text=True, timeout=300)

    def cavalcade(self, line: str, cwd: Path) -> subprocess.CompletedProcess:
        return self.run(self.programs / "cavalcade", *line.split(), cwd=cwd)

    def script(self, text: str, cwd: Path) -> subprocess.CompletedProcess:
        file = cwd / "my_script.py"
        file.write_text(text)
        return self.run(self.programs / "python", file, cwd=cwd)


@pytest.fixture(scope="session")
def installed(tmp_path_factory) -> Installation:
    """Made once, by the first of several test processes that asks for it."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = shared / "journey"
    with open(shared / "journey.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "ready").exists():
            _install(_wheel(shared / "journey-wheel"), folder)
            (folder / "ready").touch()
    return Installation(folder)


def _wheel(folder: Path) -> Path:
    """Built from a copy, so that nothing is left in the checkout and nothing left there gets into the wheel."""
    shutil.rmtree(folder, ignore_errors=True)
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        else:
            shutil.copy(ROOT / name, folder / name)
    _pip("wheel", folder, "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", folder)
    [wheel] = folder.glob("*.whl")
    return wheel


def _install(wheel: Path, folder: Path) -> None:
    """Everything but the package itself comes from the environment of the tests: `.pth` files in a folder that a `.pth`
    file names are not read, and an editable installation is such a file."""
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    _pip("--python", folder / "bin" / "python", "install", "--no-deps", "--no-index", wheel)
    [packages] = folder.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n{sysconfig.get_path('platlib')}\n")


def _pip(*words: object) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def here(tmp_path) -> Path:
    """A working directory with a module of the user's own."""
    shutil.copy(Path(__file__).parent / "my_envs.py", tmp_path)
    return tmp_path
