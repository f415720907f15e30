"""Returns, advantages and V-trace against numbers done by hand, and against the definitions in the papers."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from cavalcade import backends
from cavalcade.ops import returns
from tests.helpers.on_backends import BACKENDS, run

# Column 0: an episode truncated after rows 0 and 1, its final observation in row 2 (not a transition, with
# rubbish as reward and discount), an episode of one step that terminates in row 3, an episode that goes on
# after row 4.
# Column 1: one episode that goes on after row 4; each of its temporal-difference errors is 1.
REWARD = np.float32([[1, 1], [2, 2], [99, 3], [4, 4], [8, 5]])
DISCOUNT = np.float32([[0.5, 0.5], [0.5, 0.5], [0.7, 0.5], [0, 0.5], [0.5, 0.5]])
VALUES = np.float32([[10, 2], [20, 4], [30, 6], [40, 8], [50, 10], [60, 12]])
VALID = np.float32([[1, 1], [1, 1], [0, 1], [1, 1], [1, 1]])
HAND = (REWARD, DISCOUNT, VALUES, VALID)


def columns(first: list, second: list) -> np.ndarray:
    return np.stack([first, second], 1)


# column 0, any n >= 2: 2 + .5*30 = 17, 1 + .5*17 = 9.5; no transition, so its value 30; 4; 8 + .5*60 = 38
@pytest.mark.parametrize(
    "n, expected",
    [
        # 1 + .5*20 = 11; column 1: r + .5*V', 1 + .5*4 = 3, 2 + .5*6 = 5, ...
        (1, columns([11, 17, 30, 4, 38], [3, 5, 7, 9, 11])),
        # column 1: 1 + .5*2 + .25*6 = 3.5, 2 + .5*3 + .25*8 = 5.5, ..., at the end 5 + .5*12 = 11
        (2, columns([9.5, 17, 30, 4, 38], [3.5, 5.5, 7.5, 9.5, 11])),
        # 1 + .5*2 + .25*3 + .125*8 = 3.75, 2 + .5*3 + .25*4 + .125*10 = 5.75, 3 + 2 + 1.25 + .125*12 = 7.75
        (3, columns([9.5, 17, 30, 4, 38], [3.75, 5.75, 7.75, 9.5, 11])),
        # from the back: 11, 4 + .5*11 = 9.5, 3 + .5*9.5 = 7.75, 2 + .5*7.75 = 5.875, 1 + .5*5.875 = 3.9375
        (5, columns([9.5, 17, 30, 4, 38], [3.9375, 5.875, 7.75, 9.5, 11])),
        (50, columns([9.5, 17, 30, 4, 38], [3.9375, 5.875, 7.75, 9.5, 11])),
    ],
)
def test_n_step_returns_by_hand(on: Any, n: int, expected: np.ndarray) -> None:
    np.testing.assert_allclose(on(returns.n_step_returns, *HAND, n=n), expected, rtol=1e-6)


def test_discounted_returns_by_hand(on: Any) -> None:
    expected = columns([9.5, 17, 30, 4, 38], [3.9375, 5.875, 7.75, 9.5, 11])
    np.testing.assert_allclose(on(returns.discounted_returns, *HAND), expected, rtol=1e-6)


# errors of column 0: 1 + .5*20 - 10 = 1, 2 + .5*30 - 20 = -3, 4 - 40 = -36, 8 + .5*60 - 50 = -12
# gamma lambda = .25: row 0 has 1 + .25*-3 = .25; column 1: 1, 1 + .25*1 = 1.25, 1 + .25*1.25 = 1.3125, ...
ADVANTAGES = columns([0.25, -3, 0, -36, -12], [1.33203125, 1.328125, 1.3125, 1.25, 1])


def test_gae_by_hand(on: Any) -> None:
    np.testing.assert_allclose(on(returns.gae, *HAND, lambda_=0.5), ADVANTAGES, rtol=1e-6)


def test_td_lambda_by_hand(on: Any) -> None:
    expected = columns([10.25, 17, 30, 4, 38], [3.33203125, 5.328125, 7.3125, 9.25, 11])  # value + advantage
    np.testing.assert_allclose(on(returns.td_lambda, *HAND, lambda_=0.5), expected, rtol=1e-6)


# column 0 has ratios 2, 1/2, rubbish, 1/4, 2 and column 1 always 1/2
LOG_RHO = np.log(np.float32([[2, 0.5], [0.5, 0.5], [1e30, 0.5], [0.25, 0.5], [2, 0.5]]))


def test_vtrace_by_hand(on: Any) -> None:
    targets, advantages = on(returns.vtrace, *HAND, LOG_RHO)
    # column 0, rho = c = 1, .5, -, .25, 1, so rho * error is 1, -1.5, 0, -9, -12; row 0: 1 + .5*1*-1.5 = .25
    # column 1, rho * error is .5 and gamma * c is .25: .5, .625, .65625, ...
    accumulated = columns([0.25, -1.5, 0, -9, -12], [0.666015625, 0.6640625, 0.65625, 0.625, 0.5])
    np.testing.assert_allclose(targets, VALUES[:-1] + accumulated, rtol=1e-6)
    # column 0: 1 + .5*18.5 - 10 = .25, .5*(2 + .5*30 - 20) = -1.5 with the value, not a target, of row 2
    # column 1: .5*(1 + .5*acc'): .5*(1 + .5*.6640625) = .666015625, the same as above as rho = c
    np.testing.assert_allclose(advantages, accumulated, rtol=1e-6)


def test_vtrace_thresholds_by_hand(on: Any) -> None:
    targets, advantages = on(returns.vtrace, *HAND, LOG_RHO, rho_bar=2.0, c_bar=1.0, lambda_=0.5)
    # rho 2, .5, -, .25, 2; c .5, .25, -, .125, .5; rho * error 2, -1.5, 0, -9, -24; 2 + .5*.5*-1.5 = 1.625
    np.testing.assert_allclose(targets[:, 0], [11.625, 18.5, 30, 31, 26], rtol=1e-6)
    # 2*(1 + .5*18.5 - 10) = .5; the others have no successor to learn from: rho * error
    np.testing.assert_allclose(advantages[:, 0], [0.5, -1.5, 0, -9, -24], rtol=1e-6)


T, B, GAMMA = 24, 64, 0.95


def random_unroll() -> tuple[tuple[np.ndarray, ...], np.ndarray, set[str]]:
    """Random episodes laid end to end: the data, the episode of each row [T, B], the kinds of end that occur.

    Rows that are not transitions have episode -1, and hold large rubbish wherever nothing may be read.
    """
    rng = np.random.default_rng(0)
    reward = rng.normal(size=(T, B)).astype(np.float32)
    discount = np.full((T, B), GAMMA, np.float32)
    values = rng.normal(size=(T + 1, B)).astype(np.float32)
    episode = np.full((T, B), -1)
    seen = set()
    for b in range(B):
        t = 0
        while t < T:
            end = str(rng.choice(["terminal", "truncated", "padding"], p=[0.45, 0.45, 0.1]))
            length = 1 if rng.random() < 0.3 else int(rng.integers(2, 12))
            episode[t : t + length, b] = t
            if t + length > T:
                seen.add("cut")
                break
            seen |= {end, "length one"} if length == 1 else {end}
            t += length
            if end == "terminal":
                discount[t - 1, b] = 0.0  # row t, or values[T], belongs to another episode
                continue
            t += 1  # the row skipped carries the final observation; its value is the one to bootstrap from
            if end == "padding":
                values[t:, b] = 1e4
                break
    rubbish = episode < 0
    reward[rubbish], discount[rubbish] = 1e4, 0.7
    return (reward, discount, values, (~rubbish).astype(np.float32)), episode, seen


DATA, EPISODE, SEEN = random_unroll()
TRANSITIONS = [(t, b) for t in range(T) for b in range(B) if EPISODE[t, b] >= 0]
# the definitions below are worked out in double precision, row by row
R, D, V = (array.astype(np.float64) for array in DATA[:3])
LOG_RATIO = np.where(EPISODE < 0, 1e4, np.random.default_rng(1).normal(size=(T, B))).astype(np.float32)


def return_from(t: int, b: int, n: int) -> float:
    """n rewards of one episode, then the value of the last one's successor."""
    total, factor, after = 0.0, 1.0, t
    for k in range(t, min(t + n, T)):
        if EPISODE[k, b] != EPISODE[t, b]:
            break
        total += factor * R[k, b]
        factor *= D[k, b]
        after = k + 1
    return total + factor * V[after, b]


def rows_left(t: int, b: int) -> int:
    return int(np.sum(EPISODE[t:, b] == EPISODE[t, b]))


def check(actual: np.ndarray, expected: dict, elsewhere: np.ndarray) -> None:
    full = elsewhere.astype(np.float64)
    for place, number in expected.items():
        full[place] = number
    np.testing.assert_allclose(actual, full, rtol=1e-5, atol=1e-5)


def test_random_unroll_holds_every_ending() -> None:
    assert {"terminal", "truncated", "padding", "length one", "cut"} == SEEN
    assert (DATA[3][-1] == 0).any() and (DATA[1][-1] == 0).any()  # also in the last row


@pytest.mark.parametrize("n", [1, 3, 7, T])
def test_n_step_returns_follow_the_definition(on: Any, n: int) -> None:
    expected = {(t, b): return_from(t, b, n) for t, b in TRANSITIONS}
    check(on(returns.n_step_returns, *DATA, n=n), expected, V[:-1])


@pytest.mark.parametrize("lambda_", [0.0, 0.8, 1.0])
def test_td_lambda_is_the_mixture_of_n_step_returns(on: Any, lambda_: float) -> None:
    expected = {}
    for t, b in TRANSITIONS:
        last = rows_left(t, b)  # the longest return has all the weight that is left
        mixed = sum((1 - lambda_) * lambda_ ** (n - 1) * return_from(t, b, n) for n in range(1, last))
        expected[t, b] = mixed + lambda_ ** (last - 1) * return_from(t, b, last)
    check(on(returns.td_lambda, *DATA, lambda_=lambda_), expected, V[:-1])


def test_gae_follows_the_definition(on: Any) -> None:
    expected = {}
    for t, b in TRANSITIONS:
        total, factor = 0.0, 1.0
        for k in range(t, t + rows_left(t, b)):
            total += factor * (R[k, b] + D[k, b] * V[k + 1, b] - V[k, b])
            factor *= D[k, b] * 0.9
        expected[t, b] = total
    check(on(returns.gae, *DATA, lambda_=0.9), expected, np.zeros((T, B)))


def test_vtrace_follows_the_definition(on: Any) -> None:
    rho_bar, c_bar, lambda_ = 1.5, 0.9, 0.8
    ratio = np.exp(np.minimum(LOG_RATIO.astype(np.float64), 100.0))
    target, advantage = {}, {}
    for s, b in TRANSITIONS:
        total, factor = V[s, b], 1.0
        for t in range(s, s + rows_left(s, b)):
            total += factor * min(rho_bar, ratio[t, b]) * (R[t, b] + D[t, b] * V[t + 1, b] - V[t, b])
            factor *= D[t, b] * lambda_ * min(c_bar, ratio[t, b])
        target[s, b] = total
    for s, b in TRANSITIONS:
        following = target[s + 1, b] if rows_left(s, b) > 1 else V[s + 1, b]
        advantage[s, b] = min(rho_bar, ratio[s, b]) * (R[s, b] + D[s, b] * following - V[s, b])
    targets, advantages = on(returns.vtrace, *DATA, LOG_RATIO, rho_bar=rho_bar, c_bar=c_bar, lambda_=lambda_)
    check(targets, target, V[:-1])
    check(advantages, advantage, np.zeros((T, B)))


def test_estimators_agree_where_they_must(on: Any) -> None:
    def estimates(xp: Any, *data: Any) -> tuple:  # in one call, since jax compiles each call
        return (
            returns.discounted_returns(xp, *data),
            returns.gae(xp, *data, lambda_=1.0),
            *returns.vtrace(xp, *data, xp.zeros_like(data[0])),
            returns.gae(xp, *data, lambda_=0.7),
            returns.td_lambda(xp, *data, lambda_=0.7),
            returns.td_lambda(xp, *data, lambda_=0.0),
            returns.n_step_returns(xp, *data, n=1),
        )

    full, monte_carlo, vtrace, vtrace_advantage, gae, td_lambda, td_zero, one_step = on(estimates, *DATA)
    close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
    values = DATA[2][:-1]
    close(monte_carlo, full - values)
    close(vtrace, full)
    close(vtrace_advantage, monte_carlo)
    close(td_lambda, gae + values)
    close(one_step, td_zero)


def test_backends_agree() -> None:
    def estimates(xp: Any, log_rho: Any, *data: Any) -> tuple:
        return (
            returns.n_step_returns(xp, *data, n=5),
            returns.gae(xp, *data, lambda_=0.95),
            *returns.vtrace(xp, *data, log_rho, rho_bar=2.0),
        )

    results = [np.asarray(run(name, estimates, LOG_RATIO, *DATA)) for name in (*BACKENDS, "jax-eager")]
    assert all(result.dtype == np.float32 for result in results)
    for other in results[1:]:
        np.testing.assert_allclose(other, results[0], rtol=1e-5, atol=1e-5)


def test_no_gradient_flows_through_targets() -> None:
    torch = pytest.importorskip("torch")
    backend = backends.load("torch")
    data = [backend.from_numpy(array.copy()) for array in HAND]
    data[2].requires_grad_()
    log_rho = torch.zeros(5, 2, requires_grad=True)
    results = [
        returns.n_step_returns(backend.xp, *data, n=2),
        returns.discounted_returns(backend.xp, *data),
        returns.td_lambda(backend.xp, *data, lambda_=0.9),
        returns.gae(backend.xp, *data, lambda_=0.9),
        *returns.vtrace(backend.xp, *data, log_rho),
    ]
    assert not any(result.requires_grad for result in results)
