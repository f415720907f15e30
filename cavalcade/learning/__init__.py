"""Learning: the learner (state and updates), the worker around it, and how several learners update together."""

from cavalcade.learning.learner import Learner
from cavalcade.learning.loop import LearnerLoop
from cavalcade.learning.reward_scaling import REWARD

__all__ = ["REWARD", "Learner", "LearnerLoop"]
