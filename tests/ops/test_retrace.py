"""Retrace against numbers done by hand, and against its operator on a small MDP, summed over all trajectories."""

from itertools import product
from typing import Any

import numpy as np
import pytest

from cavalcade.ops.returns import discounted_returns, retrace

# Column 0: an episode truncated after rows 0 and 1, its final observation in row 2 (no transition, with rubbish), an
# episode that goes on after row 3. Column 1: one that terminates in row 1, and one of two steps that goes on.
REWARD = np.float32([[1, 1], [2, 2], [99, 3], [4, 4]])
DISCOUNT = np.float32([[0.5, 0.5], [0.5, 0], [0.7, 0.5], [0.5, 0.5]])
TAKEN = np.float32([[10, 2], [20, 4], [77, 6], [40, 8]])
EXPECTED = np.float32([[1, 1], [12, 6], [30, 8], [50, 10], [60, 12]])
VALID = np.float32([[1, 1], [1, 1], [0, 1], [1, 1]])
RHO = np.float32([[7, 7], [0.5, 2], [9, 0.1], [3, 0.25]])


def test_retrace_by_hand(on: Any) -> None:
    # column 0: errors 1 + .5*12 - 10 = -3, 2 + .5*30 - 20 = -3, none, 4 + .5*60 - 40 = -6
    #   row 1: 20 - 3 = 17; row 0: -3 + .5*.5*-3 = -3.75, 6.25; row 2 keeps its value; row 3: 34
    # column 1: errors 1 + .5*6 - 2 = 2, 2 - 4 = -2, 3 + .5*10 - 6 = 2, 4 + .5*12 - 8 = 2
    #   row 3: 10; row 2: 2 + .5*.25*2 = 2.25, 8.25; row 1: 2; row 0: 2 + .5*1*-2 = 1, 3 (the ratio 2 counts as 1)
    expected = np.float32([[6.25, 3], [17, 2], [77, 8.25], [34, 10]])
    found = on(retrace, REWARD, DISCOUNT, TAKEN, EXPECTED, VALID, np.log(RHO))
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    # lambda .5 halves what reaches back: -3 + .25*.5*-3 = -3.375, 2 + .25*-2 = 1.5, 2 + .5*.125*2 = 2.125
    expected = np.float32([[6.625, 3.5], [17, 2], [77, 8.125], [34, 10]])
    found = on(retrace, REWARD, DISCOUNT, TAKEN, EXPECTED, VALID, np.log(RHO), lambda_=0.5)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_on_a_greedy_policys_own_actions_it_is_the_discounted_return(on: Any) -> None:
    """Where pi is sure of what was done, Q(s, a) is the mean of Q(s, .), and nothing is cut."""
    valid = np.ones_like(VALID)
    found = on(retrace, REWARD, DISCOUNT, EXPECTED[:-1], EXPECTED, valid, np.zeros_like(RHO))
    np.testing.assert_allclose(found, on(discounted_returns, REWARD, DISCOUNT, EXPECTED, valid), rtol=1e-6)


# an MDP of two states and two actions: MOVES[s, a, s'], PAYS[s, a], the policies that acts and that is learned about
MOVES = np.array([[[0.25, 0.75], [0.5, 0.5]], [[1.0, 0.0], [0.125, 0.875]]])
PAYS = np.array([[1.0, -2.0], [0.5, 3.0]])
MU = np.array([[0.75, 0.25], [0.5, 0.5]])
PI = np.array([[0.25, 0.75], [0.9, 0.1]])
GAMMA, STEPS = 0.75, 3


def operator(q: np.ndarray, lambda_: float) -> np.ndarray:
    """What retrace means, [S, A]: q + sum over k of (gamma P c mu)^k (r + gamma P pi q - q), for `STEPS` terms."""
    error = PAYS + GAMMA * MOVES @ (PI * q).sum(-1) - q
    kept = MU * lambda_ * np.minimum(1.0, PI / MU)
    total, term = np.zeros_like(q), error
    for _ in range(STEPS):
        total, term = total + term, GAMMA * MOVES @ (kept * term).sum(-1)
    return q + total


def summed(on: Any, q: np.ndarray, lambda_: float) -> np.ndarray:
    """The mean of retrace's first target for each first state and action [S, A], over all trajectories of `STEPS`."""
    choices = list(product(range(2), repeat=2 * STEPS + 1))  # s0, a0, s1, a1, s2, a2, s3
    states, actions = np.array(choices)[:, ::2].T, np.array(choices)[:, 1::2].T  # [T + 1, B], [T, B]
    chance = np.prod(MOVES[states[:-1], actions, states[1:]], 0) * np.prod(MU[states[1:-1], actions[1:]], 0)
    ones, expected = np.ones(actions.shape), (PI * q).sum(-1)[states]
    ratio = np.log(PI / MU)[states[:-1], actions]
    given = (PAYS[states[:-1], actions], GAMMA * ones, q[states[:-1], actions], expected, ones, ratio)
    target = on(retrace, *(np.float32(each) for each in given), lambda_=lambda_)[0]
    total = np.zeros((2, 2))
    np.add.at(total, (states[0], actions[0]), chance * target)
    return total


@pytest.mark.parametrize("lambda_", [1.0, 0.5, 0.0])
def test_its_mean_over_all_trajectories_is_the_operator(on: Any, lambda_: float) -> None:
    q = np.array([[3.0, -1.0], [0.25, 2.0]])
    np.testing.assert_allclose(summed(on, q, lambda_), operator(q, lambda_), atol=1e-5)


def test_the_values_of_pi_are_its_fixed_point(on: Any) -> None:
    flat = GAMMA * np.einsum("sat,tb->satb", MOVES, PI).reshape(4, 4)
    q = np.linalg.solve(np.eye(4) - flat, PAYS.reshape(4)).reshape(2, 2)
    np.testing.assert_allclose(summed(on, q, 1.0), q, atol=1e-5)
