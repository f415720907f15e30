"""A bare loop of PPO's arithmetic over an environment that is vectorised by itself: what there is to be reached.

    python benchmarks/vector_bare.py torch 2 16 8    (backend, threads, steps of each environment per batch, batches)

No table, no report, no check, nothing that could be exchanged: act, step, and per batch generalised advantages and 4
epochs of 4 minibatches of the clipped surrogate, two networks of 64x64 with tanh, Adam, gradients clipped.
`vector.py` compares it with ours.
"""

import os
import sys
import time
from itertools import pairwise

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as ours has it: else other work on the machine slows it tenfold

import numpy as np

ENVIRONMENTS, EPOCHS, MINIBATCHES = 2_048, 4, 4
DISCOUNT, LAMBDA, CLIP, NORM, RATE, EPSILON = 0.99, 0.95, 0.2, 0.5, 1e-3, 1e-5
SIZES = {"policy": (4, 64, 64, 2), "value": (4, 64, 64, 1)}


def environment():
    import gymnasium

    return gymnasium.make_vec("CartPole-v1", num_envs=ENVIRONMENTS, vectorization_mode="vector_entry_point")


def initial(rng):
    """{network: [(weight, bias), ...]} in float32."""
    return {
        name: [
            (rng.normal(0.0, a**-0.5, (a, b)).astype(np.float32), np.zeros(b, np.float32)) for a, b in pairwise(sizes)
        ]
        for name, sizes in SIZES.items()
    }


def logits(layers, x):
    for weight, bias in layers[:-1]:
        x = np.tanh(x @ weight + bias)
    weight, bias = layers[-1]
    return x @ weight + bias


def advantages(reward, going, ended, values):
    """[T, N] by GAE; `going` is 0 after a true end, `ended` 1 where another episode follows."""
    found, later = np.empty_like(reward), np.zeros_like(reward[0])
    for t in reversed(range(len(reward))):
        error = reward[t] + DISCOUNT * going[t] * values[t + 1] - values[t]
        later = found[t] = error + DISCOUNT * LAMBDA * (1.0 - ended[t]) * later
    return found


class Torch:
    def __init__(self, threads):
        import torch

        torch.set_num_threads(threads)
        self.torch = torch
        self.layers = initial(np.random.default_rng(0))
        self.tensors = {
            name: [[torch.from_numpy(x).requires_grad_() for x in layer] for layer in layers]
            for name, layers in self.layers.items()  # the same memory: acting in NumPy sees the new parameters
        }
        self.params = [x for layers in self.tensors.values() for layer in layers for x in layer]
        self.optimiser = torch.optim.Adam(self.params, RATE, eps=EPSILON, fused=True)

    def network(self, name, x):
        torch, layers = self.torch, self.tensors[name]
        for weight, bias in layers[:-1]:
            x = torch.tanh(torch.addmm(bias, x, weight))
        weight, bias = layers[-1]
        return torch.addmm(bias, x, weight)

    def values(self, obs):
        with self.torch.no_grad():
            return self.network("value", self.torch.from_numpy(obs))[:, 0].numpy()

    def learn(self, batch, indices):
        torch = self.torch
        batch = {name: torch.from_numpy(array) for name, array in batch.items()}
        for index in torch.from_numpy(indices):
            obs, action, old, advantage, goal = (x.index_select(0, index) for x in batch.values())
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            log_prob = torch.log_softmax(self.network("policy", obs), -1).gather(1, action[:, None])[:, 0]
            ratio = torch.exp(log_prob - old)
            surrogate = torch.minimum(ratio * advantage, ratio.clamp(1.0 - CLIP, 1.0 + CLIP) * advantage)
            error = self.network("value", obs)[:, 0] - goal
            loss = 0.5 * (error * error).mean() - surrogate.mean()
            self.optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.params, NORM)
            self.optimiser.step()


class Jax:
    def __init__(self, threads):
        import jax
        import optax

        self.jax = jax
        self.params = self.layers = initial(np.random.default_rng(0))
        rule = optax.chain(optax.clip_by_global_norm(NORM), optax.adam(RATE, eps=EPSILON))
        self.state = rule.init(self.params)
        numpy = jax.numpy

        def network(layers, x):
            for weight, bias in layers[:-1]:
                x = numpy.tanh(x @ weight + bias)
            return x @ layers[-1][0] + layers[-1][1]

        def loss(params, batch):
            advantage = batch["advantage"]
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            chosen = jax.nn.one_hot(batch["action"], 2)
            log_prob = (jax.nn.log_softmax(network(params["policy"], batch["obs"])) * chosen).sum(-1)
            ratio = numpy.exp(log_prob - batch["old"])
            surrogate = numpy.minimum(ratio * advantage, numpy.clip(ratio, 1.0 - CLIP, 1.0 + CLIP) * advantage)
            error = network(params["value"], batch["obs"])[:, 0] - batch["goal"]
            return 0.5 * (error * error).mean() - surrogate.mean()

        def learn(params, state, batch, indices):
            def update(carry, index):
                params, state = carry
                gradient = jax.grad(loss)(params, {name: x[index] for name, x in batch.items()})
                moves, state = rule.update(gradient, state)
                return (optax.apply_updates(params, moves), state), None

            return jax.lax.scan(update, (params, state), indices)[0]

        self.compiled = jax.jit(learn)
        self.value = jax.jit(lambda params, obs: network(params["value"], obs)[:, 0])

    def values(self, obs):
        return np.asarray(self.value(self.params, obs))

    def learn(self, batch, indices):
        self.params, self.state = self.compiled(self.params, self.state, batch, indices)
        self.layers = self.jax.tree.map(np.asarray, self.params)


class Batch:
    """The steps of all environments between two times of learning."""

    def __init__(self, unroll, obs):
        shape = (unroll, ENVIRONMENTS)
        self.unroll, self.rows = unroll, np.arange(ENVIRONMENTS)
        self.seen = np.empty((unroll + 1, *obs.shape), np.float32)
        self.action = np.empty(shape, np.int64)
        self.old, self.reward, self.going, self.ended = (np.empty(shape, np.float32) for _ in range(4))

    def gather(self, layers, envs, obs, rng):
        """Fill it; gives the observations after it."""
        for t in range(self.unroll):
            self.seen[t] = obs
            found = logits(layers, self.seen[t])
            action = np.argmax(found - np.log(rng.standard_exponential(found.shape, np.float32)), -1)
            found -= found.max(-1, keepdims=True)
            self.action[t] = action
            self.old[t] = found[self.rows, action] - np.log(np.exp(found).sum(-1))
            obs, self.reward[t], terminated, truncated, _ = envs.step(action)
            self.going[t], self.ended[t] = ~terminated, terminated | truncated
        self.seen[-1] = obs
        return obs

    def samples(self, values_of):
        """All steps [T * N, ...] in the order in which `learn` reads them."""
        values = values_of(self.seen.reshape(-1, self.seen.shape[-1])).reshape(self.unroll + 1, -1)
        advantage = advantages(self.reward, self.going, self.ended, values)
        named = {"obs": self.seen[:-1], "action": self.action, "old": self.old, "advantage": advantage}
        named["goal"] = advantage + values[:-1]
        return {name: x.reshape(-1, *x.shape[2:]) for name, x in named.items()}


def speed(backend, threads, unroll, batches):
    """Steps/s over `batches` of `unroll` steps of all environments, after two that are not counted."""
    learner, rng, envs = {"torch": Torch, "jax": Jax}[backend](threads), np.random.default_rng(0), environment()
    obs, _ = envs.reset(seed=0)
    batch, steps, began = Batch(unroll, obs), ENVIRONMENTS * unroll, 0.0
    for number in range(batches + 2):
        if number == 2:
            began = time.perf_counter()
        obs = batch.gather(learner.layers["policy"], envs, obs, rng)
        samples = batch.samples(learner.values)
        order = np.concatenate([rng.permutation(steps).reshape(MINIBATCHES, -1) for _ in range(EPOCHS)])
        learner.learn(samples, order)
    return batches * steps / (time.perf_counter() - began)


if __name__ == "__main__":
    backend, threads, unroll, batches = sys.argv[1], *map(int, sys.argv[2:])
    print(speed(backend, threads, unroll, batches))
