"""The terms of the losses of DDPG, TD3, SAC and MPO in numbers done by hand, and what an update leaves untouched."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from cavalcade.algorithms.ddpg import DDPG
from cavalcade.algorithms.mpo import MPO
from cavalcade.algorithms.sac import SAC
from cavalcade.backends.numpy_backend import acting
from cavalcade.specs import EnvSpec, Leaf
from tests.helpers.continuous import by_part, drawn, first_row, moved, parts_of

BOX = Leaf("box", (2,), "float32", low=(-1.0, -1.0), high=(1.0, 1.0))
SPEC = EnvSpec("Some-v0", Leaf("box", (1,), "float32", low=(-1.0,), high=(1.0,)), BOX)
SAMPLES = {"reward": np.float32([1, 2, 3]), "discount": np.float32([0.9, 0.5, 0.0])}


def f(*numbers: Any) -> np.ndarray:
    return np.array(numbers, np.float32)


# --- critics ------------------------------------------------------------------------------------------------------


def test_the_lower_of_two_critics_counts(on: Any) -> None:
    def lower(xp: Any, one: Any, other: Any) -> Any:
        return SAC().after(xp, [one, other])

    np.testing.assert_array_equal(on(lower, f([1], [5], [-2]), f([3], [4], [-1])), [1, 4, -2])


def test_of_two_distributions_the_one_with_the_lower_mean_counts(on: Any) -> None:
    algorithm = DDPG(twin=True, atoms=3, value_low=-1.0, value_high=1.0)

    def lower(xp: Any, one: Any, other: Any) -> Any:
        return algorithm.after(xp, [one, other])

    one, other = f([1, 1, 2], [8, 1, 1]), f([2, 1, 1], [1, 1, 8])  # means 1/4, -7/10; -1/4, 7/10
    np.testing.assert_allclose(on(lower, np.log(one), np.log(other)), [[0.5, 0.25, 0.25], [0.8, 0.1, 0.1]], rtol=1e-5)


def test_the_loss_of_the_critics_by_hand(on: Any) -> None:
    def numbers(
        xp: Any, one: Any, other: Any, after: Any, bonus: Any, reward: Any, discount: Any, weight: Any
    ) -> tuple:
        samples = {"reward": reward, "discount": discount, "weight": weight}
        loss, metrics, priority = SAC().critic_loss(xp, [one, other], after, samples, bonus)
        return loss, metrics["error"], priority

    # targets 1 + .9 (2 + 1) = 3.7, 2 + .5 (4 - 2) = 3, 3; errors of the first 1.7, 0, -1, of the second .7, 3, 0
    arrays = f([2], [3], [4]), f([3], [0], [3]), f(2, 4, 9), f(1, -2, 7), *SAMPLES.values(), f(1, 0.5, 2)
    loss, error, priority = on(numbers, *arrays)
    assert loss == pytest.approx((0.5 * (1.7**2 + 0.7**2) + 0.5 * 0.5 * 9 + 2 * 0.5) / 3, rel=1e-5)
    assert error == pytest.approx(2.7 / 3, rel=1e-5)
    np.testing.assert_allclose(priority, [1.7 + 1e-6, 1e-6, 1 + 1e-6], rtol=1e-5)


def test_an_entropy_moves_the_atoms_of_a_target(on: Any) -> None:
    algorithm = SAC(atoms=3, value_low=-1.0, value_high=1.0, twin=False)

    def numbers(xp: Any, output: Any, after: Any, bonus: Any, reward: Any, discount: Any) -> tuple:
        loss, metrics, _ = algorithm.critic_loss(xp, [output], after, {"reward": reward, "discount": discount}, bonus)
        return loss, metrics["outside_support"]

    # all on atom 0; 0.25 + 0.5 (0 + 0.5) = 0.5, half to 0 and half to 1; and 3.0 alone, outside, to 1
    loss, outside = on(numbers, np.zeros((2, 3), "f4"), f([0, 1, 0], [0, 1, 0]), f(0.5, 7), f(0.25, 3), f(0.5, 0))
    assert loss == pytest.approx(math.log(3.0), rel=1e-6) and outside == 0.5


# --- DDPG and TD3 -------------------------------------------------------------------------------------------------


def test_noise_on_the_actions_of_the_target_is_bounded() -> None:
    """Of what the critics are asked about: at most 0.3 from the policy's action, and in the box."""
    made = parts_of("td3", "numpy", smoothing=5.0, smoothing_bound=0.3)
    asked: list[np.ndarray] = []

    def target(obs: Any, heads: Any, inputs: Any = None, freeze: Any = ()) -> tuple[dict, None]:
        if heads == ("policy",):
            return {"policy": np.linspace(-3.0, 3.0, len(obs), dtype=np.float32)[:, None]}, None
        asked.append(inputs["action"])
        return dict.fromkeys(heads, inputs["action"]), None

    noise = made.algorithm.learning_noise(made.spec, np.random.default_rng(0), np.zeros((1, 1_000), int))
    after = made.algorithm._after(
        acting, target, np.zeros((1_000, 3), np.float32), {"smoothing": noise["smoothing"][0]}
    )
    policy = np.tanh(np.linspace(-3.0, 3.0, 1_000))
    away = asked[0][:, 0] - policy
    assert np.abs(away).max() == pytest.approx(0.3, abs=1e-6) and np.abs(asked[0]).max() == 1.0
    assert (np.abs(away) > 0.299).mean() > 0.5 and after.shape == (1_000,)  # the rest meets the edge of the box


@pytest.mark.parametrize("backend", ["torch", "numpy"])
def test_between_delayed_updates_policy_moments_and_targets_stay(backend: str) -> None:
    made = parts_of("td3", backend, policy_every=3, target_period=2)
    learner, states = made.learner(), []
    for seed in range(12):
        states.append(learner.state()["state"])
        learner.update(drawn(made, seed))
    states.append(learner.state()["state"])
    group = next(str(n) for n, cut in enumerate(learner.rule.cuts) if cut.group == "policy")
    for update, (before, after) in enumerate(pairwise(states), 1):
        old, new = (by_part(learner, state["params"]) for state in (before, after))
        assert np.array_equal(old["policy"], new["policy"]) == (update % 3 != 0), update
        assert not np.array_equal(old["critic"], new["critic"]) and not np.array_equal(
            *(s["second_critic"] for s in (old, new))
        )
        assert np.array_equal(before["target"], after["target"]) == (update % 6 != 0), update
        kept = [np.concatenate([np.ravel(x) for x in s["optimiser"][group].values()]) for s in (before, after)]
        assert np.array_equal(*kept) == (update % 3 != 0), update
        if update % 6 == 0:
            wanted = before["target"] + 0.005 * (after["params"] - before["target"])
            np.testing.assert_allclose(after["target"], wanted, atol=1e-6)


@pytest.mark.parametrize("bound", [0.0, 0.05])
def test_each_entry_of_the_critics_gradient_by_the_action_is_bounded(bound: float, gradient_of: Any) -> None:
    """The policy is a number x [B, 2] before tanh; critics give 3 a_0^2 - 0.02 a_1. By hand: -clip(dQ/da) (1 - a^2) / B
    with dQ/da = 6 a_0 and -0.02."""
    algorithm, rng = DDPG(action_gradient_bound=bound), np.random.default_rng(0)
    x = rng.standard_normal((4, 2)).astype(np.float32)

    def loss(xp: Any, x: Any) -> Any:
        def forward(obs: Any, heads: Any, inputs: Any = None, freeze: Any = ()) -> tuple[dict, None]:
            if heads == ("policy",):
                return {"policy": x}, None
            a = inputs["action"]
            return {"critic": 3.0 * xp.square(a[..., :1]) - 0.02 * a[..., 1:]}, None

        samples = {"obs": x, "next_obs": x, "action": xp.zeros((4, 2)), "reward": xp.zeros(4), "discount": xp.zeros(4)}
        return algorithm.loss(xp, SPEC, forward, forward, samples, {}, {}).value

    action = np.tanh(np.float64(x))
    slope = np.stack([6.0 * action[:, 0], np.full(4, -0.02)], -1)
    clipped = np.clip(slope, -bound, bound) if bound else slope
    assert not bound or (np.abs(clipped) < np.abs(slope)).sum() == 4
    np.testing.assert_allclose(gradient_of(loss, x), -clipped * (1.0 - action**2) / 4, atol=1e-6)


# --- SAC ----------------------------------------------------------------------------------------------------------


def entropy_after(case: str, updates: int, **settings: Any) -> tuple[float, float, float]:
    """The mean entropy of the last updates, the wanted one and the temperature, of a problem that never changes."""
    made = parts_of(case, "torch", learning_rate=1e-2, **settings)
    learner, items = made.learner(), drawn(made)
    found = [learner.update(items) for _ in range(updates)]
    last = np.mean([metrics["entropy"] for metrics in found[-100:]])
    return float(last), made.algorithm.entropy_goal(made.spec), found[-1]["temperature"]


@pytest.mark.parametrize("case, settings", [("sac", {}), ("sac", {"wanted_entropy": 0.2}), ("sac, discrete", {})])
def test_the_temperature_drives_the_entropy_to_the_wanted_one(case: str, settings: dict) -> None:
    entropy, wanted, temperature = entropy_after(case, 800, batch=64, temperature=0.1, **settings)
    assert wanted == settings.get("wanted_entropy", -1.0 if case == "sac" else 0.3 * math.log(2.0))
    assert entropy == pytest.approx(wanted, abs=0.15) and 0.0 < temperature < 10.0


def test_a_temperature_that_is_not_learned_stays() -> None:
    *_, temperature = entropy_after("sac", 50, temperature=0.25, learned_temperature=False)
    assert temperature == pytest.approx(0.25)


# --- MPO ----------------------------------------------------------------------------------------------------------


def test_the_policy_and_the_duals_of_mpo_have_their_gradients_apart(gradient_of: Any) -> None:
    """By hand, at 2 states with 3 actions of 2 entries. The mean learns by the deviation of the target policy and the
    deviation by its mean; prices see divergences as constants, and the policy sees prices as constants."""
    algorithm, rng = MPO(epsilon_mean=0.01, epsilon_deviation=0.02, sampled_actions=3), np.random.default_rng(1)
    policy = rng.standard_normal((2, 4)).astype(np.float32)
    duals = f(1.0, 0.5, 2.0, -1.0, 0.3, 3.0)  # temperatures, prices of the means, of the deviations
    old = {"mean": rng.standard_normal((2, 2)), "std": rng.uniform(0.5, 1.0, (2, 2))}
    actions, values = 1.5 * rng.standard_normal((3, 2, 2)), rng.standard_normal((3, 2))
    x = np.concatenate([policy.ravel(), duals])

    def loss(xp: Any, x: Any, mean: Any, std: Any, actions: Any, values: Any) -> Any:
        rows = xp.broadcast_to(x[8:], (2, 6))
        found = {"policy": xp.reshape(x[:8], (2, 4)), "temperatures": rows[:, :2]}
        found |= {"price_mean": rows[:, 2:4], "price_deviation": rows[:, 4:]}
        forward = lambda obs, heads, freeze: (found, None)  # noqa: E731
        return algorithm._policy_loss(xp, forward, x, {"mean": mean, "std": std}, actions, values)[0]

    given = (old["mean"], old["std"], actions, values)
    gradient = gradient_of(loss, x, *(each.astype(np.float32) for each in given))

    def soft(x: Any) -> Any:
        return np.log1p(np.exp(x))

    def weights(values: np.ndarray, temperature: float) -> np.ndarray:
        raised = np.exp(values / temperature)
        return raised / raised.sum(0)

    temperatures, mean_price, std_price = soft(duals[:2]), soft(duals[2:4]), soft(duals[4:])
    cost = -np.linalg.norm(actions - np.clip(actions, -1.0, 1.0), axis=-1)
    each = [weights(values, temperatures[0]), weights(cost, temperatures[1])]
    q = (each[0] + each[1])[..., None]
    mean, std = policy[:, :2], soft(policy[:, 2:]) * 0.5 / math.log(2.0) + 1e-6
    by_mean = -(q * (actions - mean) / old["std"] ** 2).sum(0) + mean_price * (mean - old["mean"]) / old["std"] ** 2
    by_std = -(q * ((actions - old["mean"]) ** 2 / std**3 - 1.0 / std)).sum(0)
    by_std += std_price * (1.0 / std - old["std"] ** 2 / std**3)
    inner = 0.5 / math.log(2.0) / (1.0 + np.exp(-policy[:, 2:]))  # d std / d what the head gives
    np.testing.assert_allclose(gradient[:8].reshape(2, 4), np.concatenate([by_mean, by_std * inner], -1) / 2, rtol=2e-4)
    slopes = 1.0 / (1.0 + np.exp(-duals))
    kls = [(w * np.log(3.0 * w)).sum(0).mean() for w in each]
    kl_mean = (0.5 * ((mean - old["mean"]) / old["std"]) ** 2).mean(0)
    kl_std = (np.log(std / old["std"]) + 0.5 * (old["std"] / std) ** 2 - 0.5).mean(0)
    excess = np.concatenate([[0.1 - kls[0], 1e-3 - kls[1]], 0.01 - kl_mean, 0.02 - kl_std])
    np.testing.assert_allclose(gradient[8:], excess * slopes, rtol=2e-4, atol=1e-6)


def test_the_duals_of_mpo_change_nothing_in_the_critics() -> None:
    made = parts_of("mpo")
    learner = moved(made.learner())
    samples, row = first_row(learner, drawn(made))
    one = by_part(learner, learner.gradients(samples, row)[0])
    kept = learner.state()
    places = by_part(learner, np.arange(learner.layout.size))
    for name in ("temperatures", "price_mean", "price_deviation"):
        kept["state"]["params"][places[name]] -= 1.0
    learner.restore(kept)
    other = by_part(learner, learner.gradients(samples, row)[0])
    assert np.array_equal(one["critic"], other["critic"]) and not np.array_equal(one["policy"], other["policy"])


def test_targets_of_mpo_are_means_over_clipped_actions_of_the_target_policy(on: Any) -> None:
    """The target policy has a mean of 0.5 and a deviation of 1; the target critics give 10 a, the others 0. With noise
    of 0.25, -3 and 1 actions are 0.75, -2.5 -> -1 and 1.5 -> 1, whose mean is 0.25."""
    algorithm = MPO(sampled_actions=3, initial_deviation=math.log(2.0), epsilon_penalty=0.0)  # then std is softplus
    spec = EnvSpec("Some-v0", SPEC.observation, Leaf("box", (1,), "float32", low=(-1.0,), high=(1.0,)))

    def numbers(xp: Any, policy: Any, noise: Any, zeros: Any, reward: Any, discount: Any) -> Any:
        def network(value: float) -> Any:
            def forward(obs: Any, heads: Any, inputs: Any = None, freeze: Any = ()) -> tuple[dict, None]:
                if heads == ("critic",):
                    return {"critic": value * inputs["action"]}, None
                duals = {name: xp.zeros((2, 2 if name == "temperatures" else 1)) for name in heads}
                return {**duals, "policy": policy}, None

            return forward

        samples = {"obs": zeros, "next_obs": zeros, "action": zeros, "reward": reward, "discount": discount}
        return algorithm.loss(xp, spec, network(0.0), network(10.0), samples, {"actions": noise}, {}).metrics["loss"]

    policy = np.tile(f(0.5, math.log(math.e - 1.0)), (2, 1))  # softplus of the second is 1
    noise = np.tile(f(0.25, -3.0, 1.0)[:, None, None], (1, 2, 1))
    loss = on(numbers, policy, noise, np.zeros((2, 1), np.float32), f(1, 2), f(0.4, 0))
    assert loss == pytest.approx(0.5 * (2.0**2 + 2.0**2) / 2, rel=1e-4)  # 1 + 0.4 * 2.5, and 2


def test_the_gradient_of_a_policy_is_clipped_by_itself() -> None:
    """As in Acme: critics with a long gradient leave the policy's as it is."""
    learner = parts_of("mpo").learner()
    places = by_part(learner, np.arange(learner.layout.size))
    gradient = np.zeros(learner.layout.size, np.float32)
    gradient[places["critic"][0]], gradient[places["policy"][0]] = 4_000.0, 30.0
    clipped, _ = learner.clipped(gradient)
    assert clipped[places["critic"][0]] == pytest.approx(40.0) and clipped[places["policy"][0]] == 30.0
