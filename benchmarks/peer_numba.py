"""The prioritised tree in numba, to know what C is worth: python peer_numba.py, with the Python of .peers/replay.

The same work as `python benchmarks/table_ours.py tree`: draw 512 of 1,000,000 items with importance weights, then give
those new priorities. Sixteen children to a node, parents summed anew, all in one compiled call.
"""

import time

began = time.perf_counter()
import numba  # noqa: E402
import numpy as np  # noqa: E402
from workload import DRAW, SIZES, rate  # noqa: E402

IMPORTED = time.perf_counter() - began
FAN = 16


def layout(size: int) -> tuple[int, ...]:
    """Where each level begins, leaves first, and the end."""
    offsets, width = [0], -(-size // FAN) * FAN
    while True:
        offsets.append(offsets[-1] + width)
        if width == FAN:
            return tuple(offsets)
        width = -(-(width // FAN) // FAN) * FAN


@numba.njit
def update(tree, offsets, index, priority, exponent):
    for i in range(len(index)):
        node = index[i]
        tree[node] = priority[i] ** exponent
        for level in range(1, len(offsets) - 1):
            node >>= 4
            total = np.float32(0)
            for child in range(16):
                total += tree[offsets[level - 1] + (node << 4) + child]
            tree[offsets[level] + node] = total


@numba.njit
def draw(tree, offsets, index, probability, weight, importance, items):
    top, total, highest = len(offsets) - 2, np.float32(0), 0.0
    for child in range(16):
        total += tree[offsets[top] + child]
    for i in range(len(index)):
        left, node = np.random.random() * total, 0
        for level in range(top, -1, -1):
            base, child = offsets[level] + (node << 4), 0
            while child < 15 and left >= tree[base + child]:
                left -= tree[base + child]
                child += 1
            while child > 0 and tree[base + child] == 0:
                child -= 1
            node = (node << 4) + child
        index[i], probability[i] = node, tree[node] / total
        weight[i] = (items * probability[i]) ** -importance
        highest = max(highest, weight[i])
    for i in range(len(index)):
        weight[i] /= highest


@numba.njit
def cycle(tree, offsets, index, probability, weight, priority, items):
    draw(tree, offsets, index, probability, weight, 0.4, items)
    update(tree, offsets, index, priority, 0.6)


if __name__ == "__main__":
    size, rng = SIZES["small"], np.random.default_rng(0)
    offsets = layout(size)
    tree = np.zeros(offsets[-1], np.float32)
    index, priority = np.zeros(DRAW, np.int64), rng.random(DRAW).astype(np.float32)
    probability, weight = np.zeros(DRAW), np.zeros(DRAW)
    began = time.perf_counter()
    update(tree, offsets, np.arange(size), rng.random(size).astype(np.float32), 0.6)
    cycle(tree, offsets, index, probability, weight, priority, size)
    print(f"import {IMPORTED:.3g} s")
    print(f"compile {time.perf_counter() - began:.3g} s")
    calls = rate(lambda: cycle(tree, offsets, index, probability, weight, priority, size), 1)
    print(f"cycle {1e6 / calls:.4g} us")
