"""The guide is executed: its commands and snippets run as written, in order, in one folder.

`tests/journey` does the same with the README.
"""

import re
import subprocess
import sys
from pathlib import Path

from cavalcade.experiment.experiment import ARCHITECTURES, Experiment, Settings
from cavalcade.experiment.systems import SYSTEMS

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"```(\w*)\n(.*?)```", re.S)


def blocks(document: str) -> list[tuple[str, str]]:
    return BLOCK.findall((ROOT / document).read_text())


def shortened(command: str) -> list[str]:
    """The same command with a smaller budget: what is shown is that it runs, not that it learns."""
    words = command.split("#")[0].split()
    return [re.sub(r"^100000$", "2000", word) for word in words]


def test_commands_and_snippets_run(tmp_path):
    ran = 0
    for language, text in blocks("docs/guide.md"):
        if language == "python":
            subprocess.run([sys.executable, "-c", text], cwd=tmp_path, check=True, capture_output=True)
            ran += 1
        for line in text.splitlines() if not language else []:
            if line.startswith("cavalcade "):
                command = [sys.executable, "-m", *shortened(line)]
                done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
                assert done.returncode == 0, f"{line}\n{done.stderr}"
                ran += 1
    assert ran >= 4


def test_make_targets_of_the_readme_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", (ROOT / "README.md").read_text(), re.M):
        assert re.search(rf"^{target}:", makefile, re.M), target


def test_links_lead_somewhere():
    for document in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
            if "://" not in link:
                assert (document.parent / link).exists(), f"{document.name}: {link}"


def test_systems_of_the_readme_are_those_that_exist():
    named = re.findall(r"^\| `([\w-]+)` \|", (ROOT / "README.md").read_text(), re.M)
    assert named == list(SYSTEMS)


def test_pictures_are_what_graph_draws():
    text = (ROOT / "docs" / "architectures.md").read_text()
    drawn = re.findall(r"<!-- graph (\S+) -->\n```mermaid\n(.*?)\n```", text, re.DOTALL)
    assert {SYSTEMS[system].architecture for system, _ in drawn} == set(ARCHITECTURES)
    for system, picture in drawn:
        settings = Settings(actors=2, evaluations=0)
        assert Experiment.create(system, "CartPole-v1", settings, {}).program().graph() == picture
