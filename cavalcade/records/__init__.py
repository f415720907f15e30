"""Records: the run folder, the rows of metrics in it, and how runs are drawn and written about."""

from cavalcade.records.figures import History, duration, is_number, number, score
from cavalcade.records.folder import Run, default_path, environment_of, write_failure, written
from cavalcade.records.metric_names import ALARMS, tagged
from cavalcade.records.plotting import draw_curve, draw_runs
from cavalcade.records.recorder import Recorder

__all__ = [
    "ALARMS",
    "History",
    "Recorder",
    "Run",
    "default_path",
    "draw_curve",
    "draw_runs",
    "duration",
    "environment_of",
    "is_number",
    "number",
    "score",
    "tagged",
    "write_failure",
    "written",
]
