"""One policy, wherever it acts: in training, under the evaluator, and in a process that has NumPy alone."""

import dataclasses
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tokenize
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import cavalcade
from cavalcade import envs, tree
from cavalcade.acting.greedy import Greedy
from cavalcade.acting.policy import Policy
from cavalcade.backends.numpy_backend import acting as numpy_namespace
from cavalcade.errors import UserError
from cavalcade.experiment.experiment import Experiment, Settings
from cavalcade.records.folder import Run
from cavalcade.runs.session import Session
from cavalcade.specs import MASK

ROOT = Path(__file__).parents[2]
COUNT, STEPS = 8, 125  # environments, steps: 1,000 observations


class Camera(gym.Env):
    """A bright square on a dark picture; the action that names its corner pays."""

    observation_space = gym.spaces.Box(0, 255, (36, 36, 1), np.uint8)
    action_space = gym.spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.look(), {}

    def step(self, action):
        self.steps += 1
        return self.look(), float(action == self.corner), self.steps == 10, False, {}

    def look(self):
        self.corner = int(self.np_random.integers(4))
        picture = self.np_random.integers(0, 50, (36, 36, 1)).astype(np.uint8)
        row, column = 18 * (self.corner // 2), 18 * (self.corner % 2)
        picture[row : row + 18, column : column + 18] += 200
        return picture


@dataclasses.dataclass(frozen=True)
class Case:
    system: str
    environment: object
    settings: dict
    acts_in: str = "numpy"
    options: dict = dataclasses.field(default_factory=dict)


PPO = {"unroll": 16, "epochs": 2, "learning_rate": 0.001, "normalise_rewards": False}
INFO = {"where": "info"}
CASES = {
    "dqn": Case("dqn", "CartPole-v1", {"replay_start": 200, "learning_rate": 0.01}),
    "ppo": Case("ppo", "CartPole-v1", PPO),
    "normalised": Case("ppo", "CartPole-v1", {**PPO, "normalise_observations": True, "normalise_rewards": True}),
    "continuous": Case("ppo", "Pendulum-v1", {**PPO, "normalise_observations": True}),
    "recurrent": Case("ppo", "cavalcade/CartPoleNoVelocity-v1", {**PPO, "unroll": 8, "memory": 16}),
    "masked ppo": Case("ppo", "cavalcade/MaskedBandit-v0", PPO, options=INFO),
    "masked dqn": Case("dqn", "cavalcade/MaskedBandit-v0", {"replay_start": 200, "n_step": 1}),
    "on torch": Case("ppo", "CartPole-v1", {**PPO, "acts_in": "backend"}, acts_in="torch"),
    "image": Case("ppo", Camera, {**PPO, "unroll": 8, "epochs": 1, "envs": 2, "threads": 1}, acts_in="torch"),
}


@dataclasses.dataclass
class Trained:
    session: Session
    run: Run
    observations: tree.Tree  # [STEPS, COUNT, ...]
    first: np.ndarray  # [STEPS, COUNT]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A short run of a case with its workers still there, and 1,000 observations that its policy meets."""
    made: dict[str, Trained] = {}

    def get(name: str) -> Trained:
        if name not in made:
            made[name] = _train(CASES[name], tmp_path_factory.mktemp("policy") / "run")
        return made[name]

    return get


def _train(case: Case, path: Path) -> Trained:
    fields = {field.name for field in dataclasses.fields(Settings)}
    brief = {"steps": 96 if case.environment is Camera else 1_000, "evaluations": 1, "evaluation_episodes": 2}
    settings = Settings(**brief, seed=4, **{k: v for k, v in case.settings.items() if k in fields})
    rest = {k: v for k, v in case.settings.items() if k not in fields}
    experiment = Experiment.create(case.system, case.environment, settings, rest, case.options)
    session = Session(experiment, Run.create(path, experiment.config()), display=False)
    session.drive()
    actor = session.runtime.objects["actor/0"]
    if newer := session.runtime.objects["learner"].latest(actor.policy.version):  # as before each unroll
        actor.policy.load(newer[1], newer[2], newer[0])
    return Trained(session, session.run, *_meet(actor.policy, case))


def _meet(policy: Policy, case: Case) -> tuple[tree.Tree, np.ndarray]:
    pool, rng = envs.make(case.environment, COUNT, 99, **case.options), np.random.default_rng(0)
    obs, first, carry = pool.reset(), np.ones(COUNT, np.bool_), policy.model.carry(COUNT)
    seen = []
    for _ in range(STEPS):
        seen.append({"obs": obs, "first": first})
        noise = policy.algorithm.noise(policy.model.spec, rng, COUNT, _clock())
        action, _, carry = policy.act(obs, carry, first, noise)
        step = pool.step(action)
        obs, first = step.observation, step.first
    pool.close()
    met = tree.map(lambda *rows: np.stack(rows), *seen)
    return met["obs"], met["first"]


def _clock():
    from cavalcade.algorithms.contract import Clock

    return Clock(5_000)


def acts_by(policy: Policy) -> str:
    return "q" if type(policy.algorithm).__name__ == "DQN" else "policy"


def acted(policy: Policy, observations: tree.Tree, first: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Greedy actions, and the network's outputs behind them, with the memory carried from step to step."""
    backend, head, carry = policy.backend, acts_by(policy), policy.model.carry(COUNT)
    actions, outputs = [], []
    for t in range(STEPS):
        obs = tree.take(observations, t)
        if backend:
            params = backend.views(backend.vector(policy.vector), policy.layout)
            given = backend.from_numpy({"s": policy.statistics, "o": obs, "c": carry, "f": first[t]})
            output, _ = policy.model.apply(backend.xp, params, given["s"], given["o"], given["c"], given["f"], (head,))
            outputs.append(backend.to_numpy(output[head]))
        else:
            output, _ = policy.model.apply(
                numpy_namespace, policy.params, policy.statistics, obs, carry, first[t], (head,)
            )
            outputs.append(output[head])
        action, _, carry = policy.act(obs, carry, first[t], None)
        actions.append(action)
    return np.stack(actions), np.stack(outputs)


FRESH = """
import sys
import numpy as np
from safetensors.numpy import load_file, save_file
from cavalcade import load_policy, tree
from cavalcade.backends.numpy_backend import acting
folder, given, answer = sys.argv[1:]
arrays = load_file(given)
first = arrays.pop("first")
observations = tree.from_named({name.removeprefix("obs").removeprefix("/"): array for name, array in arrays.items()})
policy = load_policy(folder)
carry, actions, outputs = policy.model.carry(first.shape[1]), [], []
for t in range(len(first)):
    obs, head = tree.take(observations, t), "q" if type(policy.algorithm).__name__ == "DQN" else "policy"
    output, _ = policy.model.apply(acting, policy.params, policy.statistics, obs, carry, first[t], (head,))
    action, _, carry = policy.act(obs, carry, first[t], None)
    actions.append(action)
    outputs.append(output[head])
save_file({"actions": np.stack(actions), "outputs": np.stack(outputs)}, answer)
frameworks = {"torch", "jax", "tensorflow", "autograd", "ray", "numba"} & set(sys.modules)
assert not frameworks, frameworks
assert policy.acts_in == "numpy"
"""


def acted_elsewhere(run: Run, observations: tree.Tree, first: np.ndarray, tmp_path: Path):
    """What a fresh process does that has the policy folder, copied away from its run, and no framework."""
    shutil.copytree(run.policy, tmp_path / "copy")
    arrays = {f"obs/{name}" if name else "obs": np.ascontiguousarray(a) for name, a in tree.named(observations)}
    save_file({**arrays, "first": first}, tmp_path / "given.safetensors")
    arguments = [tmp_path / "copy", tmp_path / "given.safetensors", tmp_path / "answer.safetensors"]
    command = [sys.executable, "-c", FRESH, *map(str, arguments)]
    one_thread = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=one_thread, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answer = load_file(arguments[-1])
    return answer["actions"], answer["outputs"]


@pytest.mark.parametrize("name", CASES)
def test_the_training_actor_the_evaluator_and_a_fresh_process_agree(name, trained, tmp_path):
    made = trained(name)
    workers = made.session.runtime.objects
    learner, actor, evaluator = (workers[worker] for worker in ("learner", "actor/0", "evaluator"))
    assert actor.policy.version == evaluator.policy.version == learner.version > 0
    assert actor.policy.acts_in == evaluator.policy.acts_in == CASES[name].acts_in
    there = acted_elsewhere(made.run, made.observations, made.first, tmp_path)
    for policy in (actor.policy, evaluator.policy):
        actions, outputs = acted(policy, made.observations, made.first)
        np.testing.assert_allclose(there[1], outputs, rtol=0, atol=1e-5)
        if actions.dtype.kind == "f":
            assert actions.shape == (STEPS, COUNT, 1)
            np.testing.assert_allclose(there[0], actions, rtol=0, atol=1e-5)
        else:
            np.testing.assert_array_equal(there[0], actions)
    assert there[1].std(axis=(0, 1)).max() > 1e-3  # a policy that does not look would prove nothing
    assert name in ("image", "recurrent") or len(np.unique(there[0])) > 1


@pytest.mark.parametrize("name", ["masked ppo", "masked dqn"])
def test_a_saved_policy_knows_what_is_legal(name, trained):
    made = trained(name)
    policy = cavalcade.load_policy(made.run.path)
    actions, _ = acted(policy, made.observations, made.first)
    assert np.take_along_axis(made.observations[MASK], actions[..., None], -1).all()
    illegal = tree.map(np.copy, made.observations)
    illegal[MASK] = np.zeros_like(illegal[MASK])
    illegal[MASK][..., 3] = 1
    assert (acted(policy, illegal, made.first)[0] == 3).all()


def test_normalisers_travel_with_the_policy(trained):
    made = trained("normalised")
    policy = cavalcade.load_policy(made.run.path)
    moments = policy.statistics["observation"]
    assert moments["count"] > 500 and moments["variance"].shape == (4,)
    assert (moments["variance"] != 1).all() and "reward" in policy.statistics
    _, outputs = acted(policy, made.observations, made.first)
    policy.statistics = policy.model.statistics()
    assert np.abs(acted(policy, made.observations, made.first)[1] - outputs).max() > 0.01


def test_memory_matters_and_is_dropped_where_an_episode_begins(trained):
    made = trained("recurrent")
    policy = cavalcade.load_policy(made.run.path)
    _, remembered = acted(policy, made.observations, made.first)
    _, forgetful = acted(policy, made.observations, np.ones_like(made.first))
    assert np.abs(remembered - forgetful)[~made.first].max() > 1e-3
    np.testing.assert_array_equal(remembered[made.first], forgetful[made.first])


@pytest.mark.parametrize("name", ["dqn", "continuous", "recurrent"])
def test_one_observation_at_a_time_gives_the_same_actions(name, trained):
    made = trained(name)
    policy = cavalcade.load_policy(made.run.policy)
    greedy, expected = Greedy(policy), acted(policy, made.observations, made.first)[0]
    for t in range(STEPS):
        if made.first[t, 0]:
            greedy.reset()
        np.testing.assert_allclose(greedy(made.observations[t, 0]), expected[t, 0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["dqn", "continuous", "recurrent", "masked ppo"])
def test_evaluating_again_gives_the_score_of_the_run(name, trained):
    made = trained(name)
    about = json.loads((made.run.policy / "policy.json").read_text())
    assert cavalcade.evaluate(made.run.path, episodes=2, seed=4)["mean"] == about["evaluation"]


# --- the folder -------------------------------------------------------------------------------------------------


def test_two_files_are_all_there_is(trained):
    for name in ("ppo", "normalised", "recurrent"):
        made = trained(name)
        assert sorted(os.listdir(made.run.policy)) == ["policy.json", "policy.safetensors"]
        about = json.loads((made.run.policy / "policy.json").read_text(), parse_constant=pytest.fail)
        assert about["format"] == 1 and about["algorithm"] == "ppo" and about["system"] == "ppo"
        arrays = load_file(made.run.policy / "policy.safetensors")
        learned = sum(array.size for path, array in arrays.items() if path.startswith("params/"))
        assert learned == made.session.policy.layout.size
        assert any(path.startswith("statistics/") for path in arrays) == (name == "normalised")


def test_nothing_in_the_package_can_unpickle():
    """Names in the code are looked at, words in comments and strings are not."""
    sources = sorted((ROOT / "cavalcade").rglob("*.py"))
    assert len(sources) > 30
    forbidden = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal", "allow_pickle", "eval", "exec"}
    forbidden |= {"torch.load", "torch.save", "np.load", "np.save", "numpy.load", "numpy.save", "np.savez"}
    for source in sources:
        used = _names(source.read_text())
        # a process is given its part, and the ids of environments, by the one that starts it, and nobody else
        if source.parent.name == "runtimes" or source.name == "carried.py":
            used -= {"cloudpickle"}
        assert not used & forbidden, (source, used & forbidden)


def _names(text: str) -> set[str]:
    """Every name, and every name with the one before its dot."""
    tokens = [t for t in tokenize.generate_tokens(io.StringIO(text).readline) if t.type in (tokenize.NAME, tokenize.OP)]
    words = [token.string for token in tokens]
    pairs = {f"{a}.{b}" for a, dot, b in zip(words, words[1:], words[2:]) if dot == "."}
    alone = {b for a, b in zip(["", *words], words) if a != "."}
    return alone | pairs | {word for word in words if "pickle" in word}


def test_the_search_for_pickles_finds_them():
    assert {"pickle", "torch.load", "allow_pickle"} <= _names("import pickle\nx = torch.load(y, allow_pickle=True)\n")
    assert "eval" not in _names("module.eval()  # eval\n'eval'\n")


def cavalcade_says(*arguments) -> tuple[int, str, str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    given = [sys.executable, "-m", "cavalcade", *map(str, arguments)]
    done = subprocess.run(given, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def copied(trained, tmp_path) -> Path:
    """A policy folder to damage."""
    return shutil.copytree(trained("ppo").run.policy, tmp_path / "policy")


def cut(file: str, share: float):
    def damage(folder: Path) -> None:
        data = (folder / file).read_bytes()
        (folder / file).write_bytes(data[: int(len(data) * share)])

    return damage


def text(content: str):
    return lambda folder: (folder / "policy.json").write_text(content)


def changed(**changes):
    def damage(folder: Path) -> None:
        about = json.loads((folder / "policy.json").read_text())
        about = {key: value for key, value in {**about, **changes}.items() if value is not None}
        (folder / "policy.json").write_text(json.dumps(about))

    return damage


def missing(file: str):
    return lambda folder: (folder / file).unlink()


DAMAGES = {
    "half the arrays": (cut("policy.safetensors", 0.5), "damaged"),
    "no arrays": (cut("policy.safetensors", 0.0), "damaged"),
    "half the json": (cut("policy.json", 0.5), "damaged"),
    "not an object": (text("[1, 2]"), "damaged"),
    "not text": (lambda folder: (folder / "policy.json").write_bytes(b"\xff\xfe\x00"), "damaged"),
    "an empty object": (text("{}"), "format None; this version reads format 1"),
    "another format": (changed(format=2), "format 2; this version reads format 1"),
    "another algorithm": (changed(algorithm="muzero"), "'muzero', which this version does not have"),
    "no spaces": (changed(spec=None), "damaged"),
    "an unknown setting": (changed(settings={"warp": 9}), "damaged"),
    "no arrays file": (missing("policy.safetensors"), "There is no policy in"),
    "no json": (missing("policy.json"), "There is no policy in"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_policy_is_one_sentence(name, copied):
    damage, said = DAMAGES[name]
    damage(copied)
    with pytest.raises(UserError, match=said) as caught:
        cavalcade.load_policy(copied)
    assert str(copied) in str(caught.value) and "\n" not in str(caught.value)


def test_arrays_of_another_network_are_refused(trained, copied):
    shutil.copy(trained("continuous").run.policy / "policy.safetensors", copied / "policy.safetensors")
    with pytest.raises(UserError, match="damaged"):
        cavalcade.load_policy(copied)


def test_the_command_line_says_it_in_one_line(trained, copied):
    cut("policy.safetensors", 0.5)(copied)
    for arguments, said in (
        ([copied], "is damaged"),
        ([copied.parent / "absent"], "There is no policy in"),
        ([trained("ppo").run.path, "--environment", "Acrobot-v1"], "trained on CartPole-v1.*Acrobot-v1 has"),
        ([trained("ppo").run.path, "--environment", "CartPol-v1"], "Did you mean 'CartPole-v1'"),
    ):
        code, out, err = cavalcade_says("evaluate", *arguments)
        assert (code, out) == (2, "") and err.startswith("error: ") and err.count("\n") == 1, err
        assert re.search(said, err), err


def test_another_environment_with_the_same_spaces_will_do(trained):
    made = trained("recurrent")
    result = cavalcade.evaluate(made.run.path, episodes=2, environment="cavalcade/CartPoleNoVelocity-v1")
    assert result["episodes"] == 2
    with pytest.raises(UserError, match="was trained on cavalcade/MaskedBandit-v0"):
        cavalcade.evaluate(trained("masked ppo").run.path, environment=lambda where: gym.make("CartPole-v1"))
