"""What the paper of V-trace claims (Espeholt 2018, section 4.1), exactly on a small decision process: rho-bar decides
which policy's values are the fixed point, c-bar only how fast it is reached. Expectations are sums over all
trajectories, each weighted by its probability: nothing is sampled."""

from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest

from cavalcade.ops.returns import vtrace

STATES, ACTIONS, STEPS, GAMMA = 2, 2, 3, 0.9
LEADS = np.array([[[0.9, 0.1], [0.2, 0.8]], [[0.5, 0.5], [0.1, 0.9]]])  # [state, action, next state]
REWARD = np.array([[1.0, -2.0], [0.5, 3.0]])  # [state, action]
MU = np.array([[0.7, 0.3], [0.5, 0.5]])  # [state, action], of the policy that acted
PI = np.array([[0.1, 0.9], [0.8, 0.2]])  # the same, of the learner: ratios 1/7, 3, 8/5 and 2/5

# all trajectories of STEPS actions: states [T + 1, N], actions [T, N], and their probability given the first state [N]
ALL = np.array(list(product(*[range(STATES)] * (STEPS + 1), *[range(ACTIONS)] * STEPS))).T
STATE, ACTION = ALL[: STEPS + 1], ALL[STEPS + 1 :]
PROBABILITY = np.prod(MU[STATE[:-1], ACTION] * LEADS[STATE[:-1], ACTION, STATE[1:]], axis=0)


def between(rho_bar: float) -> np.ndarray:
    """The policy [state, action] in proportion to min(rho_bar mu, pi): equation (3) of the paper."""
    weight = np.minimum(rho_bar * MU, PI)
    return weight / weight.sum(1, keepdims=True)


def values_of(policy: np.ndarray) -> np.ndarray:
    """[state], by solving Bellman's equation of the policy."""
    chain = np.einsum("sa,sat->st", policy, LEADS)
    return np.linalg.solve(np.eye(STATES) - GAMMA * chain, (policy * REWARD).sum(1))


def expected(on: Any, values: np.ndarray, rho_bar: float, c_bar: float) -> np.ndarray:
    """[state]: the mean of V-trace's first target over all trajectories from a state, from these values [state]."""
    arrays = (REWARD[STATE[:-1], ACTION], np.full(ACTION.shape, GAMMA), values[STATE], np.ones(ACTION.shape))
    log_rho = np.log(PI / MU)[STATE[:-1], ACTION]
    given = [np.asarray(array, np.float32) for array in (*arrays, log_rho)]
    goal = on(vtrace, *given, rho_bar=rho_bar, c_bar=c_bar)[0][0].astype(np.float64)
    return np.array([PROBABILITY[STATE[0] == state] @ goal[STATE[0] == state] for state in range(STATES)])


def line(on: Any, rho_bar: float, c_bar: float) -> tuple[np.ndarray, np.ndarray]:
    """The expected targets are linear in the values: the matrix [state, state] and the constant [state]."""
    nothing = expected(on, np.zeros(STATES), rho_bar, c_bar)
    return np.stack([expected(on, unit, rho_bar, c_bar) - nothing for unit in np.eye(STATES)], 1), nothing


def test_the_probabilities_of_all_trajectories_add_up_to_one() -> None:
    np.testing.assert_allclose([PROBABILITY[STATE[0] == state].sum() for state in range(STATES)], 1.0)


@pytest.mark.parametrize("c_bar", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("rho_bar", [0.1, 1.0, 4.0])
def test_rho_bar_alone_chooses_the_fixed_point(on: Any, rho_bar: float, c_bar: float) -> None:
    """Values of the policy between the two are left as they are, whatever c-bar is; any others are not."""
    fixed = values_of(between(rho_bar))
    np.testing.assert_allclose(expected(on, fixed, rho_bar, c_bar), fixed, atol=2e-5)
    assert np.abs(expected(on, fixed + [1.0, 0.0], rho_bar, c_bar) - fixed - [1.0, 0.0]).max() > 1e-2


def test_the_fixed_point_moves_from_the_policy_that_acted_to_the_learners() -> None:
    np.testing.assert_allclose(between(1 / 7), MU, rtol=1e-12)  # the smallest ratio: all are clipped
    np.testing.assert_allclose(between(3.0), PI, rtol=1e-12)  # the largest: none is
    # rho-bar 1: min(mu, pi) is (.1, .3) and (.5, .2)
    np.testing.assert_allclose(between(1.0), [[1 / 4, 3 / 4], [5 / 7, 2 / 7]], rtol=1e-12)
    points = [values_of(between(rho_bar)) for rho_bar in (0.1, 0.5, 1.0, 2.0, 4.0)]
    assert min(np.abs(one - other).max() for one, other in pairwise(points)) > 0.05


@pytest.mark.parametrize("rho_bar", [1.0, 3.0])
def test_c_bar_alone_chooses_the_speed(on: Any, rho_bar: float) -> None:
    """The largest row sum bounds by which factor an update brings values nearer to the fixed point. It falls with
    c-bar up to rho-bar, and what is come near to stays the same."""
    fixed, factors = values_of(between(rho_bar)), []
    for c_bar in (0.01, 0.5, 1.0):
        slope, constant = line(on, rho_bar, c_bar)
        factors.append(np.abs(slope).sum(1).max())
        values = np.zeros(STATES)
        for _ in range(300):
            values = slope @ values + constant
        np.testing.assert_allclose(values, fixed, atol=1e-4)
    assert all(later < earlier - 0.005 for earlier, later in pairwise(factors)) and factors[0] < 1.0, factors
