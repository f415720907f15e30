"""A policy is judged where it was trained, or the result says where else; greedily, or as it acts in training."""

import json
import re
import shutil
import sys

import numpy as np
import pytest

import cavalcade
from cavalcade.__main__ import main
from cavalcade.errors import UserError
from cavalcade.runs import progress

SMALL = {"backend": "numpy", "envs": 4, "hidden": (8,), "rows": 5, "evaluation_episodes": 3, "display": False}
PPO = {**SMALL, "steps": 200, "unroll": 8, "epochs": 1, "evaluations": 1}

COURSE = """
import gymnasium as gym


class Tenth(gym.RewardWrapper):
    def reward(self, reward):
        return reward / 10


def short(limit=30, render_mode=None):
    return Tenth(gym.wrappers.TimeLimit(gym.make("CartPole-v1", render_mode=render_mode).unwrapped, limit))
"""


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A module of the user's with a function that makes an environment: episodes of 30 steps that pay a tenth each."""
    folder = tmp_path_factory.mktemp("course")
    (folder / "course.py").write_text(COURSE)
    sys.path.insert(0, str(folder))
    import course

    yield course
    sys.path.remove(str(folder))
    del sys.modules["course"]


@pytest.fixture(scope="module")
def by_function(course, tmp_path_factory):
    return cavalcade.train("ppo", course.short, out=tmp_path_factory.mktemp("runs") / "function", **PPO)


@pytest.fixture(scope="module")
def by_name(course, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "name"
    return cavalcade.train("ppo", "course:short", out=out, options={"limit": 20}, **PPO)


# --- which environment --------------------------------------------------------------------------------------------


def test_what_only_code_can_make_has_to_be_given_again(by_function, course, tmp_path, capsys):
    path, said = by_function.path, r"made with an environment object, <CartPole-v1>; name a function .*--environment"
    for refused in (cavalcade.evaluate, cavalcade.play, cavalcade.resume):
        with pytest.raises(UserError, match=said):
            refused(path)
    for command in ("evaluate", "play", "resume"):
        assert main([command, str(path)]) == 2 and re.search(said, capsys.readouterr().err)
    assert not (path / "episode.mp4").exists()
    result = cavalcade.evaluate(path, episodes=3, environment=course.short)
    assert result["max"] <= 3.0 and result["environment"] == result["trained_on"] == "<CartPole-v1>"
    film, total = cavalcade.play(path, tmp_path / "film.gif", environment=course.short)
    assert film.exists() and total <= 3.0


def test_the_command_line_takes_a_function_by_its_name(by_function, tmp_path, capsys):
    path, named = str(by_function.path), ["--environment", "course:short"]
    assert main(["evaluate", path, "--episodes", "3", *named]) == 0
    said = re.search(
        r"max ([\d.]+) over 3 episodes on course:short, trained on <CartPole-v1>\n", capsys.readouterr().out
    )
    assert float(said[1]) <= 3.0
    assert main(["play", path, "--out", str(tmp_path / "film.gif"), *named]) == 0
    assert float(re.match(r"return ([\d.]+), film", capsys.readouterr().out)[1]) <= 3.0


def test_a_run_that_was_given_a_name_needs_no_other(by_name, tmp_path, capsys):
    assert by_name.config["environment"] == "course:short"
    assert cavalcade.evaluate(by_name.path, episodes=3)["max"] <= 2.0, "with the options of training too"
    assert main(["evaluate", str(by_name.path), "--episodes", "3"]) == 0
    assert capsys.readouterr().out.endswith("over 3 episodes\n")
    copy = shutil.copytree(by_name.path, tmp_path / "copy")
    assert cavalcade.resume(copy, steps=240, display=False).rows()[-1]["step"] == 240


def test_another_environment_is_said_to_be_another(by_name, capsys):
    path, three = str(by_name.path), ["--episodes", "3"]
    assert main(["evaluate", path, "--environment", "CartPole-v1", *three]) == 0, "without the option `limit` of ours"
    assert capsys.readouterr().out.endswith("over 3 episodes on CartPole-v1, trained on course:short\n")
    assert main(["evaluate", path, "--option", "limit=7", *three]) == 0
    said = re.search(r"max ([\d.]+) over 3 episodes on course:short limit=7, trained on", capsys.readouterr().out)
    assert float(said[1]) <= 0.7
    result = cavalcade.evaluate(by_name.path, 3, environment=lambda limit: __import__("gymnasium").make("CartPole-v1"))
    assert (result["environment"], result["trained_on"]) == ("<CartPole-v1>", "course:short")


def test_a_time_limit_among_the_options_holds_for_judging_too(tmp_path):
    given = {**PPO, "options": {"max_episode_steps": 9}}
    run = cavalcade.train("ppo", "CartPole-v1", out=tmp_path / "run", **given)
    assert max(row["return"] for row in run.rows() if "return" in row) <= 9
    assert cavalcade.evaluate(run.path, episodes=3)["max"] <= 9
    assert cavalcade.play(run.path, tmp_path / "film.gif")[1] <= 9


def test_a_policy_that_does_not_say_what_it_was_trained_on_wants_to_be_told(by_name, tmp_path):
    """Those of earlier builds."""
    about = json.loads((by_name.policy / "policy.json").read_text())
    del about["environment"]
    (tmp_path / "policy.json").write_text(json.dumps(about))
    (tmp_path / "policy.safetensors").write_bytes((by_name.policy / "policy.safetensors").read_bytes())
    with pytest.raises(UserError, match="environment object, <course:short>"):
        cavalcade.evaluate(tmp_path)
    assert cavalcade.evaluate(tmp_path, episodes=1, environment="course:short")["max"] <= 2.0


# --- greedy or sampled --------------------------------------------------------------------------------------------


def test_sampled_episodes_repeat_themselves_and_are_not_the_greedy_ones(by_name, capsys):
    sampled, again = (cavalcade.evaluate(by_name.path, episodes=5, sampled=True, seed=2) for _ in range(2))
    greedy = cavalcade.evaluate(by_name.path, episodes=5, seed=2)
    assert sampled == again and sampled["sampled"] is True and greedy["sampled"] is False
    assert sampled["mean"] != greedy["mean"]
    assert main(["evaluate", str(by_name.path), "--episodes", "5", "--seed", "2", "--sampled"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"mean {sampled['mean']:.2f} ") and said.endswith("over 5 sampled episodes\n")


def test_a_film_may_be_sampled_too(by_name, tmp_path, capsys):
    films = [cavalcade.play(by_name.path, tmp_path / "film.gif", sampled=True, seed=1)[1] for _ in range(2)]
    assert films[0] == films[1]
    assert main(["play", str(by_name.path), "--out", str(tmp_path / "film.gif"), "--seed", "1", "--sampled"]) == 0
    assert float(re.match(r"return ([\d.]+), film", capsys.readouterr().out)[1]) == pytest.approx(films[0], abs=0.05)


def test_dqn_samples_with_its_last_epsilon(tmp_path):
    settings = {**SMALL, "steps": 300, "replay_start": 100, "evaluations": 0, "epsilon_end": 1.0}
    run = cavalcade.train("dqn", "cavalcade/MaskedBandit-v0", out=tmp_path / "run", options={"arms": 4}, **settings)
    policy = cavalcade.load_policy(run.path)
    from cavalcade.acting.evaluation import noise_of

    begun = np.ones(3, np.bool_)
    assert noise_of(policy, 3, 0, False)(begun) is None
    draw = noise_of(policy, 3, 0, True)
    assert all(draw(begun)["explore"].all() for _ in range(5)), "an epsilon of one"


def test_the_best_policy_may_be_chosen_by_sampled_episodes(tmp_path, capsys):
    settings = {**PPO, "evaluations": 3, "evaluation_sampled": True, "seed": 3, "display": None}
    run = cavalcade.train("ppo", "CartPole-v1", out=tmp_path / "run", **settings)
    about = json.loads((run.policy / "policy.json").read_text())
    assert about["evaluation_sampled"] is True
    assert json.loads(run.report_file.read_text())["evaluation_sampled"] is True
    assert cavalcade.evaluate(run.path, episodes=3, seed=3, sampled=True)["mean"] == about["evaluation"]
    assert re.search(r"best evaluation [\d.]+ \(sampled\)", capsys.readouterr().out)


# --- progress -----------------------------------------------------------------------------------------------------


def test_a_long_evaluation_says_how_far_it_is_and_leaves_the_output_clean(by_name, monkeypatch, capsys):
    monkeypatch.setattr(progress, "PRINTED_EVERY", 0.0)
    assert main(["evaluate", str(by_name.path), "--episodes", "3", "--json"]) == 0
    said = capsys.readouterr()
    result = json.loads(said.out)
    assert result["episodes"] == 3 == len(result["returns"]) and sum(result["returns"]) / 3 == result["mean"]
    lines = [re.fullmatch(r"(\d) of 3 episodes, (\d+) steps", line) for line in said.err.splitlines()]
    assert [int(line[2]) for line in lines] == list(range(3, 3 * len(lines) + 1, 3)) and lines[-1][1] == "3"


def test_on_a_terminal_one_line_is_rewritten_and_goes(by_name, monkeypatch, capsys):
    monkeypatch.setattr(progress, "REWRITTEN_EVERY", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(["evaluate", str(by_name.path), "--episodes", "3"]) == 0
    err = capsys.readouterr().err
    assert "\n" not in err and err.startswith("\r\x1b[K0 of 3 episodes, 3 steps") and err.endswith("\r\x1b[K")


def test_what_is_over_soon_says_nothing(by_name, capsys):
    assert main(["evaluate", str(by_name.path), "--episodes", "1"]) == 0
    assert capsys.readouterr().err == ""
    calls: list[tuple[int, int]] = []
    cavalcade.evaluate(by_name.path, episodes=2, progress=lambda *told: calls.append(told))
    assert calls[-1][0] == 2 and np.all(np.diff([steps for _, steps in calls]) == 2)
