"""Numbers that environments put into their infos reach the rows of a run, as means."""

import copy
import dataclasses
import json

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import cavalcade
from cavalcade import envs
from cavalcade.experiment.experiment import Experiment, Settings
from cavalcade.specs import EnvSpec


class Telling(gym.Env):
    """Episodes of three steps that say how it goes, among much that is no metric."""

    observation_space, action_space = gym.spaces.Box(-1, 1, (1,)), gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {"metrics": {"height": 1000.0}, "won": 1000}

    def step(self, action):
        self.steps += 1
        info = {"metrics": {"height": float(self.steps), "words": "high"}} if self.steps != 2 else {}
        info |= {"won": self.steps == 3, "depth": np.float32(0.5), "path": [1, 2], "lives": 3, "_hidden": 1.0}
        info |= {"worst": np.nan, "episode": {"r": 3.0}, "name": "x", "TimeLimit.truncated": False, "row": np.ones(2)}
        return np.full(1, self.steps / 3, np.float32), 1.0, self.steps == 3, False, info


@pytest.mark.parametrize("kind", ["loop", *AutoresetMode])
def test_every_step_may_tell_and_the_last_one_too(kind):
    environments = envs.make(
        Telling if kind == "loop" else SyncVectorEnv([Telling] * 2, autoreset_mode=kind), 2, seed=0
    )
    environments.reset()
    for _ in range(8 if kind is AutoresetMode.NEXT_STEP else 6):  # two episodes
        environments.step(np.zeros(2, int))
    # height is told in steps 1 and 3 of two episodes of two environments; won and depth count at their ends
    assert environments.metrics.drain() == {"height": [16.0, 8], "won": [4.0, 4], "depth": [2.0, 4]}
    assert environments.metrics.drain() == {}


TINY = {"steps": 192, "unroll": 8, "hidden": (8,), "epochs": 1, "backend": "numpy", "envs": 2, "evaluations": 0}


@pytest.mark.parametrize("system", ["ppo", "seed-impala"])
def test_they_appear_in_the_rows_of_a_run(system, tmp_path):
    settings = {key: value for key, value in TINY.items() if key != "epochs" or system == "ppo"}
    run = cavalcade.train(system, Telling, out=tmp_path / "run", rows=2, display=False, **settings)
    rows = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert rows[0]["env/height"] == 2.0 and rows[0]["env/won"] == 1.0 and rows[0]["env/depth"] == 0.5
    assert [key for key in rows[0] if key.startswith("env/")] == ["env/height", "env/won", "env/depth"]


@pytest.mark.parametrize("acting", ["local", "central"])
def test_what_was_not_reported_yet_is_kept_by_a_checkpoint(acting):
    settings = Settings(steps=96, envs=2, backend="numpy", evaluations=0, acting=acting)
    experiment = Experiment.create("ppo", Telling, settings, {"unroll": 8, "hidden": (8,), "epochs": 1})
    whole, rest = experiment.launch(), experiment.launch()
    for _ in range(9):
        whole.round()
    kept = copy.deepcopy(whole.state())
    rest.restore(kept)
    told = []
    for runtime in (whole, rest):
        for _ in range(9):
            runtime.round()
        told.append(runtime.reports()["actor/0"]["environment_metrics"])
        runtime.close()
    assert told[0] == told[1] and told[0]["won"][1] > 2


def test_a_value_out_of_bounds_is_said_by_the_run(tmp_path, capsys):
    class Beyond(Telling):
        observation_space = gym.spaces.Box(-0.5, 0.5, (1,))

    run = cavalcade.train("ppo", Beyond, out=tmp_path / "run", rows=2, **TINY)
    [remark] = json.loads(run.report_file.read_text())["remarks"]
    assert "gave 0.666667 (float32) at [0] in the observation in environment 0, episode 0, step 2" in remark
    assert f"warning: {remark}" in capsys.readouterr().out


def test_a_spec_in_json_keeps_its_frames():
    spec = envs.make("CartPole-v1", 1, seed=0).spec
    assert (spec.frames, spec.frame_skip) == (1, 1)
    stacked = EnvSpec(spec.environment, spec.observation, spec.action, frames=4, frame_skip=3)
    assert EnvSpec.from_json(json.loads(json.dumps(stacked.to_json()))) == stacked
    old = {key: value for key, value in spec.to_json().items() if key not in ("frames", "frame_skip", "time_limit")}
    assert EnvSpec.from_json(old) == dataclasses.replace(spec, time_limit=0)  # a policy.json of before
