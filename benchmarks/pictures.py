"""Draws the pictures of the README, docs/curve.png and docs/display.svg, from a run: what was recorded, nothing else.

make demo && python benchmarks/pictures.py runs/demo
"""

import json
import shutil
import sys
from pathlib import Path

from cavalcade.records.folder import Run
from cavalcade.records.plotting import draw_curve
from cavalcade.runs.budget import Bottleneck
from cavalcade.runs.display import export_svg

DOCS = Path(__file__).parent.parent / "docs"


def draw(run: Run) -> None:
    config, found = run.config, json.loads(run.report_file.read_text())["bottleneck"]
    bottleneck = Bottleneck(**{name: found[name] for name in Bottleneck._fields})
    title = f"{config['system']} on {config['environment']}"
    shutil.copy(draw_curve(run), DOCS / "curve.png")
    export_svg(run.rows(), title, config["steps"], config["target"], DOCS / "display.svg", bottleneck)


if __name__ == "__main__":
    draw(Run.open(sys.argv[1]))
