"""Atari from pixels on two cores: one run of each, judged by 30 episodes; writes the table and pictures of the curves.

    make atari                                 everything that is not done, some hours on two cores
    python benchmarks/atari.py --only Pong     runs whose name contains the word
    python benchmarks/atari.py --list          what is done, cut off and left

The network is that of A3C, whose two convolutions have half the filters of the Nature CNN's first two: forward and back
with 32 samples takes 7.5 ms instead of 20 (bare torch, one thread). Pictures of 42x42 would cost a third of that again,
but convolutions of stride 4 leave 3x3 places of them: `ppo` was at -19 after 2,500,000 steps. Runs are in runs/atari;
`job_queue.py` says how they are gone on with.
"""

import sys

from document import write_part, write_table
from job import ROOT, Job
from job_queue import main

from cavalcade.records.plotting import draw_runs

RUNS = ROOT / "runs" / "atari"
HEAD = ("run", "goal", "mean return of 30 episodes", "emulator frames", "hours", "date", "command")
NETWORK = "--convolution shallow --runtime process"
EVALUATIONS = "--evaluations 20 --evaluation-episodes 10"
APEX = f"--runtime process --actors 1 --threads 1 {EVALUATIONS}"  # the rest is its preset
PPO = " ".join(
    (
        "--preset none --actors 1 --envs 8 --threads 1 --unroll 128 --epochs 4 --minibatches-per-epoch 4 --clip 0.1",
        "--learning-rate 5e-4 --entropy-cost 0.01 --no-normalise-rewards --shared",
        EVALUATIONS,
    )
)
GOALS = {  # name: what is wanted (None: as far as it comes), and the command after `cavalcade train`
    "Pong, a value system": (18.0, f"apex-dqn ALE/Pong-v5 --steps 600000 --target 19 {APEX}"),
    "Pong, an actor-critic": (18.0, f"ppo ALE/Pong-v5 --steps 3000000 --target 19 {NETWORK} {PPO}"),
    "Breakout, an actor-critic": (None, f"ppo ALE/Breakout-v5 --steps 3000000 {NETWORK} {PPO}"),
}
JOBS = {name: Job(name, command, 11, RUNS, episodes=30) for name, (_, command) in GOALS.items()}


def line(name: str) -> tuple[str, ...] | None:
    """The cells of a run after its name; None if it is not done."""
    result, (wanted, _) = JOBS[name].result, GOALS[name]
    if result is None or result.mean is None:
        return None
    goal = (
        "as far as it comes" if wanted is None else f"≥ {wanted:g}: {'reached' if result.mean >= wanted else 'MISSED'}"
    )
    score = f"{result.mean:.1f} ({min(result.returns):g} to {max(result.returns):g})"
    return goal, score, f"{4 * result.steps:,}", f"{result.seconds / 3600:.1f}", result.date, f"`{result.command}`"


def write() -> None:
    write_table("Atari", HEAD, [((name,), line(name)) for name in GOALS])
    drawn = []
    for game in ("Pong", "Breakout"):
        done = [(name, job.folder) for name, job in JOBS.items() if name.startswith(game) and job.result and job.begun]
        if done:
            names, folders = zip(*done)
            draw_runs(folders, ROOT / "docs" / f"{game.lower()}.png", labels=names)
            drawn.append(f"![returns on {game} while runs learned]({game.lower()}.png)")
    if drawn:
        write_part("Atari pictures", "\n".join(drawn))


if __name__ == "__main__":
    sys.exit(main(__doc__, list(JOBS.values()), write))
