"""Acting: a policy chooses actions beside its environments (`EnvLoop`) or in one place for the environments of many
workers (`CentralActor`, whose workers are `EnvWorker`). `Evaluator` judges a policy."""

from cavalcade.acting.central import CentralActor
from cavalcade.acting.env_loop import EnvLoop
from cavalcade.acting.env_worker import EnvWorker
from cavalcade.acting.evaluation import STREAM, Evaluator, Progress, environments, noise_of, play_episodes, summary
from cavalcade.acting.policy import Policy, check_same_spaces, folder_of, intact, read

__all__ = [
    "STREAM",
    "CentralActor",
    "EnvLoop",
    "EnvWorker",
    "Evaluator",
    "Policy",
    "Progress",
    "check_same_spaces",
    "environments",
    "folder_of",
    "intact",
    "noise_of",
    "play_episodes",
    "read",
    "summary",
]
