"""Where the four axes meet: algorithm, architecture, runtime and backend become a run.

This is the only module that names members of all four axes. It refuses combinations that make no sense, and says why.
"""

import dataclasses
import os
import platform
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from cavalcade import backends, envs
from cavalcade.acting import Evaluator, check_same_spaces
from cavalcade.algorithms import Algorithm
from cavalcade.algorithms.a2c import A2C
from cavalcade.algorithms.ddpg import DDPG
from cavalcade.algorithms.dqn import DQN
from cavalcade.algorithms.impala import Impala
from cavalcade.algorithms.mpo import MPO
from cavalcade.algorithms.pg import PG
from cavalcade.algorithms.ppo import PPO
from cavalcade.algorithms.sac import SAC
from cavalcade.architectures import a3c, apex, dppo, ga3c, gorila, impala, paac, seed, sync
from cavalcade.assembly import Origin, Parts, Wiring, bytes_of, require_memory
from cavalcade.backends import threads
from cavalcade.config import described
from cavalcade.errors import UserError, nearest
from cavalcade.experiment import systems
from cavalcade.experiment.presets import NONE, Preset
from cavalcade.experiment.presets import find as find_preset
from cavalcade.experiment.run_settings import Settings
from cavalcade.networks import Model, Network, image_of
from cavalcade.programs import Handle, Placement, Program
from cavalcade.records import environment_of, written
from cavalcade.runtimes.inprocess import InProcess
from cavalcade.runtimes.processes import Processes
from cavalcade.runtimes.ray import RayRuntime
from cavalcade.specs import EnvSpec
from cavalcade.tree import Layout, leaves

ALGORITHMS: dict[str, type] = {
    "dqn": DQN,
    "a2c": A2C,
    "ppo": PPO,
    "impala": Impala,
    "ddpg": DDPG,
    "sac": SAC,
    "mpo": MPO,
    "pg": PG,
}
ARCHITECTURES: dict[str, tuple[Wiring, Callable[[Parts], Program]]] = {
    "sync": (sync.WIRING, sync.sync),
    "gorila": (gorila.WIRING, gorila.gorila),
    "a3c": (a3c.WIRING, a3c.a3c),
    "ga3c": (ga3c.WIRING, ga3c.ga3c),
    "dppo": (dppo.WIRING, dppo.dppo),
    "apex": (apex.WIRING, apex.apex),
    "impala": (impala.WIRING, impala.impala),
    "seed": (seed.WIRING, seed.seed),
    "paac": (paac.WIRING, paac.paac),
}
# arguments of `train` that are no settings
KEYWORDS = ("out", "options", "actor_options", "network", "display", "settings", "callbacks", "from_run")
LAUNCHERS: dict[str, Callable] = {"inprocess": InProcess, "process": Processes, "ray": RayRuntime}


@dataclass(frozen=True)
class Experiment:
    """One run, fully decided: makes its parts, its program, and the program on its runtime."""

    system: str
    environment: Any  # what `envs.make` takes: an id, a function or an object
    settings: Settings
    algorithm: Algorithm
    spec: EnvSpec
    options: dict  # of the environment; evaluations have these
    actor_options: dict[str, list]  # the same: values that actors take in turn, on top of `options`
    copies: envs.Copies  # what each actor steps
    network: Callable[[EnvSpec], Network] | None = None  # a user's own torso
    origin: str = ""  # the folder of the run whose policy this run begins from; empty if none
    preset: Preset = NONE  # from which settings were taken when the run began

    @classmethod
    def create(
        cls,
        system: str,
        environment: Any,
        settings: Settings,
        overrides: dict[str, Any],
        options: dict | None = None,
        network: Any = None,
        origin: str = "",
        actor_options: dict | None = None,
    ) -> "Experiment":
        """Probe the environment, choose the system's settings for it, and refuse what does not fit together.
        `overrides`: settings of the algorithm that the user has changed; the preset that `settings` ask for fills in
        others of the algorithm. Those of the run have been chosen before (`presets.run_settings`). Of an option that
        only `actor_options` have, the first value becomes that of evaluations."""
        envs.require_place(environment, settings.envs, settings.actors, settings.runtime)
        each = envs.require_values(actor_options or {}, settings.actors)
        options = {**{name: values[0] for name, values in each.items()}, **(options or {})}
        spec = probe(environment, options)
        kinds = envs.variants(options, each, settings.actors)
        envs.require_equal_spaces(spec, options, kinds, lambda given: probe(environment, given))
        if settings.evaluations and envs.held(environment):
            check_same_spaces(spec, probe(envs.again(environment), {}))  # raises if no others like it can be made
        preset = find_preset(system, environment, settings.preset)
        settings = dataclasses.replace(settings, preset=preset.name)
        algorithm = algorithm_for(system, spec, overrides, preset)
        factory = adapt(network, settings.backend) if network is not None else None
        found = [envs.copies_of(environment, spec, settings.envs, settings.vector, kind) for kind in kinds]
        copies = next((one for one in found if one.environment is environment), found[0])  # singly if one actor must
        made = cls(system, environment, settings, algorithm, spec, options, each, copies, factory, origin, preset)
        # these only raise, before anything is written
        algorithm.minibatches(np.random.default_rng(0), made.parts.of_one_learner.experience.batch)
        algorithm.optimiser(1)
        require_memory(made.parts, bytes_of(made.parts))
        if settings.device not in ("auto", "cpu") and settings.runtime != "ray":  # there the learner is elsewhere
            backends.require_device(settings.backend, settings.device)
        return made

    @classmethod
    def from_config(cls, config: dict, environment: Any = None, network: Any = None) -> "Experiment":
        """The experiment of a config.json. An environment that only code can make and a network of the user's cannot be
        written there and have to be given again."""
        names = [field.name for field in dataclasses.fields(Settings)]
        others = ("format", "system", "environment", "options", "actor_options", "algorithm", "custom_network", "from")
        known = [*names, *others, "versions"]
        missing = [name for name in known if not isinstance(config, dict) or name not in config]
        if missing:
            raise UserError(f"This is not the config.json of a run: it has no '{missing[0]}'.")
        for name in config:
            if name not in known:
                raise UserError(f"The config.json has a setting '{name}' that no run has.{nearest(name, names)}")
        given = environment_of(config["environment"], environment, "This run")
        if network is None and config["custom_network"]:
            raise UserError("This run was made with a network of your own; use Python and give network=... .")
        settings = Settings(**{name: config[name] for name in names})
        # a run can be read on a machine without its device, and has the values of its preset, which may have changed
        anywhere = dataclasses.replace(settings, device="cpu", preset="none")
        rest = (config["algorithm"], config["options"], network, config["from"] or "", config["actor_options"])
        made = cls.create(config["system"], given, anywhere, *rest)
        return dataclasses.replace(made, settings=settings)

    @property
    def wiring(self) -> Wiring:
        """The wiring of the system's architecture, with what the user has changed."""
        s, wiring = self.settings, ARCHITECTURES[systems.find(self.system).architecture][0]
        acting, experience = s.acting or wiring.acting, s.experience or wiring.experience
        changed = bool(s.acting or s.experience or s.updates)
        made = dataclasses.replace(
            wiring,
            acting=acting,
            experience=experience,
            updates=s.updates or wiring.updates,
            learners=s.learners or (s.actors if wiring.together else 1 if s.updates == "own" else wiring.learners),
            shards=s.shards or (wiring.shards or 2 if experience == "shards" else 0),
            predictors=s.predictors if s.predictors >= 0 else 0 if changed else wiring.predictors,
            servers=s.servers or wiring.servers,
            stragglers=s.stragglers,
            max_staleness=s.max_staleness,
            adjust_every=s.adjust_every,
            # learner and actor share a process only if every actor has a learner
            together=wiring.together and (acting, experience) == ("local", "bundled") and s.learners in (0, s.actors),
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

    @cached_property
    def parts(self) -> Parts:
        """What the program is built from; the origin is added in `program`."""
        s = self.settings
        parts = Parts(
            self.algorithm,
            self.spec,
            self.copies.environment,
            s.backend,
            s.envs,
            s.actors,
            s.steps,
            s.seed,
            s.acts_in,
            s.threads,
            self.options,
            self.actor_options,
            self.network,
            s.storage,
            {"inprocess": "here", "process": "beside", "ray": "away"}[s.runtime],
            s.device,
            self.wiring,
        )
        if s.threads == 0:
            small, turns = parts.model.small, s.runtime == "inprocess"
            cost = multiply_adds(parts) if small else 0.0
            parts = parts.but(threads=threads.chosen(small, cost, turns, os.cpu_count() or 1))
        return parts

    @property
    def model(self) -> Model:
        return self.parts.model

    def load_origin(self) -> Origin | None:
        """The policy that this run begins from, or None; refused if it does not fit."""
        if not self.origin:
            return None
        return Origin.load(self.origin, self.algorithm, self.model, self.network is not None)

    def program(self, begun_from: Origin | None = None) -> Program:
        """The architecture's program and an evaluator beside it. `begun_from`: the policy that learners begin with."""
        parts, s = self.parts.but(origin=begun_from), self.settings
        program = ARCHITECTURES[systems.find(self.system).architecture][1](parts)
        program.budget = s.steps
        if s.evaluations:
            program.add(
                "evaluator",
                Evaluator,
                parts.of_actors.policy,
                Handle("learner"),
                program.of_role(program.clock),
                envs.again(self.environment),
                self.options,
                s.steps / s.evaluations,
                s.evaluation_episodes,
                s.seed,
                s.evaluation_sampled,
                placement=Placement(restart="alone", imports=parts.policy_imports),
            )
        return program

    def launch(self, restore: tuple[Path, int, dict] | None = None) -> Any:
        """Start the program on the chosen runtime, from the beginning or from a checkpoint (folder, step, state)."""
        s = self.settings
        where = {"address": s.address} if s.runtime == "ray" else {}
        begun_from = None if restore else self.load_origin()  # the params of a checkpoint came from it
        return LAUNCHERS[s.runtime](self.program(begun_from), restore=restore, **where)

    def config(self) -> dict:
        """What config.json holds: all that is needed to run this experiment again."""
        return {
            "format": 1,
            "system": self.system,
            "environment": written(self.environment, self.spec.environment),
            "options": self.options,
            "actor_options": self.actor_options,
            **dataclasses.asdict(self.settings),
            "algorithm": dataclasses.asdict(self.algorithm),
            "custom_network": self.network is not None,
            "from": self.origin or None,
            "versions": {"python": platform.python_version(), **_versions()},
        }


def multiply_adds(parts: Parts) -> float:
    """Of one pass of a minibatch through a network of full layers: each parameter once for each step in it."""
    experience = parts.experience
    steps = experience.batch * experience.item.steps
    indices = parts.algorithm.minibatches(np.random.default_rng(0), experience.batch)  # of unrolls, or of their steps
    share = indices.shape[1] / (indices.max() + 1)
    return share * steps * Layout.of(parts.model.init(np.random.default_rng(0))).size


def probe(environment: Any, options: dict) -> EnvSpec:
    """The spec of an environment, found by making one."""
    pool = envs.make(environment, envs.held(environment) or 1, 0, **options)
    try:
        return pool.spec
    finally:
        pool.close()


def chosen(system: str, pixels: bool, preset: Preset = NONE) -> dict[str, tuple[Any, str]]:
    """The value of every setting of the system's algorithm, and in words where it comes from. `pixels`: observations
    are images, for which a system has the settings of its paper. `preset`: of the environment; it comes last."""
    found = systems.find(system)
    values = {name: (one.default, "default") for name, one in described(ALGORITHMS[found.algorithm]).items()}
    values |= {name: (value, f"of {system}") for name, value in found.settings.items()}
    if pixels:
        values |= {name: (value, f"of {system} on images") for name, value in found.pixels.items()}
    return values | {name: (value, preset.told) for name, value in preset.of(ALGORITHMS[found.algorithm]).items()}


def has_images(spec: EnvSpec) -> bool:
    """Whether a part of the observation is an image that the Nature CNN can take, as those of papers on Atari are."""
    images = [image_of(leaf, spec.frames) for leaf in leaves(spec.observation)]
    return any(image.fits("nature") for image in images if image)


def algorithm_for(system: str, spec: EnvSpec, overrides: dict[str, Any], preset: Preset = NONE) -> Algorithm:
    """The system's algorithm with its settings for this kind of observation and those of the preset, changed by the
    user's `overrides`."""
    algorithm = ALGORITHMS[systems.find(system).algorithm]
    require_known(system, overrides)
    values = {name: value for name, (value, _) in chosen(system, has_images(spec), preset).items()}
    return algorithm(**{**values, **overrides})


def require_known(system: str, names: Iterable[str]) -> None:
    """Refuse names that are no settings of the system's algorithm; the message suggests the nearest known name."""
    algorithm = described(ALGORITHMS[systems.find(system).algorithm])
    for name in names:
        if name not in algorithm:
            known = [*algorithm, *described(Settings), *KEYWORDS]
            raise UserError(f"{system} has no setting '{name}'.{nearest(name, known)}")


MODULES = {  # module of a user's network's base class -> backend, module that adapts it
    "torch.nn.modules.module": ("torch", "torch_modules"),
    "flax.linen.module": ("jax", "flax_modules"),
    "flax.nnx.module": ("jax", "flax_modules"),
}


def adapt(network: Any, backend: str) -> Callable[[EnvSpec], Network]:
    """A user's `torch.nn.Module` or Flax module as a torso: a function from a spec to a network."""
    if isinstance(network, type):
        raise UserError(f"The network is the class {network.__name__}; give an instance, {network.__name__}(...).")
    homes = [base.__module__ for base in type(network).__mro__ if base.__name__ == "Module"]
    found = next((MODULES[home] for home in homes if home in MODULES), None)
    if found is None:
        raise UserError(f"The network is a {type(network).__name__}; give a torch.nn.Module or a Flax module.")
    needed, module = found
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
