"""Environments that the user has made already are trained on as they are, and evaluated on others like them."""

import gymnasium as gym
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import cavalcade
from cavalcade import envs
from cavalcade.envs.toy import Corridor
from cavalcade.errors import UserError

TINY = {"steps": 64, "unroll": 8, "hidden": (8,), "epochs": 1, "backend": "numpy", "rows": 1, "display": False}
TINY |= {"evaluations": 1, "evaluation_episodes": 2}
VECTORS = {"vector": {}} | {
    mode.name: {"vectorization_mode": "sync", "vector_kwargs": {"autoreset_mode": mode}} for mode in AutoresetMode
}


@pytest.mark.parametrize("kind", VECTORS)
def test_training_on_a_vector_environment(kind, tmp_path):
    environment = gym.make_vec("CartPole-v1", num_envs=4, **VECTORS[kind])
    run = cavalcade.train("ppo", environment, out=tmp_path / "run", **TINY)
    last = run.rows()[-1]
    assert run.config["envs"] == 4 and last["step"] == 64 and last["evaluation"] > 0
    environment.reset()  # it is still the user's
    environment.close()


def test_training_on_one_environment(tmp_path):
    one = gym.wrappers.TransformReward(gym.make("CartPole-v1", max_episode_steps=7), lambda reward: reward / 2)
    run = cavalcade.train("ppo", one, out=tmp_path / "run", **TINY)
    assert run.config["envs"] == 1 and run.rows()[-1]["evaluation"] == 3.5  # the copies are wrapped as it is
    one.reset()


def test_an_own_vector_of_environments(tmp_path):
    made = []

    def corridor():
        made.append(Corridor(length=3, numbered=False))
        return made[-1]

    run = cavalcade.train("ppo", SyncVectorEnv([corridor] * 2), out=tmp_path / "run", **TINY)
    assert run.rows()[-1]["evaluation"] == 3 and run.config["environment"] == "<Corridor>"
    assert len(made) > 2


def refused(environment, tmp_path, **settings):
    with pytest.raises(UserError) as caught:
        cavalcade.train("ppo", environment, out=tmp_path / "run", **(TINY | settings))
    assert not (tmp_path / "run").exists()
    return str(caught.value)


def test_where_an_object_cannot_be_used(tmp_path):
    vector, one = gym.make_vec("CartPole-v1", num_envs=4), gym.make("CartPole-v1")
    assert "holds 4 where envs=2 are asked for" in refused(vector, tmp_path, envs=2)
    assert "holds 1 where envs=8 are asked for" in refused(one, tmp_path, envs=8)
    assert "one environment object for 2 actors" in refused(vector, tmp_path, actors=2)
    for runtime in ("process", "ray"):
        assert "give its id or a function" in refused(one, tmp_path, runtime=runtime)
    wrapped = gym.wrappers.vector.RecordEpisodeStatistics(vector)
    assert "give a function that makes it, or evaluations=0" in refused(wrapped, tmp_path)
    assert "give a function that makes it, or evaluations=0" in refused(Corridor(), tmp_path)

    class Unknown(gym.Wrapper):
        """Gymnasium cannot make it again."""

    assert "cannot be made again as it was" in refused(Unknown(gym.make("CartPole-v1")), tmp_path)
    same = [Corridor(numbered=False) for _ in range(2)]
    assert "give the same ones again" in refused(SyncVectorEnv([lambda: same[0], lambda: same[1]]), tmp_path)
    cavalcade.train("ppo", wrapped, out=tmp_path / "run", **(TINY | {"evaluations": 0}))


def test_how_many_an_object_holds():
    assert envs.held("CartPole-v1") is None and envs.held(Corridor) is None
    assert envs.held(Corridor()) == 1 and envs.held(SyncVectorEnv([Corridor] * 3)) == 3
    assert envs.again("CartPole-v1") == "CartPole-v1" and envs.again(Corridor) is Corridor
