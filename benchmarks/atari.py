"""Atari from pixels on two cores: one run of each, judged by 30 episodes; writes the table and pictures of the curves.

    make atari                                 everything that is not done, some hours on two cores
    python benchmarks/atari.py --only Pong     runs whose name contains the word
    python benchmarks/atari.py --list          what is done, cut off and left

Pictures are 42x42 instead of 84x84: a quarter of the pixels makes an update of the Nature network about seven times
cheaper (12.9 ms instead of 84.6 for a batch of 32, on one busy core), and the ball of Pong is still seen. Runs are in
runs/atari; `job_queue.py` says how they are gone on with.
"""

import sys

from document import write_part, write_table
from job import ROOT, Job
from job_queue import main

from cavalcade.records.plotting import draw_runs

RUNS = ROOT / "runs" / "atari"
HEAD = ("run", "goal", "mean return of 30 episodes", "emulator frames", "hours", "date", "command")
PICTURES = "--option img_height=42 --option img_width=42 --runtime process"
EVALUATIONS = "--evaluations 20 --evaluation-episodes 5"
APEX = " ".join(
    (
        "--actors 1 --envs 4 --threads 1 --replay-size 100000 --replay-start 5000 --batch 32 --update-every 2",
        "--updates-per-draw 4 --target-period 1000 --pull-every 25 --optimiser-name adam --learning-rate 2.5e-4",
        "--optimiser-epsilon 1.5e-4 --max-gradient-norm 10",
        EVALUATIONS,
    )
)
PPO = " ".join(
    (
        "--preset none --actors 2 --envs 4 --threads 2 --unroll 128 --epochs 4 --minibatches-per-epoch 4 --clip 0.2",
        "--learning-rate 1e-3 --entropy-cost 0.01 --no-normalise-rewards",
        EVALUATIONS,
    )
)
GOALS = {  # name: what is wanted (None: as far as it comes), and the command after `cavalcade train`
    "Pong, a value system": (18.0, f"apex-dqn ALE/Pong-v5 --steps 500000 {PICTURES} {APEX}"),
    "Pong, an actor-critic": (18.0, f"ppo ALE/Pong-v5 --steps 2500000 {PICTURES} {PPO}"),
    "Breakout, an actor-critic": (None, f"ppo ALE/Breakout-v5 --steps 2500000 {PICTURES} {PPO}"),
}
JOBS = {name: Job(name, command, 10, RUNS, episodes=30) for name, (_, command) in GOALS.items()}


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
        done = [(name, job.folder) for name, job in JOBS.items() if name.startswith(game) and job.result]
        if done:
            names, folders = zip(*done)
            draw_runs(folders, ROOT / "docs" / f"{game.lower()}.png", labels=names)
            drawn.append(f"![returns on {game} while runs learned]({game.lower()}.png)")
    if drawn:
        write_part("Atari pictures", "\n".join(drawn))


if __name__ == "__main__":
    sys.exit(main(__doc__, list(JOBS.values()), write))
