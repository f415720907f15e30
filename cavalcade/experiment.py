"""Where the four axes meet: algorithm, architecture, runtime and backend become a run.

This is the only module that names members of all four. It refuses combinations that make no sense, with the reason.
"""

import dataclasses
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from cavalcade import backends, envs, systems
from cavalcade.algorithm import Algorithm
from cavalcade.algorithms.a2c import A2C
from cavalcade.algorithms.dqn import DQN
from cavalcade.algorithms.impala import Impala
from cavalcade.algorithms.ppo import PPO
from cavalcade.architectures import a3c, apex, dppo, ga3c, gorila, impala, paac, seed, sync
from cavalcade.backends import devices
from cavalcade.convolutions import is_image
from cavalcade.errors import UserError, nearest, require_at_least, require_one_of
from cavalcade.evaluation import Evaluator
from cavalcade.layers import Network
from cavalcade.model import Model
from cavalcade.parts import Parts
from cavalcade.policy import check_same_spaces
from cavalcade.program import Handle, Placement, Program
from cavalcade.row import Row
from cavalcade.runtimes.inprocess import InProcess
from cavalcade.runtimes.processes import Processes
from cavalcade.runtimes.ray import RayRuntime
from cavalcade.specs import EnvSpec
from cavalcade.tree import leaves

ALGORITHMS: dict[str, type] = {"dqn": DQN, "a2c": A2C, "ppo": PPO, "impala": Impala}
ARCHITECTURES: dict[str, tuple[Row, Callable[[Parts], Program]]] = {
    "sync": (sync.ROW, sync.sync),
    "gorila": (gorila.ROW, gorila.gorila),
    "a3c": (a3c.ROW, a3c.a3c),
    "ga3c": (ga3c.ROW, ga3c.ga3c),
    "dppo": (dppo.ROW, dppo.dppo),
    "apex": (apex.ROW, apex.apex),
    "impala": (impala.ROW, impala.impala),
    "seed": (seed.ROW, seed.seed),
    "paac": (paac.ROW, paac.paac),
}
RUNTIMES: dict[str, Callable] = {"inprocess": InProcess, "process": Processes, "ray": RayRuntime}


@dataclass(frozen=True)
class Settings:
    """What every run has, whatever it learns."""

    steps: int = 100_000  # environment steps of the whole run
    seed: int = 0
    backend: str = "torch"  # torch, jax, numpy
    device: str = "auto"  # auto, cpu, cuda, mps: where the learner computes; auto is the CPU for small networks
    runtime: str = "inprocess"  # or process: one for each actor, one for table and learner, one for evaluation; or ray
    address: str = ""  # of a Ray cluster, such as 10.0.0.1:6379 or auto; without it Ray is started on this machine
    actors: int = 1
    envs: int = 8  # environments of each actor
    target: float | None = None  # stop when an evaluation reaches this mean return
    evaluations: int = 10  # evenly over the run; 0 saves the last policy instead of the best
    evaluation_episodes: int = 10
    acting: str = ""  # local: with the environments; central: many workers ask one policy; else as the system says
    experience: str = ""  # shared: one table; shards: several; bundled: one with each learner; else as the system says
    updates: str = ""  # own, allreduce, parameter-server, hogwild; else as the system says
    learners: int = 0  # 0 is as the system says: one, or one for each actor
    shards: int = 0  # tables of --experience shards; 0 is two, or as the system says
    predictors: int = -1  # of central acting, in processes of their own; -1 is as the system says
    servers: int = 0  # slices of the parameter server; 0 is as the system says
    stragglers: int = 0  # gradients that an all-reduce may do without
    max_staleness: int = 100  # updates after which a parameter server drops a gradient
    adjust_every: float = 0.0  # seconds between changes of how many predictors, learners, actors are active; 0 is off
    acts_in: str = "auto"  # auto, numpy, backend: what computes actions
    threads: int = 0  # of the backend; 0 is one for small networks, and all cores but one for convolutions
    checkpoint_seconds: float = 60.0  # between checkpoints
    rows: int = 200  # lines of metrics over the run
    storage: str = "memory"  # of replay: memory, file (on disk, for more than fits in memory), compressed

    def __post_init__(self) -> None:
        require_one_of(self, backend=backends.NAMES, runtime=RUNTIMES, acts_in=("auto", "numpy", "backend"))
        require_one_of(self, storage=("memory", "file", "compressed"))
        devices.check(self.device)
        require_at_least(self, steps=1, actors=1, envs=1, evaluation_episodes=1, rows=1)
        require_at_least(self, seed=0, evaluations=0, threads=0, checkpoint_seconds=0)
        if self.address and self.runtime != "ray":
            raise UserError(f"--address {self.address} is that of a Ray cluster; give --runtime ray with it.")
        if self.target is not None:
            require_at_least(self, target=-float("inf"))


@dataclass(frozen=True)
class Experiment:
    system: str
    environment: Any  # a Gymnasium id, or a callable that makes an environment
    settings: Settings
    algorithm: Algorithm
    spec: EnvSpec
    options: dict
    network: Callable[[EnvSpec], Network] | None = None

    @classmethod
    def create(
        cls,
        system: str,
        environment: Any,
        settings: Settings,
        overrides: dict[str, Any],
        options: dict | None = None,
        network: Any = None,
    ) -> "Experiment":
        """Probe the environment, choose the system's settings for it, and check that all fits."""
        envs.require_place(environment, settings.envs, settings.actors, settings.runtime)
        spec = probe(environment, options or {})
        if settings.evaluations and envs.held(environment):
            check_same_spaces(spec, probe(envs.again(environment), {}))  # that others like it can be made
        algorithm = algorithm_for(system, spec, overrides)
        factory = adapt(network, settings.backend) if network is not None else None
        made = cls(system, environment, settings, algorithm, spec, options or {}, factory)
        # what does not fit together is refused here, before anything is written
        algorithm.minibatches(np.random.default_rng(0), made.parts.experience.batch)
        algorithm.optimiser(1)
        made.parts.require_memory()
        if settings.device not in ("auto", "cpu") and settings.runtime != "ray":  # there the learner is elsewhere
            backends.require_device(settings.backend, settings.device)
        return made

    @classmethod
    def from_config(cls, config: dict, environment: Any = None, network: Any = None) -> "Experiment":
        """The experiment of a config.json; what cannot be written into one has to be given again."""
        names = [field.name for field in dataclasses.fields(Settings)]
        known = [*names, "format", "system", "environment", "options", "algorithm", "custom_network", "versions"]
        missing = [name for name in known if not isinstance(config, dict) or name not in config]
        if missing:
            raise UserError(f"This is not the config.json of a run: it has no '{missing[0]}'.")
        for name in config:
            if name not in known:
                raise UserError(f"The config.json has a setting '{name}' that no run has.{nearest(name, names)}")
        if environment is None and config["environment"].startswith("<"):
            raise UserError("This run was made with an environment object; use Python and give environment=... .")
        if network is None and config["custom_network"]:
            raise UserError("This run was made with a network of your own; use Python and give network=... .")
        given = config["environment"] if environment is None else environment
        settings = Settings(**{name: config[name] for name in names})
        anywhere = dataclasses.replace(settings, device="cpu")  # a run can be looked at where its device is not
        made = cls.create(config["system"], given, anywhere, config["algorithm"], config["options"], network)
        return dataclasses.replace(made, settings=settings)

    @property
    def row(self) -> Row:
        """The system's, with what the user wants otherwise."""
        s, row = self.settings, ARCHITECTURES[systems.find(self.system).architecture][0]
        acting, experience = s.acting or row.acting, s.experience or row.experience
        changed = bool(s.acting or s.experience or s.updates)
        made = dataclasses.replace(
            row,
            acting=acting,
            experience=experience,
            updates=s.updates or row.updates,
            learners=s.learners or (s.actors if row.together else 1 if s.updates == "own" else row.learners),
            shards=s.shards or (row.shards or 2 if experience == "shards" else 0),
            predictors=s.predictors if s.predictors >= 0 else 0 if changed else row.predictors,
            servers=s.servers or row.servers,
            stragglers=s.stragglers,
            max_staleness=s.max_staleness,
            adjust_every=s.adjust_every,
            # each learner in one process with its actor: only where every actor has one
            together=row.together and (acting, experience) == ("local", "bundled") and s.learners in (0, s.actors),
        )
        if made.updates == "hogwild" and s.runtime == "ray":
            raise UserError(
                "--updates hogwild changes memory that learners share, but --runtime ray shares none; use --updates "
                "parameter-server, or own with one learner."
            )
        if made.adjust_every and s.runtime == "ray":
            raise UserError(
                "--adjust-every turns valves in shared memory, but --runtime ray shares none; use --runtime process."
            )
        return made

    @property
    def parts(self) -> Parts:
        s = self.settings
        parts = Parts(
            self.algorithm,
            self.spec,
            self.environment,
            s.backend,
            s.envs,
            s.actors,
            s.steps,
            s.seed,
            s.acts_in,
            s.threads,
            self.options,
            self.network,
            s.storage,
            {"inprocess": "here", "process": "beside", "ray": "away"}[s.runtime],
            s.device,
            self.row,
        )
        if s.threads == 0:
            parts = dataclasses.replace(parts, threads=1 if parts.model.small else max(1, (os.cpu_count() or 1) - 1))
        return parts

    @property
    def model(self) -> Model:
        return self.parts.model

    def program(self) -> Program:
        """The architecture's program, and an evaluator beside it."""
        parts, s = self.parts, self.settings
        program = ARCHITECTURES[systems.find(self.system).architecture][1](parts)
        if s.evaluations:
            actors = [Handle(name) for name in program.nodes if name.startswith("actor")]
            program.add(
                "evaluator",
                Evaluator,
                parts.policy,
                Handle("learner"),
                actors,
                envs.again(self.environment),
                self.options,
                s.steps / s.evaluations,
                s.evaluation_episodes,
                s.seed,
                placement=Placement(restart="alone", imports=parts.policy_imports),
            )
        return program

    def launch(self, restore: tuple[Path, int, dict] | None = None) -> Any:
        """The program on the chosen runtime, begun anew or from a checkpoint (folder, step, state)."""
        s = self.settings
        where = {"address": s.address} if s.runtime == "ray" else {}
        return RUNTIMES[s.runtime](self.program(), restore=restore, **where)

    def config(self) -> dict:
        """All that is needed to run it again."""
        named = isinstance(self.environment, str)
        return {
            "format": 1,
            "system": self.system,
            "environment": self.environment if named else f"<{self.spec.environment}>",
            "options": self.options,
            **dataclasses.asdict(self.settings),
            "algorithm": dataclasses.asdict(self.algorithm),  # type: ignore[call-overload]
            "custom_network": self.network is not None,
            "versions": {"python": platform.python_version(), **_versions()},
        }


def probe(environment: Any, options: dict) -> EnvSpec:
    pool = envs.make(environment, envs.held(environment) or 1, 0, **options)
    try:
        return pool.spec
    finally:
        pool.close()


def algorithm_for(system: str, spec: EnvSpec, overrides: dict[str, Any]) -> Algorithm:
    """The system's algorithm with its settings for this kind of observation, and the user's on top."""
    found = systems.find(system)
    algorithm = ALGORITHMS[found.algorithm]
    fields = {f.name for f in dataclasses.fields(algorithm)}
    for name in overrides:
        if name not in fields:
            raise UserError(f"{system} has no setting '{name}'.{nearest(name, fields)}")
    pixels = any(is_image(leaf, "nature") for leaf in leaves(spec.observation))
    chosen = {**found.settings, **(found.pixels if pixels else {}), **overrides}
    return algorithm(**{k: tuple(v) if isinstance(v, list) else v for k, v in chosen.items()})


def adapt(network: Any, backend: str) -> Callable[[EnvSpec], Network]:
    """A user's `torch.nn.Module` or Flax module in the place of the torso."""
    kinds = [base.__module__.split(".")[0] for base in type(network).__mro__]
    if "torch" in kinds:
        needed, module = "torch", "torch_modules"
    elif "flax" in kinds:
        needed, module = "jax", "flax_modules"
    else:
        raise UserError(f"The network is a {type(network).__name__}; give a torch.nn.Module or a Flax module.")
    if backend != needed:
        raise UserError(f"A {type(network).__name__} from {needed} needs --backend {needed}, not {backend}.")
    import importlib

    return importlib.import_module(f"cavalcade.backends.{module}").Adapted(network)


def _versions() -> dict[str, str]:
    found = {}
    for package in ("cavalcade", "numpy", "gymnasium", "torch", "jax", "ale-py"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
