"""A Ray actor asked for eight actions, one call after another: `.peers/ray/bin/python benchmarks/peer_ray_call.py`.

The request is what an actor with eight CartPoles would send (8 x 16 bytes), the answer eight integers; nothing is
computed. Prints the median time of a call, and the time of one of many that are under way together, which is what it
costs the processes involved.
"""

import logging
import os
import statistics
import time

import numpy as np

CALLS = 2_000

os.environ.update({"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"})
import ray  # noqa: E402 (reads the environment)


@ray.remote(num_cpus=0)
class Server:
    def act(self, obs: np.ndarray) -> np.ndarray:
        return np.zeros(len(obs), np.int64)


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    server, obs, taken = Server.remote(), np.ones((8, 4), np.float32), []
    for _ in range(CALLS):
        began = time.perf_counter()
        ray.get(server.act.remote(obs))
        taken.append(time.perf_counter() - began)
    print(f"call {statistics.median(taken[CALLS // 10 :]):.9f} s")
    began = time.perf_counter()
    ray.get([server.act.remote(obs) for _ in range(CALLS)])
    print(f"call_of_many {(time.perf_counter() - began) / CALLS:.9f} s")
    ray.shutdown()
