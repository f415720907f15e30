"""Runs: training, resuming, evaluating and checking; each file is a door of its own, most of them a command."""
