"""A job: one training run of a queue, its folder, and the score of the policy that it leaves.

The folder is named by a fingerprint of all settings that the run has, those that nobody typed too. So a job whose
settings have changed has another folder and is run anew, the old folder stays where it is, and two jobs with equal
settings are one run that counts for both. Once a run was judged there is a line for it in docs/scores, which belongs to
the project: on another machine, where the folder is missing, the run is done all the same. A folder without such a line
was cut off and is gone on with.
"""

import datetime
import fcntl
import hashlib
import json
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import cavalcade
from cavalcade.config import described
from cavalcade.errors import UserError
from cavalcade.experiment import ALGORITHMS, Settings, find
from cavalcade.options import environment_options, given
from cavalcade.records import Run
from cavalcade.records.curves import evaluations
from cavalcade.runs.training import planned

ROOT = Path(__file__).resolve().parent.parent
SCORES = ROOT / "docs" / "scores"  # a file for each queue, a line for each run that is done
EPISODES = 100
JUDGED_BY = 12_345  # seed of the judging episodes; the best policy of a run is chosen on episodes of the run's own seed
# of a config: what does not change how a run learns, where a value came from, and the seed, which the folder names
ASIDE = ("format", "versions", "seed", "threads", "preset")
# settings that algorithms got after runs had been judged, with the value that stands for how runs were before; where a
# run has this value its fingerprint is that of the older runs, which count for it
LATER: dict[str, dict[str, Any]] = {
    "dqn": {
        "squared": False,
        "value": "scalar",
        "atoms": 51,
        "value_low": -100.0,
        "value_high": 100.0,
        "quantiles": 200,
    },
}
CAVALCADE = ("nice", sys.executable, "-m", "cavalcade")


@dataclass(frozen=True)
class Result:
    """What a line of docs/scores holds."""

    mean: float | None  # of `returns`; None if the job is not judged
    episodes: int
    returns: list[float]  # of every episode; empty where only their mean was kept
    evaluations: list[tuple[int, float]]  # during training: environment steps, mean return; empty if none was kept
    seconds: float  # of training, all sittings together
    steps: int
    date: str
    commit: str  # of the checkout; empty if it is none
    version: str  # of the package
    settings: str  # the job's fingerprint
    command: str


@dataclass(frozen=True)
class Job:
    label: str  # for people
    command: str  # what follows `cavalcade train`, without seed and folder
    seed: int
    root: Path  # the folder of the queue's run folders
    episodes: int = EPISODES  # by which the policy is judged; 0: it is not
    expected: float = 0.0  # seconds that training takes alone, estimated

    @cached_property
    def refusal(self) -> str:
        """Why the run is not possible here, such as for want of a package; empty if it is. If not, the job has no
        fingerprint and no folder."""
        try:
            config_of(self.command)
        except UserError as error:
            return str(error)
        return ""

    @cached_property
    def fingerprint(self) -> str:
        """Eight letters for the settings of the run and how it is judged, the same for all seeds."""
        config = {name: value for name, value in config_of(self.command).items() if name not in ASIDE}
        later = LATER.get(find(config["system"]).algorithm, {})
        chosen = config["algorithm"].items()
        config["algorithm"] = {name: value for name, value in chosen if name not in later or value != later[name]}
        text = json.dumps({"episodes": self.episodes, **config}, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    @cached_property
    def folder(self) -> Path:
        system, environment = shlex.split(self.command)[:2]
        return self.root / re.sub(r"[^\w.+-]+", "-", f"{system}-{environment}-{self.fingerprint}-s{self.seed}")

    @property
    def log(self) -> Path:
        """What the commands of the job print."""
        return self.folder.with_name(f"{self.folder.name}.log")

    @property
    def processes(self) -> bool:
        """Whether the run has several processes: its command names a runtime."""
        return "--runtime" in shlex.split(self.command)

    @property
    def result(self) -> Result | None:
        """None if the job is not done."""
        return None if self.refusal else known(self.scores).get(self.folder.name)

    @property
    def scores(self) -> Path:
        """The file with the results of the queue."""
        return SCORES / f"{self.root.name}.jsonl"

    @property
    def begun(self) -> bool:
        return (self.folder / "config.json").exists()

    @property
    def run(self) -> Run:
        """What there is of a run that has begun."""
        return Run.open(self.folder)

    @property
    def steps(self) -> tuple[int, int]:
        """Environment steps that the run has done, and those of the whole run."""
        rows = self.run.rows() if self.begun else []
        return rows[-1]["step"] if rows else 0, config_of(self.command)["steps"]

    @property
    def trained(self) -> bool:
        """Whether the run has done its steps or reached its target. Only to be asked after its command has ended:
        a run that was killed later than its last row may have saved an earlier policy."""
        done, steps = self.steps
        target = config_of(self.command)["target"]
        judged = [row["evaluation"] for row in self.run.rows() if "evaluation" in row]
        return done >= steps or (target is not None and max(judged, default=-float("inf")) >= target)

    def train_command(self, threads: int = 0) -> list[str]:
        """Begins the run, or goes on with it if it was cut off. `threads`: of the backend; 0 is as the run says."""
        if self.begun:
            return [*CAVALCADE, "resume", str(self.folder)]
        limit = ["--threads", str(threads)] if threads else []
        given = [*shlex.split(self.command), *limit, "--seed", str(self.seed), "--out", str(self.folder)]
        return [*CAVALCADE, "train", *given]

    def judge_command(self) -> list[str]:
        judging = ["--episodes", str(self.episodes), "--seed", str(JUDGED_BY), "--json"]
        return [*CAVALCADE, "evaluate", str(self.folder), *judging]

    def finish(self, judged: dict[str, Any]) -> Result:
        """Write the result; `judged`: what `cavalcade evaluate --json` gave, empty if the job is not judged. The
        checkpoints are removed: nobody needs them any more, and those of many runs fill a disk."""
        last, today = self.run.rows()[-1], datetime.date.today().isoformat()
        score = (judged.get("mean"), self.episodes, judged.get("returns", []))
        course = list(zip(*evaluations(self.run.rows())))
        made = (commit(), cavalcade.__version__, self.fingerprint, f"cavalcade train {self.command} --seed {self.seed}")
        result = Result(*score, course, last["time"], last["step"], today, *made)
        self.scores.parent.mkdir(parents=True, exist_ok=True)
        with self.scores.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # several queues may write
            file.write(json.dumps({"run": self.folder.name, **asdict(result)}) + "\n")
        shutil.rmtree(self.run.checkpoints, ignore_errors=True)
        return result


def known(file: Path) -> dict[str, Result]:
    """The results in a file of docs/scores by the name of their run; of two for the same run the later one."""
    lines = map(json.loads, file.read_text().splitlines()) if file.exists() else ()
    return {line.pop("run"): Result(**line) for line in lines}


@cache
def config_of(command: str) -> dict[str, Any]:
    """The config.json that `cavalcade train COMMAND` would write."""
    system, environment, *rest = shlex.split(command)
    options, rest = environment_options(rest)
    declared = {**described(Settings), **described(ALGORITHMS[find(system).algorithm])}
    return planned(system, environment, options=options, **given(declared, rest, f"train {system}")).config()


@cache
def commit() -> str:
    """Of this checkout, with `-dirty` if files have changed since."""
    said = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    return said.stdout.strip()
