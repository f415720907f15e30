"""What can be done with a trained policy: load it, judge it, film it. Small networks need no framework for that."""

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from cavalcade import backends, envs
from cavalcade.acting import (
    STREAM,
    Policy,
    Progress,
    check_same_spaces,
    environments,
    folder_of,
    intact,
    noise_of,
    play_episodes,
    read,
    summary,
)
from cavalcade.checkpoints import write_atomically
from cavalcade.errors import UserError
from cavalcade.experiment import ALGORITHMS, adapt
from cavalcade.records import environment_of, write_failure, written
from cavalcade.specs import EnvSpec
from cavalcade.tree import Layout


def load_policy(path: str | Path, network: Any = None) -> Policy:
    """The policy of a run folder or a policy folder. `network`: the user's module that it was trained with, if any."""
    folder = folder_of(path)
    about, arrays = read(folder)
    with intact(folder):
        return _restored(folder, about, arrays, network)


def _restored(folder: Path, about: dict, arrays: dict, network: Any) -> Policy:
    """The policy that policy.json (`about`) and the arrays describe."""
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
    policy.environment = about.get("environment", written(None, spec.environment))  # earlier versions did not write it
    return policy


def evaluate(
    path: str | Path,
    episodes: int = 100,
    seed: int = 0,
    environment: Any = None,
    network: Any = None,
    sampled: bool = False,
    options: dict | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Judge a policy over `episodes` episodes on fixed seeds: the numbers of `evaluation.summary`, the return of every
    episode, and on which environment. `environment`: another one with the same spaces, if not that of training.
    `options`: of the environment, in the place of those of training. `sampled`: act with the noise of training
    (`evaluation.noise_of`), otherwise greedily."""
    policy = load_policy(path, network)
    given, options = _where(policy, path, environment, options)
    pool = environments(given, episodes, seed, options)
    where = {"environment": written(given, pool.spec.environment), "options": options, "trained_on": policy.environment}
    played = play_episodes(policy, pool, episodes, seed, sampled, progress)
    returns = [total for total, _ in played]
    return {**summary(returns, seed), "returns": returns, "sampled": sampled, **where}


def _where(policy: Policy, path: str | Path, environment: Any, options: dict | None) -> tuple[Any, dict]:
    """The environment to judge by, and its options: the given ones, or those of training. But an environment that is
    named and is not that of training has no options unless they are given."""
    given = environment_of(policy.environment, environment, f"The policy in {path}")
    another = isinstance(given, str) and given != policy.environment and not policy.environment.startswith("<")
    return given, options if options is not None else {} if another else policy.options


def play(
    path: str | Path,
    out: str | Path | None = None,
    seed: int = 0,
    max_steps: int = 10_000,
    environment: Any = None,
    network: Any = None,
    sampled: bool = False,
    options: dict | None = None,
) -> tuple[Path, float]:
    """Film one episode, as `evaluate` would play it; gives the path of the film and the return of the episode."""
    # so that pygame needs no screen and does not complain that there is none
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())
    policy = load_policy(path, network)
    given, options = _where(policy, path, environment, options)
    pool = envs.make(given, 1, seed, STREAM, render=True, **options)
    try:
        check_same_spaces(policy.model.spec, pool.spec)
        obs, first, carry = pool.reset(), np.ones(1, np.bool_), policy.model.carry(1)
        frames, total, noise = [pool.render()], 0.0, noise_of(policy, 1, seed, sampled)
        while len(frames) <= max_steps:
            action, _, carry = policy.act(obs, carry, first, noise(first))
            step = pool.step(action)
            obs, first, total = step.observation, step.first, total + float(step.reward[0])
            if step.episodes:
                break
            frames.append(pool.render())
    finally:
        pool.close()
    if frames[0] is None:
        raise UserError(
            f"{pool.spec.environment} gives no pictures; choose one with render_mode 'rgb_array', and let a function "
            "that makes it have a parameter render_mode."
        )
    folder = Path(path)
    run = folder.parent if (folder / "policy.json").exists() else folder
    path = Path(out) if out else run / "episode.mp4"
    write_video(path, [frame for frame in frames if frame is not None])
    return path, total


def write_video(path: Path, frames: list[np.ndarray], rate: int = 30) -> None:
    """Write frames [height, width, 3] as .mp4 or .gif, `rate` of them per second."""
    if path.suffix not in (".mp4", ".gif"):
        raise UserError(f"{path} cannot be a film; choose a name that ends in .mp4 or .gif.")
    try:
        import imageio.v2 as imageio
    except ImportError as error:
        raise UserError("Writing a film needs imageio; install it with pip install 'cavalcade[record]'.") from error
    even: list[Any] = [f[: f.shape[0] // 2 * 2, : f.shape[1] // 2 * 2] for f in frames]  # codecs need even sizes
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".gif":
            write_atomically(path, imageio.mimwrite("<bytes>", even, format="GIF", fps=rate))
        else:
            imageio.mimwrite(path, even, fps=rate, macro_block_size=2)
            film: Any
            with imageio.get_reader(path) as film:  # fails if the disk was full, of which ffmpeg does not tell
                film.get_data(0)
    except OSError as error:
        raise UserError(write_failure(path, error)) from error
    except (ValueError, ImportError, IndexError, RuntimeError) as error:
        raise UserError(f"{path} could not be written ({error}); is the disk full?") from error
