"""What can be done with a trained policy: load it, judge it, film it. None of it needs a deep-learning framework."""

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from cavalcade import backends, envs
from cavalcade.disk import write_atomically
from cavalcade.errors import UserError
from cavalcade.evaluation import STREAM, play_episodes, summary
from cavalcade.experiment import ALGORITHMS, adapt
from cavalcade.policy import Policy, check_same_spaces, read
from cavalcade.runs import write_failure
from cavalcade.specs import EnvSpec
from cavalcade.tree import Layout, map


def load_policy(path: str | Path, network: Any = None) -> Policy:
    """The policy of a run folder, or of a policy folder. `network` is the user's module it was trained with, if any."""
    folder = Path(path)
    folder = folder / "policy" if (folder / "policy").is_dir() else folder
    about, arrays = read(folder)
    try:
        return _restored(folder, about, arrays, network)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"The policy in {folder} is damaged ({error!r}); restore it from a copy.") from error


def _restored(folder: Path, about: dict, arrays: dict, network: Any) -> Policy:
    if about["algorithm"] not in ALGORITHMS:
        raise UserError(f"The policy in {folder} was made by '{about['algorithm']}', which this version does not have.")
    if about["custom_network"] and network is None:
        raise UserError(
            "This policy uses a network of your own; load it from Python with load_policy(path, network=...)."
        )
    if network is not None and not about["custom_network"]:
        raise UserError("This policy was made without a network of your own; load it without network=... .")
    settings = {k: tuple(v) if isinstance(v, list) else v for k, v in about["settings"].items()}
    algorithm = ALGORITHMS[about["algorithm"]](**settings)
    spec = EnvSpec.from_json(about["spec"])
    model = algorithm.model(spec, adapt(network, about["backend"])(spec) if network is not None else None)
    if Layout.of(arrays["params"]) != Layout.of(model.init(np.random.default_rng(0))):
        raise ValueError("its arrays are those of another network")
    backend = backends.load(model.backend) if model.backend else None
    policy = Policy(algorithm, model, arrays["params"], arrays.get("statistics", {}), backend)
    policy.version = about["version"]
    policy.options = about["options"]
    return policy


def evaluate(
    path: str | Path, episodes: int = 100, seed: int = 0, environment: Any = None, network: Any = None
) -> dict[str, float]:
    """Mean, median, spread and a 95 % interval over `episodes` greedy episodes on fixed seeds."""
    policy = load_policy(path, network)
    given = environment if environment is not None else policy.model.spec.environment
    played = play_episodes(policy, given, episodes, seed, policy.options)
    return summary([total for total, _ in played], seed)


def play(path: str | Path, out: str | Path | None = None, seed: int = 0, max_steps: int = 10_000) -> tuple[Path, float]:
    """Film one greedy episode; the film's path and the episode's return."""
    # drawing needs no screen, and says nothing about there being none
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())
    policy = load_policy(path)
    pool = envs.make(policy.model.spec.environment, 1, seed, STREAM, render=True, **policy.options)
    try:
        check_same_spaces(policy.model.spec, pool.spec)
        obs, first, carry = pool.reset(), np.ones(1, np.bool_), policy.model.carry(1)
        frames, total = [pool.render()], 0.0
        while len(frames) <= max_steps:
            action, _, carry = policy.act(obs, carry, first, None)
            step = pool.step(action)
            obs, first, total = step.observation, step.first, total + float(step.reward[0])
            if step.episodes:
                break
            frames.append(pool.render())
    finally:
        pool.close()
    if frames[0] is None:
        raise UserError(f"{policy.model.spec.environment} gives no pictures; choose one with render_mode 'rgb_array'.")
    folder = Path(path)
    run = folder.parent if (folder / "policy.json").exists() else folder
    path = Path(out) if out else run / "episode.mp4"
    write_video(path, [frame for frame in frames if frame is not None])
    return path, total


def write_video(path: Path, frames: list[np.ndarray], rate: int = 30) -> None:
    if path.suffix not in (".mp4", ".gif"):
        raise UserError(f"{path} cannot be a film; choose a name that ends in .mp4 or .gif.")
    try:
        import imageio.v2 as imageio
    except ImportError as error:
        raise UserError("Writing a film needs imageio; install it with pip install 'cavalcade[record]'.") from error
    even: list[Any] = [f[: f.shape[0] // 2 * 2, : f.shape[1] // 2 * 2] for f in frames]  # codecs want even sizes
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".gif":
            write_atomically(path, imageio.mimwrite("<bytes>", even, format="GIF", fps=rate))
        else:
            imageio.mimwrite(path, even, fps=rate, macro_block_size=2)
            film: Any
            with imageio.get_reader(path) as film:  # ffmpeg does not tell when the disk is full
                film.get_data(0)
    except OSError as error:
        raise UserError(write_failure(path, error)) from error
    except (ValueError, ImportError, IndexError, RuntimeError) as error:
        raise UserError(f"{path} could not be written ({error}); is the disk full?") from error


class Greedy:
    """One observation in, one action out, with the policy's memory in between; `reset()` between episodes."""

    def __init__(self, policy: Policy):
        self.policy = policy
        self.reset()

    def reset(self) -> None:
        self.carry, self.first = self.policy.model.carry(1), np.ones(1, np.bool_)

    def __call__(self, observation: Any) -> Any:
        batch = map(lambda leaf: np.asarray(leaf)[None], observation)
        action, _, self.carry = self.policy.act(batch, self.carry, self.first, None)
        self.first = np.zeros(1, np.bool_)
        return action[0]
