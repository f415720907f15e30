"""All settings of a system in one typed object, so that an editor can complete their names.

    settings = cavalcade.settings("ppo", learning_rate=3e-4)
    run = cavalcade.train("ppo", "CartPole-v1", settings=settings.replace(steps=50_000))

The object holds every value that the run will have: nothing is chosen later. So it has the settings of a system for
images and the preset of an environment only if the environment is named: `cavalcade.settings("ppo", "ALE/Pong-v5")`.
"""

from dataclasses import dataclass
from typing import Any, Literal, overload

from cavalcade.algorithms.a2c import A2C
from cavalcade.algorithms.ddpg import DDPG
from cavalcade.algorithms.dqn import DQN
from cavalcade.algorithms.impala import Impala
from cavalcade.algorithms.mpo import MPO
from cavalcade.algorithms.pg import PG
from cavalcade.algorithms.ppo import PPO
from cavalcade.algorithms.sac import SAC
from cavalcade.config import described
from cavalcade.errors import UserError
from cavalcade.experiment.experiment import chosen, has_images, probe, require_known
from cavalcade.experiment.presets import find as find_preset
from cavalcade.experiment.presets import run_settings
from cavalcade.experiment.run_settings import Settings
from cavalcade.experiment.systems import find


@dataclass(frozen=True)
class DQNSettings(Settings, DQN):
    """Settings of a run and of DQN."""


@dataclass(frozen=True)
class A2CSettings(Settings, A2C):
    """Settings of a run and of A2C."""


@dataclass(frozen=True)
class PPOSettings(Settings, PPO):
    """Settings of a run and of PPO."""


@dataclass(frozen=True)
class ImpalaSettings(Settings, Impala):
    """Settings of a run and of IMPALA."""


@dataclass(frozen=True)
class DDPGSettings(Settings, DDPG):
    """Settings of a run and of DDPG, TD3 or D4PG."""


@dataclass(frozen=True)
class SACSettings(Settings, SAC):
    """Settings of a run and of SAC."""


@dataclass(frozen=True)
class MPOSettings(Settings, MPO):
    """Settings of a run and of MPO or DMPO."""


@dataclass(frozen=True)
class PGSettings(Settings, PG):
    """Settings of a run and of PG."""


# by algorithm
KINDS: dict[str, type] = {
    "dqn": DQNSettings,
    "a2c": A2CSettings,
    "ppo": PPOSettings,
    "impala": ImpalaSettings,
    "ddpg": DDPGSettings,
    "sac": SACSettings,
    "mpo": MPOSettings,
    "pg": PGSettings,
}


@overload
def settings(
    system: Literal["dqn", "apex-dqn", "gorila-dqn", "c51", "qr-dqn"],
    environment: Any = None,
    options: dict | None = None,
    **changed: Any,
) -> DQNSettings: ...
@overload
def settings(
    system: Literal["a2c", "a3c", "ga3c", "paac"], environment: Any = None, options: dict | None = None, **changed: Any
) -> A2CSettings: ...
@overload
def settings(
    system: Literal["ppo", "dppo"], environment: Any = None, options: dict | None = None, **changed: Any
) -> PPOSettings: ...
@overload
def settings(
    system: Literal["impala", "seed-impala"], environment: Any = None, options: dict | None = None, **changed: Any
) -> ImpalaSettings: ...
@overload
def settings(
    system: Literal["ddpg", "td3", "d4pg", "apex-dpg"],
    environment: Any = None,
    options: dict | None = None,
    **changed: Any,
) -> DDPGSettings: ...
@overload
def settings(
    system: Literal["sac", "seed-sac"], environment: Any = None, options: dict | None = None, **changed: Any
) -> SACSettings: ...
@overload
def settings(
    system: Literal["mpo", "dmpo"], environment: Any = None, options: dict | None = None, **changed: Any
) -> MPOSettings: ...
@overload
def settings(
    system: Literal["pg"], environment: Any = None, options: dict | None = None, **changed: Any
) -> PGSettings: ...
@overload
def settings(system: str, environment: Any = None, options: dict | None = None, **changed: Any) -> Any: ...


def settings(system: str, environment: Any = None, options: dict | None = None, **changed: Any) -> Any:
    """Every setting of `system` with its value: for this environment, or without one for vector observations. `changed`
    are values of settings that replace the system's."""
    kind = KINDS[find(system).algorithm]
    require_known(system, [name for name in changed if name not in described(Settings)])
    run = run_settings(system, environment, {n: value for n, value in changed.items() if n in described(Settings)})
    pixels = has_images(probe(environment, options or {})) if environment is not None else False
    found = chosen(system, pixels, find_preset(system, environment, run.preset))
    return kind(**{**{name: value for name, (value, _) in found.items()}, **changed, **vars(run)})


def settings_of(system: str, given: Any) -> dict[str, Any]:
    """The values of a settings object by name, as `train` takes them. All are there, so no preset is looked for."""
    kind = KINDS[find(system).algorithm]
    if not isinstance(given, kind):
        raise UserError(
            f"The settings are {type(given).__name__}, but {system} takes those of cavalcade.settings('{system}')."
        )
    values = {name: getattr(given, name) for name in described(kind)}
    return values | ({"preset": "none"} if values["preset"] == "auto" else {})
