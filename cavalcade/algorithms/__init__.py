"""Algorithms: the contract that all keep, whose names are imported here, and a file for each algorithm."""

from cavalcade.algorithms.contract import DRAW, Acted, Adaptation, Algorithm, Clock, Forward, Loss, Target

__all__ = ["DRAW", "Acted", "Adaptation", "Algorithm", "Clock", "Forward", "Loss", "Target"]
