"""Replay buffers of other libraries under the same workload, run by the Python of their own virtual environment.

python peer_replay.py cpprb|tianshou|sb3 small|frames

64 transitions per insert, prioritised draws of 512 with importance weights, new priorities for what was drawn (SB3 has
uniform draws only). Each library is used as its documentation recommends for this data, with its own way to store
frames once where it has one. Prints `name value unit`.
"""

import resource
import sys
import time

import numpy as np
from workload import BATCH, DRAW, FILLED, SIZES, rate

rng = np.random.default_rng(0)


def data(kind):
    shape, dtype = ((BATCH, 4), np.float32) if kind == "small" else ((BATCH, 4, 84, 84), np.uint8)
    values = rng.standard_normal(shape).astype(dtype) if kind == "small" else rng.integers(0, 255, shape, dtype)
    return values, rng.integers(0, 2, BATCH), np.ones(BATCH, np.float32), np.zeros(BATCH, bool)


def cpprb_buffer(kind):
    import cpprb

    obs, action, reward, done = data(kind)
    scalars = {"act": {"dtype": np.int64}, "rew": {"dtype": np.float32}, "done": {"dtype": np.bool_}}
    if kind == "frames":  # it stacks on the last axis and keeps each frame once
        obs = np.ascontiguousarray(obs.transpose(0, 2, 3, 1))
        fields = {"obs": {"shape": (84, 84, 4), "dtype": np.uint8}, **scalars}
        buffer = cpprb.PrioritizedReplayBuffer(SIZES[kind], fields, next_of="obs", stack_compress="obs")
    else:
        one = {"shape": (4,), "dtype": np.float32}
        buffer = cpprb.PrioritizedReplayBuffer(SIZES[kind], {"obs": one, "next_obs": one, **scalars})
    row = {"obs": obs, "next_obs": obs, "act": action, "rew": reward, "done": done}
    priority = rng.random(DRAW) + 0.01

    def cycle():
        buffer.update_priorities(buffer.sample(DRAW, beta=0.4)["indexes"], priority)

    return lambda: buffer.add(**row), lambda: buffer.sample(DRAW, beta=0.4), cycle


def tianshou_buffer(kind):
    from tianshou.data import Batch, PrioritizedVectorReplayBuffer

    obs, action, reward, done = data(kind)
    buffer = PrioritizedVectorReplayBuffer(SIZES[kind], BATCH, alpha=0.6, beta=0.4)
    row = Batch(obs=obs, obs_next=obs, act=action, rew=reward, terminated=done, truncated=done, done=done, info=Batch())
    which, priority = np.arange(BATCH), rng.random(DRAW) + 0.01

    def cycle():
        _, index = buffer.sample(DRAW)
        buffer.update_weight(index, priority)

    return lambda: buffer.add(row, buffer_ids=which), lambda: buffer.sample(DRAW), cycle


def sb3_buffer(kind):
    from gymnasium import spaces
    from stable_baselines3.common.buffers import ReplayBuffer

    obs, action, reward, done = data(kind)
    box = spaces.Box(0, 255, (4, 84, 84), np.uint8) if kind == "frames" else spaces.Box(-9, 9, (4,), np.float32)
    size = min(SIZES[kind], 30_000) if kind == "frames" else SIZES[kind]
    buffer = ReplayBuffer(size, box, spaces.Discrete(4), "cpu", BATCH, handle_timeout_termination=False)
    infos = [{}] * BATCH
    return lambda: buffer.add(obs, obs, action, reward, done, infos), lambda: buffer.sample(DRAW), None


if __name__ == "__main__":
    library, kind = sys.argv[1:3]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    insert, sample, cycle = {"cpprb": cpprb_buffer, "tianshou": tianshou_buffer, "sb3": sb3_buffer}[library](kind)
    began, filled = time.perf_counter(), 0
    while filled < FILLED[kind] and time.perf_counter() - began < 20:
        insert()
        filled += BATCH
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    if cycle:
        print(f"cycle {rate(cycle, DRAW):.6g} items/s")
    print(f"sample {rate(sample, DRAW):.6g} items/s")
    print(f"insert {rate(insert, BATCH):.6g} items/s")
    print(f"bytes {grown / filled:.6g} B")
