"""`cavalcade check` says what is wrong with an environment, each thing in a sentence, whatever the environment does."""

import json
import re
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import cavalcade
from cavalcade.__main__ import main
from cavalcade.errors import UserError
from cavalcade.specs import MASK

SPACE = spaces.Box(-1.0, 1.0, (2,), np.float32)


class Base(gym.Env):
    """A good environment: random walks of eight to twelve steps."""

    observation_space, action_space = SPACE, spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.length = 0, int(self.np_random.integers(8, 13))
        return self.see(), {}

    def step(self, action):
        self.steps += 1
        return self.see(), float(np.mean(action)), self.steps == self.length, False, self.tell()

    def see(self):
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def tell(self):
        return {}


class Floats(Base):
    observation_space = spaces.Box(0, 255, (2,), np.uint8)


class NotANumber(Base):
    def see(self):
        return np.full(2, np.nan, np.float32) if self.steps == 5 else super().see()


class Four(Base):
    def step(self, action):
        return self.see(), 0.0, False, {}


class Seedless(Base):
    def reset(self):
        return np.zeros(2), {}


class Unseeded(Base):
    def see(self):
        return np.random.default_rng().uniform(-1, 1, 2).astype(np.float32)


class Deaf(Base):
    episode = 0

    def reset(self, *, seed=None, options=None):
        result, self.episode = super().reset(seed=1), self.episode + 1
        self.length = 8 + self.episode % 3
        return result


class Endless(Base):
    def step(self, action):
        return (*super().step(action)[:2], False, False, {})


class Limited(Base):
    def step(self, action):
        return (*super().step(action)[:2], self.steps >= 10, False, {})


class Both(Base):
    def step(self, action):
        obs, reward, over, _, info = super().step(action)
        return obs, reward, over, over, info


class Still(Base):
    def see(self):
        return np.zeros(2, np.float32)


class Unpaid(Base):
    def step(self, action):
        obs, _, *rest = super().step(action)
        return obs, 0.0, *rest


class Beyond(Base):
    def see(self):
        return super().see() * 3


class Large(Base):
    observation_space = spaces.Box(-np.inf, np.inf, (2,))

    def see(self):
        return super().see() * 5000


class Unbounded(Base):
    action_space = spaces.Box(-np.inf, np.inf, (1,))


class Wide(Base):
    action_space = spaces.Box(0.0, 400.0, (1,))


class Words(Base):
    observation_space = spaces.Text(5)


class Stuck(Base):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0], {MASK: np.ones(2, np.int8)}

    def tell(self):
        return {MASK: np.zeros(2, np.int8)}


class Short(Stuck):
    def tell(self):
        return {MASK: np.ones(3, np.int8)}


class Raises(Base):
    def step(self, action):
        raise RuntimeError("the robot is off")  # this line is to be named


class RaisesEarly(Base):
    def __init__(self):
        raise OSError("no port")


class Telling(Base):
    def tell(self):
        return {"metrics": {"height": 1.0}}


FOUND = {
    Base: ("ok", "seeds", "A seed repeats its episodes, and another gives others."),
    Floats: ("error", "start", "float32) at [0] in the observation in environment 0, episode 0, step 0, but its space"),
    NotANumber: ("error", "steps", "gave nan in the observation in environment 0, episode 0, step 5"),
    Four: ("error", "steps", "returned 4 values in environment 0, episode 0, step 1"),
    Seedless: ("error", "start", "The reset() of 'Seedless' takes no 'seed'"),
    Unseeded: ("warning", "seeds", "The same seed and actions gave another episode"),
    Deaf: ("ok", "seeds", "All seeds give the same episodes"),
    Endless: ("warning", "endings", "No episode ended in 150 steps"),
    Limited: ("warning", "endings", "episodes were terminated after 10 steps; if that is a limit of time"),
    Both: ("warning", "endings", "terminated and truncated at once"),
    Still: ("warning", "observations", "No observation differed from the first"),
    Unpaid: ("warning", "rewards", "Every reward was 0 in 150 random steps"),
    Beyond: ("warning", "observations", "but its space declares float32 from -1 to 1; correct the bounds"),
    Large: ("warning", "observations", "so use --normalise-observations"),
    Unbounded: ("warning", "actions", "Some actions have no bounds"),
    Wide: ("warning", "actions", "Actions go from 0 to 400"),
    Words: ("error", "start", "The observation space Text is not supported"),
    Stuck: ("error", "steps", "gave no legal action in its 'action_mask' in environment 0, episode 0, step 1"),
    Short: ("error", "steps", "has 3 entries for 2 choices in environment 0, episode 0, step 1"),
    Raises: ("error", "steps", "RuntimeError: the robot is off ("),
    RaisesEarly: ("error", "start", "OSError: no port ("),
    Telling: ("ok", "metrics", "Numbers in its infos are recorded: env/height."),
}


@pytest.mark.parametrize("environment", FOUND, ids=lambda environment: environment.__name__)
def test_what_is_found(environment):
    findings = cavalcade.check(environment, steps=150)
    level, about, text = FOUND[environment]
    assert [f for f in findings if (f.level, f.about) == (level, about) and text in f.sentence], findings
    worst = {f.level for f in findings if f.level != "ok"}
    assert worst == ({level} if level != "ok" else set()), findings


def test_the_line_of_the_user_is_named():
    [found] = [finding for finding in cavalcade.check(Raises) if finding.level == "error"]
    line = next(n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "to be named" in text)
    cause = rf"RuntimeError: the robot is off \(\S*test_checking.py, line {line}\)\."
    assert re.fullmatch(rf"The environment 'Raises' failed in step 1 of an episode: {cause}", found.sentence)


def test_how_it_would_be_resumed_and_how_fast_it_is():
    said = {f.about: f.sentence for f in cavalcade.check(Base, steps=20)}
    assert said["resume"] == "A resumed run replays its episodes exactly." and "steps/s" in said["speed"]
    assert said["spaces"] == "Observations: float32 (2,); actions: discrete of 2."
    vector = gym.vector.SyncVectorEnv([Base] * 3)
    assert {f.about: f.sentence for f in cavalcade.check(vector, steps=30)}["resume"].startswith("A resumed run begins")
    vector.reset()  # still the user's


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken_of_tests.py").write_text("import tests.runs.test_checking as t\n\nmake = t.Floats\n")
    assert main(["check", "CartPole-v1", "--steps", "60"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == ["ok", "spaces"] and any(line.startswith("ok       seeds") for line in lines)
    assert main(["check", "broken_of_tests:make", "--json"]) == 1
    [found] = json.loads(capsys.readouterr().out)
    assert (found["level"], found["about"]) == ("error", "start") and "but its space declares uint8" in found[
        "sentence"
    ]
    assert main(["check", "CartPole-v1", "--option", "length=3"]) == 2  # not the environment's fault
    assert main(["check", "CartPol-v1"]) == 2 and "Did you mean 'CartPole-v1'" in capsys.readouterr().err
    assert main(["check", "cavalcade/Corridor-v0", "--steps", "0"]) == 2
    with pytest.raises(UserError, match="at least 1"):
        cavalcade.check("CartPole-v1", steps=0)


def test_a_module_that_fails_is_one_sentence(tmp_path):
    (tmp_path / "fails.py").write_text("x = 1\ny = x.z\n")
    done = subprocess.run(
        [sys.executable, "-m", "cavalcade", "check", "fails:make"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 1 and done.stderr == "", "an error of the environment, as any other that is found"
    assert "AttributeError: 'int' object has no attribute 'z' (fails.py, line 2)." in done.stdout
