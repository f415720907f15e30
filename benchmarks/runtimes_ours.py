"""Our side of the runtimes' benchmark: python runtimes_ours.py broadcast|request|cartpole|cartpole-wide|pong [20 8]

Prints `name value unit`. What each figure means stands at its function; the numbers are seconds measured and before.
"""

import json
import multiprocessing
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the command line does

import numpy as np

SIZE = 1 << 20  # floats: 4 MB
PERIOD = 0.05  # seconds between two publications: a learner's, whose work in between empties the caches
TIMES = 100
CALLS = 20_000

# As the peers' (peer_async.py): the same networks, environments, unrolls and batches, and learning from every frame
# once. `wide` has the same 1,024 frames an update from more environments and shorter unrolls.
# name -> (command, frames of an environment step, environment steps of an update)
TASKS = {
    "cartpole": ("impala CartPole-v1 --envs 4 --unroll 128 --batch 8 --rows 5000", 1, 1024),
    "cartpole-wide": ("impala CartPole-v1 --envs 32 --unroll 32 --batch 32 --rows 5000", 1, 1024),
    "pong": ("impala ALE/Pong-v5 --envs 8 --unroll 32 --batch 16 --convolution nature --rows 20000", 4, 512),
}
ALL = "--runtime process --actors 2 --steps 20000000 --evaluations 0 --no-anneal --checkpoint-seconds 100000"


def broadcast() -> None:
    """One process publishes 4 MB twenty times a second, another takes each value as soon as it sees the new version; at
    that pace caches are cold. `publish_full` and `fetch_full` are the same calls one after the other without a pause.

    `publish`: the writer's call. `fetch`: the reader's call that brings a copy. `both`: from the beginning of the one
    to the end of the other, the reader looking all the time. `memcpy`: 4 MB into memory that was used before, at the
    same pace.
    """
    from cavalcade.transport.broadcast import Broadcast

    context = multiprocessing.get_context("spawn")
    value = np.random.default_rng(0).random(SIZE, np.float32)
    sender = Broadcast({"vector": value})
    here, there = context.Pipe()
    reader = context.Process(target=fetch, args=(sender.address, there))
    reader.start()
    here.recv()
    published, began, copied, target = [], [], [], np.zeros_like(value)
    for version in range(1, TIMES + 1):
        time.sleep(PERIOD)
        began.append(time.perf_counter())
        sender.publish(version, {"vector": value})
        published.append(time.perf_counter() - began[-1])
        time.sleep(PERIOD)
        start = time.perf_counter()
        np.copyto(target, value)
        copied.append(time.perf_counter() - start)
    fetched, ended, at_once = here.recv()
    reader.join()
    in_a_row = []
    for version in range(TIMES + 1, 2 * TIMES):
        start = time.perf_counter()
        sender.publish(version, {"vector": value})
        in_a_row.append(time.perf_counter() - start)
    sender.close()
    both = [end - start for start, end in zip(began, ended)]
    paced = {"publish": published, "fetch": fetched, "both": both, "memcpy": copied}
    for name, times in {**paced, "publish_full": in_a_row, "fetch_full": at_once}.items():
        print(f"{name} {statistics.median(times[TIMES // 10 :]):.9f} s")


def fetch(address: Any, connection: Any) -> None:
    reader, known, taken, ended = address.connect(), 0, [], []
    connection.send("ready")
    while known < TIMES:
        began = time.perf_counter()
        found = reader.latest(known)
        if found is None:
            time.sleep(20e-6)  # 60 ns of looking; the other core is somebody else's
            continue
        ended.append(time.perf_counter())
        taken.append(ended[-1] - began)
        known = found[0]
    at_once = []
    for _ in range(TIMES):
        began = time.perf_counter()
        reader.latest(-1)
        at_once.append(time.perf_counter() - began)
    connection.send((taken, ended, at_once))


def request_response() -> None:
    """A client in another process asks for eight actions with eight observations of 16 bytes, one call after another;
    the server rests until it is asked and answers at once. The same as peer_ray_call.py."""
    from cavalcade.transport.exchange import Exchange, stacked

    context = multiprocessing.get_context("spawn")
    exchange = Exchange({"obs": np.zeros((8, 4), np.float32)}, {"action": np.zeros(8, np.int64)})
    here, there = context.Pipe()
    client = context.Process(target=ask, args=(exchange.share("client").address, there))
    client.start()
    answers = 0
    while answers < CALLS:
        rung = exchange.bell.rung()
        if desks := exchange.collect(8, 0.0):
            obs = stacked([desk.request for desk in desks])["obs"]
            for desk in desks:
                desk.answer({"action": np.zeros(len(obs), np.int64)})
            answers += len(desks)
        else:
            exchange.bell.rest(rung, 0.01)
    print(f"call {here.recv():.9f} s")
    client.join()
    exchange.close()


def ask(address: Any, connection: Any) -> None:
    client, request, taken = address.connect(), {"obs": np.ones((8, 4), np.float32)}, []
    for _ in range(CALLS):
        began = time.perf_counter()
        client.ask(request)
        taken.append(time.perf_counter() - began)
    connection.send(statistics.median(taken[CALLS // 10 :]))


@contextmanager
def training(command: str) -> Iterator[tuple[subprocess.Popen, Path]]:
    """`cavalcade train` in a process of its own, and its metrics.jsonl; told to stop in the end."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "cavalcade", "train", *command.split(), "--out", f"{folder}/run"]
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            yield process, Path(folder) / "run" / "metrics.jsonl"
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)


def rows(process: subprocess.Popen, metrics: Path) -> Iterator[dict]:
    """Rows as they are written."""
    while not metrics.exists() and process.poll() is None:
        time.sleep(0.01)
    with open(metrics) as file:
        part = ""
        while process.poll() is None:
            part += file.readline()
            if part.endswith("\n"):
                yield json.loads(part)
                part = ""
            else:
                time.sleep(0.01)
    raise SystemExit(f"the run ended: {process.stderr.read()[-2000:] if process.stderr else ''}")


def window(
    process: subprocess.Popen, metrics: Path, seconds: float, before: float, begin: Callable[[], None] = lambda: None
) -> tuple[dict, dict]:
    """The rows at both ends of so many seconds, some time after the first update; `begin` is called at the first."""
    first, start = None, None
    for row in rows(process, metrics):
        if not row.get("updates"):
            continue
        first = first or row
        if row["time"] - first["time"] < before:
            continue
        if start is None:
            start = row
            begin()
        if row["time"] - start["time"] >= seconds:
            return start, row
    raise AssertionError


def frames(task: str, seconds: float, before: float) -> None:
    """Emulator frames/s (on Pong four for each action), over rows of metrics.jsonl: a window that begins some seconds
    after the first update. Also what the roles did with their time, as shares of all processes' time."""
    command, skip, update = TASKS[task]
    with training(f"{command} {ALL}") as (process, metrics):
        start, end = window(process, metrics, seconds, before)
    spent = end["time"] - start["time"]
    print(f"frames {(end['step'] - start['step']) * skip / spent:.1f} frames/s")
    print(f"learned {(end['updates'] - start['updates']) * update * skip / spent:.1f} frames/s")
    print(f"lag {end.get('policy_lag', float('nan')):.2f} updates")
    for name, share in end.items():
        if name.startswith("time_"):
            print(f"{name} {share:.3f} share")


if __name__ == "__main__":
    what, *numbers = sys.argv[1:]
    if what in TASKS:
        frames(what, *map(float, numbers or (20, 8)))
    else:
        {"broadcast": broadcast, "request": request_response}[what]()
