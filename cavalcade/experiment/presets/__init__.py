"""Settings per system and environment, as data with a source each: the TOML files of this folder, one for each family.

A file has a list of presets, and bases, which presets of any file may build on:

    [base.sb3-ppo]                       # what holds for all presets that say base = "sb3-ppo"
    unroll = 2_048

    [[preset]]
    systems = ["ppo"]
    environments = ["Pendulum-v1"]       # ids, or patterns with * for a family; an id beats a pattern
    source = "rl-baselines3-zoo, hyperparams/ppo.yml at 22e3ff2"   # up to the first comma it is shown by `--help`
    base = "sb3-ppo"                     # may be left out
    [preset.settings]                    # of the run and of the algorithm, by the names that they have in Python
    envs = 4
"""

from cavalcade.experiment.presets.catalogue import NONE, Entry, Preset, entries, find, listing, run_settings

__all__ = ["NONE", "Entry", "Preset", "entries", "find", "listing", "run_settings"]
