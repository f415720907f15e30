"""Experiments: the one place where algorithm, architecture, runtime and backend meet."""

from cavalcade.experiment.experiment import ALGORITHMS, Experiment, adapt, chosen, has_images, probe
from cavalcade.experiment.matrix import table
from cavalcade.experiment.presets import find as find_preset
from cavalcade.experiment.presets import listing as preset_listing
from cavalcade.experiment.presets import run_settings
from cavalcade.experiment.run_settings import GROUPS, Settings
from cavalcade.experiment.systems import SYSTEMS, example, find
from cavalcade.experiment.typed_settings import settings, settings_of

__all__ = [
    "ALGORITHMS",
    "GROUPS",
    "SYSTEMS",
    "Experiment",
    "Settings",
    "adapt",
    "chosen",
    "example",
    "find",
    "find_preset",
    "has_images",
    "preset_listing",
    "probe",
    "run_settings",
    "settings",
    "settings_of",
    "table",
]
