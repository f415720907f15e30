"""The policy: one artefact that acts in training, is evaluated, is saved and is loaded elsewhere.

Small networks act in NumPy, which is 2 to 4 times faster than a framework's calls at these sizes and needs no framework
to be installed; CNNs of larger images, and users' own modules, act on their backend.
The folder `policy/` holds `policy.safetensors` (params and statistics) and `policy.json` (algorithm, spaces, settings):
data only, nothing that can execute.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from cavalcade import tree
from cavalcade.algorithms import Algorithm
from cavalcade.backends import Backend
from cavalcade.backends.numpy_backend import acting as numpy_namespace
from cavalcade.checkpoints import write_atomically
from cavalcade.errors import UserError
from cavalcade.networks import Model, forward_of
from cavalcade.records import write_failure
from cavalcade.specs import EnvSpec
from cavalcade.tree import Layout, Tree

FORMAT = 1  # of the policy folder


class Policy:
    """Chooses actions for batches of observations. `backend` is None to act in NumPy."""

    def __init__(
        self,
        algorithm: Algorithm,
        model: Model,
        params: Tree,
        statistics: Tree,
        backend: Backend | None = None,
    ):
        self.algorithm, self.model, self.backend = algorithm, model, backend
        self.layout = Layout.of(params)
        self.version = 0
        self.environment = ""  # on which it was trained, as config.json has it
        self.options: dict = {}  # of that environment
        self.compiled = backend.compile(self._act_on(backend)) if backend else None
        self.vector = np.zeros(self.layout.size, np.float32)
        self.params = self.layout.unflatten(self.vector)  # views: loading new numbers needs no new tree
        self.load(self.layout.flatten(params), statistics, 0)

    @property
    def acts_in(self) -> str:
        """What computes the actions: numpy, or the name of the backend."""
        return self.backend.name if self.backend else "numpy"

    def load(self, vector: np.ndarray, statistics: Tree, version: int) -> None:
        """Act with these params [size] and statistics from now on; `version` is theirs."""
        self.vector[:] = vector
        self.statistics, self.version = statistics, version
        self.forward = forward_of(self.model, numpy_namespace, self.params, statistics)
        if self.backend:
            self.device = (self.backend.vector(vector), self.backend.from_numpy(statistics))

    def act(self, obs: Tree, carry: Tree, first: np.ndarray, noise: Tree | None) -> tuple[np.ndarray, Tree, Tree]:
        """Actions [B, ...], extras and the next carry for observations [B, ...], of which `first` [B] begin an episode.
        Without noise the actions are greedy."""
        if self.backend:
            given = self.backend.from_numpy({"obs": obs, "carry": carry, "first": first, "noise": noise or {}})
            result = self.compiled(*self.device, given)  # type: ignore[misc]
            done = self.backend.to_numpy(result)
            return done["action"], done["extras"], done["carry"]
        return self.algorithm.act(numpy_namespace, self.model.spec, self.forward, obs, carry, first, noise)

    def _act_on(self, backend: Backend) -> Any:
        """Acting as a pure function of the backend's arrays, to be compiled."""

        def act(vector: Any, statistics: Tree, given: Tree) -> Tree:
            forward = forward_of(self.model, backend.xp, backend.views(vector, self.layout), statistics)
            spec, noise = self.model.spec, given["noise"] or None
            acted = self.algorithm.act(backend.xp, spec, forward, given["obs"], given["carry"], given["first"], noise)
            return acted._asdict()

        return act

    def save(self, folder: Path, about: dict) -> None:
        """Write the policy folder; `about` goes into policy.json. A crash leaves each file old or new, never half."""
        arrays = {"params": self.layout.unflatten(self.vector), "statistics": self.statistics}
        named = {path: np.array(leaf, order="C") for path, leaf in tree.named(arrays)}
        settings = asdict(self.algorithm)
        text = {
            "format": FORMAT,
            "algorithm": type(self.algorithm).__name__.lower(),
            "settings": settings,
            "spec": self.model.spec.to_json(),
            "version": self.version,
            "environment": self.environment,
            "options": self.options,
            **about,
        }
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / "policy.safetensors", save(named))
            write_atomically(folder / "policy.json", json.dumps(text, indent=1).encode())
        except OSError as error:
            raise UserError(write_failure(folder, error)) from error


def folder_of(path: str | Path) -> Path:
    """The policy folder that is meant by `path`: that of a run folder, or `path` itself."""
    folder = Path(path)
    return folder / "policy" if (folder / "policy").is_dir() else folder


def read(folder: Path) -> tuple[dict, Tree]:
    """What policy.json says and the arrays of a policy folder; refused if something is missing or damaged."""
    try:
        about = json.loads((folder / "policy.json").read_text())
        arrays = tree.from_named(load_file(folder / "policy.safetensors"))
    except FileNotFoundError:
        raise UserError(
            f"There is no policy in {folder}; train one first, or name a run folder or its policy/."
        ) from None
    except (json.JSONDecodeError, SafetensorError, UnicodeDecodeError) as error:
        raise UserError(
            f"The policy in {folder} is damaged ({error}); train again or restore it from a copy."
        ) from None
    if not isinstance(about, dict):
        raise UserError(f"The policy in {folder} is damaged (policy.json is no object); restore it from a copy.")
    if about.get("format") != FORMAT:
        raise UserError(f"The policy in {folder} has format {about.get('format')}; this version reads format {FORMAT}.")
    return about, arrays


@contextmanager
def intact(folder: Path) -> Iterator[None]:
    """Around code that builds something from what `read` gave: an error there means that the policy is damaged."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"The policy in {folder} is damaged ({error!r}); restore it from a copy.") from error


def check_same_spaces(trained: EnvSpec, given: EnvSpec) -> None:
    """Refuse environments whose observations or actions differ from those that a policy was trained on."""
    for what in ("observation", "action"):
        ours, theirs = getattr(trained, what), getattr(given, what)
        if _shapes(ours) != _shapes(theirs):
            raise UserError(
                f"This policy was trained on {trained.environment}, whose {what} is {_shapes(ours)}; "
                f"{given.environment} has {_shapes(theirs)}. Use an environment with the same spaces."
            )


def _shapes(spec: Any) -> Any:
    """By path: what has to be the same in two specs."""
    return {path: (leaf.kind, leaf.shape, leaf.counts) for path, leaf in tree.named(spec)}
