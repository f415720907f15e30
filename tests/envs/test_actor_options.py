"""Options of the environment that differ from actor to actor, on every runtime, in config.json and when resumed."""

import json

import gymnasium as gym
import pytest

import cavalcade
from cavalcade.__main__ import main
from cavalcade.errors import UserError
from cavalcade.experiment.experiment import Experiment, Settings
from cavalcade.options import actor_options

SMALL = {"backend": "numpy", "hidden": (8,), "unroll": 8, "envs": 2, "rows": 4, "evaluation_episodes": 1}


def experiment(environment="Pendulum-v1", actors=3, options=None, each=None, **more):
    settings = Settings(actors=actors, envs=2, backend="numpy", evaluations=1, **more)
    return Experiment.create("ppo", environment, settings, {"hidden": (8,)}, options, actor_options=each)


def gravities(environments) -> list[float]:
    return [env.unwrapped.g for env in environments._envs]


class Weighing(gym.Wrapper):
    """Tells by which option it was made."""

    def step(self, action):
        *rest, info = self.env.step(action)
        return *rest, {**info, "metrics": {"weight": self.weight}}


def weighing(weight):
    env = Weighing(gym.make("CartPole-v1"))
    env.weight = float(weight)
    return env


@pytest.mark.parametrize("acting", ["local", "central"])
def test_actors_take_the_values_in_turn_and_evaluation_has_the_plain_one(acting):
    run = experiment(options={"g": 5.0}, each={"g": [10.0, 2.0]}, acting=acting)
    runtime = run.launch()
    try:
        actors = [runtime.objects[f"actor/{number}"] for number in range(3)]
        assert [gravities(actor.environments) for actor in actors] == [[10.0] * 2, [2.0] * 2, [10.0] * 2]
        assert runtime.objects["evaluator"].options == {"g": 5.0}
    finally:
        runtime.close()
    assert experiment(each={"g": [10.0, 2.0]}).options == {"g": 10.0}, "without a plain one, the first"


def test_they_are_written_and_read_again(tmp_path, capsys):
    command = ["train", "a2c", "Pendulum-v1", "--steps", "200", "--actors", "2", "--envs", "2", "--backend", "numpy"]
    command += ["--actor-option", "g=10,2.5", "--hidden", "8", "--evaluations", "1", "--evaluation-episodes", "1"]
    assert main([*command, "--out", str(tmp_path / "run")]) == 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["actor_options"] == {"g": [10, 2.5]} and config["options"] == {"g": 10}
    assert json.loads((tmp_path / "run" / "policy" / "policy.json").read_text())["options"] == {"g": 10}
    assert gravities(Experiment.from_config(config).parts.environments(1)) == [2.5, 2.5]
    assert main(["resume", str(tmp_path / "run"), "--steps", "260"]) == 0
    config["actor_options"]["g"] = [10, 3]
    (tmp_path / "run" / "config.json").write_text(json.dumps({**config, "steps": 400}))
    capsys.readouterr()
    assert main(["resume", str(tmp_path / "run")]) == 2
    assert "made with actor_options" in capsys.readouterr().err


def test_processes_have_them_too(tmp_path):
    settings = {**SMALL, "steps": 2_000, "actors": 2, "runtime": "process", "evaluations": 0, "display": False}
    run = cavalcade.train("a2c", weighing, out=tmp_path / "run", actor_options={"weight": [1, 3]}, **settings)
    means = [row["env/weight"] for row in run.rows() if "env/weight" in row]
    assert any(1.0 < mean < 3.0 for mean in means), means


@pytest.mark.parametrize(
    "each, says",
    [
        ({"g": [1, 2, 3, 4]}, "--actor-option g has 4 values for --actors 3; actor i gets value i, so give at most 3"),
        ({"g": []}, "--actor-option g needs a list of values"),
        ({"g": 3.0}, "--actor-option g needs a list of values, one for each actor or fewer, but it is 3.0"),
        ({"gee": [1, 2]}, "does not take these options"),
    ],
)
def test_what_would_leave_somebody_out_is_refused(each, says):
    with pytest.raises(UserError, match=says):
        experiment(each=each)


def test_one_actor_has_one_value():
    assert experiment(actors=1, each={"g": [4.0]}).options == {"g": 4.0}
    with pytest.raises(UserError, match=r"2 values for --actors 1.* at most 1 for 1 actor, or more --actors"):
        experiment(actors=1, each={"g": [4.0, 5.0]})


def test_spaces_have_to_be_equal(tmp_path, capsys):
    command = ["train", "ppo", "cavalcade/MaskedBandit-v0", "--actors", "2", "--actor-option", "arms=4,5"]
    assert main([*command, "--out", str(tmp_path / "run")]) == 2
    sentence = "With --actor-option arms=5 cavalcade/MaskedBandit-v0 has other spaces; all actors need equal ones."
    assert sentence in capsys.readouterr().err and not (tmp_path / "run").exists()
    experiment(each={"max_episode_steps": [50, 100]})  # a time limit is no space


def test_the_words_of_a_command_line():
    assert actor_options(["a=1,x,true", "b=[[1, 2], 3]"]) == {"a": [1, "x", True], "b": [[1, 2], 3]}
    with pytest.raises(UserError, match="--actor-option takes name=value,value"):
        actor_options(["g"])


def test_one_actor_that_needs_single_copies_has_them_for_all():
    def singly(**each):
        run = Experiment.create("ppo", "CartPole-v1", Settings(actors=2, envs=64), {}, actor_options=each)
        return run.copies.environment == "CartPole-v1"

    assert not singly(sutton_barto_reward=[False, True])
    assert singly(max_episode_steps=[500, -1]), "the vector form cannot be without a time limit"
