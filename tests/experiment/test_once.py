"""What a run is made from is made once."""

from collections import Counter

import pytest

import cavalcade
from cavalcade.algorithms.dqn import DQN
from cavalcade.experiment import experiment


def test_environment_parts_and_model_are_made_once_for_a_run(tmp_path, monkeypatch):
    counted: Counter = Counter()

    def counting(owner, name):
        made = getattr(owner, name)

        def once_more(*given, **named):
            counted[name] += 1
            return made(*given, **named)

        monkeypatch.setattr(owner, name, once_more)

    for owner, name in ((experiment, "probe"), (experiment, "Parts"), (DQN, "model")):
        counting(owner, name)
    settings = {"backend": "numpy", "evaluations": 1, "evaluation_episodes": 1, "hidden": (8,), "display": False}
    cavalcade.train("dqn", "CartPole-v1", steps=1_200, out=tmp_path / "run", **settings)
    assert counted == {"probe": 1, "Parts": 1, "model": 1}


@pytest.mark.parametrize("steps", [256, 512])
def test_the_last_draw_of_a_run_is_learned(steps, tmp_path):
    """Steps for exactly one batch and for two: as many updates as batches, and nothing is left in the table."""
    settings = {"backend": "numpy", "envs": 4, "unroll": 64, "evaluations": 0, "hidden": (8,), "display": False}
    run = cavalcade.train("a2c", "CartPole-v1", steps=steps, out=tmp_path / "run", **settings)
    assert run.rows()[-1]["updates"] == steps // 256 and run.rows()[-1]["step"] == steps
