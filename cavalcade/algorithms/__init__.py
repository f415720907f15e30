"""Algorithms: the contract, and a file for each of them. What they have in common is here."""

from cavalcade.algorithms.contract import DRAW, Acted, Adaptation, Algorithm, Clock, Forward, Loss, Target

__all__ = ["DRAW", "Acted", "Adaptation", "Algorithm", "Clock", "Forward", "Loss", "Target"]
