"""A queue of jobs: what is done is skipped, what was cut off is gone on with, everything else is trained and judged.

    python benchmarks/tasks.py                    go on with the queue
    python benchmarks/tasks.py --parallel 2       on two cores; a run of several processes has both
    python benchmarks/tasks.py --only LunarLander jobs whose name contains the word
    python benchmarks/tasks.py --list             the state of every job, and how long the rest may take
    python benchmarks/tasks.py --table            write what is known into the docs, run nothing

Ctrl-C or SIGTERM ends the running jobs after a checkpoint; the same command goes on. A job that fails is told of, and
the others go on. To have a run made again, delete its folder and its line in docs/scores.
"""

import argparse
import fcntl
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from job import ROOT, Job

from cavalcade.records import duration, score
from cavalcade.runs.interruption import Interruption

PATIENCE = 180.0  # seconds that a job has for its last checkpoint
TOLD = 1_500  # characters of the log of a job that failed
CORES = 2  # of a run of several processes, and of the machine for which time is estimated


class Taken(Exception):
    """Another queue is at this job, or a run that such a queue has left behind."""


class Running:
    """A job that is being trained, then judged. While a process of it lives, its log is locked: nobody else begins."""

    def __init__(self, job: Job, cores: int, alone: bool):
        """`cores`: how many of the queue's it has. `alone`: nothing runs beside it, so it may use all threads."""
        self.job, self.cores, self.threads = job, cores, 0 if alone else 1
        self.judging, self.stopped_at = False, 0.0  # a time of the monotonic clock; 0: nobody has asked it to stop
        job.root.mkdir(parents=True, exist_ok=True)
        self.log = job.log.open("a")
        try:
            fcntl.flock(self.log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.log.close()
            raise Taken from None
        self._start(job.train_command(self.threads), self.log)

    def _start(self, command: list[str], out: object) -> None:
        """In a group of its own, which Ctrl-C does not reach: the queue passes it on."""
        limits = {"OMP_NUM_THREADS": str(self.threads)} if self.threads else {}
        self.process = subprocess.Popen(
            command, stdout=out, stderr=self.log, text=True, cwd=ROOT, env={**os.environ, **limits}, process_group=0
        )

    def advance(self) -> str | None:
        """Go on if a command has ended; a sentence once nothing more runs, None before."""
        if self.process.poll() is None:
            if self.stopped_at and time.monotonic() > self.stopped_at + PATIENCE:
                os.killpg(self.process.pid, signal.SIGKILL)
            return None
        code, printed = self.process.returncode, self.process.communicate()[0]
        if not self.stopped_at and not code and not self.judging and self.job.trained and self.job.episodes:
            self.judging = True
            self._start(self.job.judge_command(), subprocess.PIPE)
            return None
        self.log.close()
        return self._ended(code, printed)

    def _ended(self, code: int, printed: str | None) -> str:
        job = self.job
        if code == 0 and job.trained and (self.judging or not job.episodes):
            result = job.finish(json.loads(printed) if printed else {})
            reached = f"score {score(result.mean)}" if result.mean is not None else "done"
            return f"{reached} after {result.steps:,} steps in {duration(result.seconds)}"
        if self.stopped_at or code == 0:  # or somebody else has stopped the run
            done, steps = job.steps
            return f"stopped at step {done:,} of {steps:,}"
        return f"FAILED with exit code {code}; the end of {job.log}:\n{job.log.read_text()[-TOLD:]}"

    def stop(self) -> None:
        """Ask it to end; it writes a checkpoint first."""
        if not self.stopped_at:
            self.stopped_at = time.monotonic()
            self.process.terminate()

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def work(jobs: Sequence[Job], parallel: int = 1) -> int:
    """Bring all jobs as far as they come on `parallel` cores; an exit code: 130 if stopped, 1 if a job is not done."""
    undone = [job for job in jobs if not job.result]
    waiting = _unlike(undone)
    active: list[Running] = []
    print(f"{len(jobs) - len(undone)} of {len(jobs)} jobs are done", flush=True)
    with Interruption() as interruption:
        try:
            while active or (waiting and not interruption.asked):
                if not interruption.asked:
                    _begin(waiting, active, parallel)
                for running in list(active):
                    if interruption.asked:
                        running.stop()
                    if ended := running.advance():
                        active.remove(running)
                        print(f"{_clock()} {_named(running.job)}: {ended}", flush=True)
                time.sleep(0.05)
        except KeyboardInterrupt:  # a second Ctrl-C
            for running in active:
                running.kill()
    return 130 if interruption.asked else int(any(job.result is None for job in jobs))


def _begin(waiting: list[Job], active: list[Running], parallel: int) -> None:
    """Start the first of the waiting jobs that fit beside the active ones."""
    for job in list(waiting):
        cores = min(parallel, CORES if job.processes else 1)
        if sum(running.cores for running in active) + cores > parallel:
            continue
        waiting.remove(job)
        goes_on = f", going on from step {job.steps[0]:,}" if job.begun else ""
        try:
            active.append(Running(job, cores, alone=parallel == 1))
            print(f"{_clock()} {_named(job)} begins{goes_on}", flush=True)
        except Taken:
            print(f"{_clock()} {_named(job)} is being run by somebody else", flush=True)


def _unlike(jobs: Sequence[Job]) -> list[Job]:
    """One job of each folder, the first: equal settings are run once."""
    found: dict[Path, Job] = {}
    for job in jobs:
        found.setdefault(job.folder, job)
    return list(found.values())


def _named(job: Job) -> str:
    return f"{job.label} seed {job.seed}"


def _clock() -> str:
    return time.strftime("%H:%M:%S")


def show(jobs: Sequence[Job]) -> None:
    """The state of every job, and the hours that are left and that all take on two cores, as estimated."""
    for job in jobs:
        done, steps = job.steps
        if result := job.result:
            state = f"done {result.date}, {score(result.mean) if result.mean is not None else 'not judged'}"
            state += f" in {duration(result.seconds)}"
        elif job.begun:
            state = f"cut off at {done:,} of {steps:,} steps"
        else:
            state = f"to do, {steps:,} steps" + (f", about {duration(job.expected)}" if job.expected else "")
        print(f"{_named(job):<52} {state}  [{job.folder.name}]")
    print(f"{len(jobs)} jobs in {len(_unlike(jobs))} runs", end="")
    if whole := hours(jobs):
        left = hours([job for job in jobs if not job.result])
        print(f": about {whole:.1f} hours on {CORES} cores, of which at most {left:.1f} are left", end="")
    print()


def hours(jobs: Sequence[Job]) -> float:
    """What the jobs take on a machine of two cores, estimated; equal settings once."""
    return sum(job.expected * (CORES if job.processes else 1) for job in _unlike(jobs)) / CORES / 3600


def main(about: str | None, jobs: Sequence[Job], write: Callable[[], None]) -> int:
    """The command line of a queue; an exit code. `write` puts what is known of all jobs into the docs."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="WORD", help="jobs whose name contains this")
    parser.add_argument("--parallel", type=int, default=1, metavar="N", help="cores that jobs share, one each")
    parser.add_argument("--list", action="store_true", help="print the state of every job and run nothing")
    parser.add_argument("--table", action="store_true", help="write what is known and run nothing")
    given = parser.parse_args()
    if given.parallel < 1:
        parser.error("--parallel has to be at least 1.")
    chosen = [job for job in jobs if given.only in _named(job)]
    if not chosen:
        parser.error(f"no job's name contains '{given.only}'; --list shows them all.")
    for job in chosen:
        if job.refusal:
            print(f"{_named(job)} is left out: {job.refusal}", flush=True)
    able = [job for job in chosen if not job.refusal]
    if given.list:
        show(able)
        return 0
    code = 0 if given.table else work(able, given.parallel)
    write()
    return code or int(len(able) < len(chosen))
