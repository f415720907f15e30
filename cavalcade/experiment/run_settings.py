"""The settings of every run, whatever its algorithm: how long, on what, how it is evaluated, what is written.

`GROUPS` is the order in which the settings of a run and of its algorithm are shown: first those that people change
first.
"""

from dataclasses import dataclass

from cavalcade import backends
from cavalcade.assembly import CHOICES
from cavalcade.backends import devices
from cavalcade.config import Config, setting
from cavalcade.errors import UserError

GROUPS = {
    "run": "how long it runs, from which seed, until which score",
    "execution": "processes, environments, backend and device",
    "learning": "what is learned from, how fast",
    "exploration": "how actions are varied",
    "experience": "what is kept, drawn, and how old it may be",
    "network": "from observations to features",
    "evaluation": "how the policy is judged while it learns",
    "architecture": "who acts, where experience waits, how updates are combined",
    "recording": "what is written to disk, and how often",
}
RUNTIMES = ("inprocess", "process", "ray")
_AS_SYSTEM = "; empty is as the system says"


@dataclass(frozen=True)
class Settings(Config):
    """The settings of a run; each field says in one sentence what it means."""

    steps: int = setting(100_000, "environment steps of the whole run, of all actors together", "run", at_least=1)
    seed: int = setting(0, "of every random stream of the run", "run", at_least=0)
    target: float | None = setting(None, "the run ends when an evaluation reaches this mean return", "run")
    preset: str = setting(
        "auto",
        "settings known to suit the environment, if there are any (cavalcade presets); none leaves them out, the id of "
        "another environment takes its",
        "run",
    )

    actors: int = setting(
        1, "workers that act; in processes of their own with --runtime process", "execution", at_least=1
    )
    envs: int = setting(8, "environments that each actor steps together", "execution", at_least=1)
    vector: str = setting(
        "auto",
        "auto: from 64 environments on for each actor, all in one step, where Gymnasium has a vector form of them",
        "execution",
        words=("auto", "never"),
    )
    runtime: str = setting(
        "inprocess",
        "one process, repeatable to the bit; one for each actor, for table and learner, for evaluation; or Ray",
        "execution",
        words=RUNTIMES,
    )
    backend: str = setting("torch", "the library that computes the updates", "execution", words=backends.NAMES)
    device: str = setting(
        "auto", "where the learner computes: auto, cpu, cuda, mps; auto is the CPU for small networks", "execution"
    )
    threads: int = setting(
        0,
        "of the backend; 0 is all cores for large minibatches, else one; for convolutions all but one",
        "execution",
        at_least=0,
    )
    acts_in: str = setting(
        "auto",
        "what computes actions; auto is NumPy for small networks",
        "execution",
        words=("auto", "numpy", "backend"),
    )
    address: str = setting(
        "", "of a Ray cluster, such as 10.0.0.1:6379 or auto; without it Ray is started on this machine", "execution"
    )

    evaluations: int = setting(
        10, "evenly over the run; 0 keeps the last policy instead of the best", "evaluation", at_least=0
    )
    evaluation_episodes: int = setting(10, "of each evaluation", "evaluation", at_least=1)
    evaluation_sampled: bool = setting(
        False, "judged as it acts in training, with its noise; otherwise greedy", "evaluation"
    )

    acting: str = setting(
        "",
        f"local: with the environments; central: many workers ask one policy{_AS_SYSTEM}",
        "architecture",
        words=("", *CHOICES["acting"]),
    )
    experience: str = setting(
        "",
        f"shared: one table; shards: several; bundled: one with each learner{_AS_SYSTEM}",
        "architecture",
        words=("", *CHOICES["experience"]),
    )
    updates: str = setting(
        "",
        f"how gradients of several learners become updates{_AS_SYSTEM}",
        "architecture",
        words=("", *CHOICES["updates"]),
    )
    learners: int = setting(
        0, "that update together; 0 is as the system says: one, or one for each actor", "architecture", at_least=0
    )
    shards: int = setting(
        0, "tables of --experience shards; 0 is two, or as the system says", "architecture", at_least=0
    )
    predictors: int = setting(
        -1, "of central acting, in processes of their own; -1 is as the system says", "architecture", at_least=-1
    )
    servers: int = setting(0, "slices of the parameter server; 0 is as the system says", "architecture", at_least=0)
    stragglers: int = setting(0, "gradients that an all-reduce may do without", "architecture", at_least=0)
    max_staleness: int = setting(
        100, "updates after which a parameter server drops a gradient", "architecture", at_least=0
    )
    adjust_every: float = setting(
        0.0,
        "seconds between changes of how many predictors, learners and actors are active; 0 is off",
        "architecture",
        at_least=0,
    )

    checkpoint_seconds: float = setting(60.0, "between checkpoints", "recording", at_least=0)
    rows: int = setting(200, "lines of metrics over the run", "recording", at_least=1)
    storage: str = setting(
        "memory",
        "of replay: in memory, in a file on disk for more than fits there, or compressed",
        "recording",
        words=("memory", "file", "compressed"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        devices.check(self.device)
        if self.address and self.runtime != "ray":
            raise UserError(f"--address {self.address} is that of a Ray cluster; give --runtime ray with it.")
