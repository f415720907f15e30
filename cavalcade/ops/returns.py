"""Value targets and advantages over unrolls, all as one backward sum of temporal-difference errors.

Every estimator here is `values + accumulated`, where

    accumulated_t = error_t + decay_t * accumulated_{t+1}

and only `error` and `decay` differ. In this form the ends of episodes need no special cases. A terminated episode
ends with discount 0. A truncated episode is followed by a row that is not a transition and only holds the final
observation: that row accumulates zero, so the transition before it uses the value of its own successor, and nothing
of the next episode reaches it. The same holds for padding and for the end of the unroll.

Arrays are time-major. The axes after T may be any; they are written [B].

    reward    [T, B]    of the transition in row t
    discount  [T, B]    gamma; 0 where the transition ended in a terminal state
    values    [T+1, B]  values[t+1] is the value of the successor of row t
    valid     [T, B]    1.0 where the row is a transition, else 0.0

A row that is not valid gets its own value as target and 0 as advantage, hence no error.
Targets are constants for a loss: no gradient flows back through `values` or ratios, so the recursion is not recorded.
"""

import math
from typing import Any


def n_step_returns(xp: Any, reward: Any, discount: Any, values: Any, valid: Any, n: int) -> Any:
    """[T, B]: n discounted rewards, then the value; fewer rewards where the episode or the unroll ends sooner."""
    if n >= reward.shape[0]:
        return discounted_returns(xp, reward, discount, values, valid)
    values = xp.stop_gradient(values)
    error, decay = valid * _td_error(reward, discount, values), valid * discount
    accumulated = error  # one reward
    for _ in range(n - 1):  # n is small: a few passes over [T, B] cost less than T passes over [B]
        accumulated = error + decay * _of_successor(xp, accumulated)
    return values[:-1] + accumulated


def discounted_returns(xp: Any, reward: Any, discount: Any, values: Any, valid: Any) -> Any:
    """[T, B]: all discounted rewards to the end of the episode or unroll, then the value (A3C, Mnih 2016)."""
    return td_lambda(xp, reward, discount, values, valid, 1.0)


def td_lambda(xp: Any, reward: Any, discount: Any, values: Any, valid: Any, lambda_: float) -> Any:
    """[T, B]: the lambda-return, the n-step returns of all n weighted by (1 - lambda) lambda^(n-1)."""
    values = xp.stop_gradient(values)
    return values[:-1] + gae(xp, reward, discount, values, valid, lambda_)


def gae(xp: Any, reward: Any, discount: Any, values: Any, valid: Any, lambda_: float) -> Any:
    """[T, B]: generalised advantage estimates (Schulman 2016), the lambda-return minus the value."""
    values = xp.stop_gradient(values)
    error, decay = valid * _td_error(reward, discount, values), valid * discount * lambda_
    return _accumulate(xp, error, decay)


def vtrace(
    xp: Any,
    reward: Any,
    discount: Any,
    values: Any,
    valid: Any,
    log_rho: Any,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
    lambda_: float = 1.0,
) -> tuple[Any, Any]:
    """Value targets and policy-gradient advantages, both [T, B], from actions of another policy (Espeholt 2018).

    `log_rho` [T, B] is log pi(a) - log mu(a), where pi is the learner's policy and mu the one that acted. `rho_bar`
    decides which policy's value is learned, `c_bar` only how far corrections reach back.
    """
    values, log_rho = xp.stop_gradient(values), xp.stop_gradient(log_rho)
    rho = valid * clipped_ratio(xp, log_rho, rho_bar)
    decay = valid * discount * lambda_ * clipped_ratio(xp, log_rho, c_bar)
    error = _td_error(reward, discount, values)
    accumulated = _accumulate(xp, rho * error, decay)
    # r + gamma v_{t+1} - V_t: the target v of the successor is its value plus its accumulated term, which is zero where
    # no transition follows in this episode or unroll
    advantage = rho * (error + discount * _of_successor(xp, accumulated))
    return values[:-1] + accumulated, advantage


def retrace(
    xp: Any,
    reward: Any,
    discount: Any,
    taken: Any,
    expected: Any,
    valid: Any,
    log_rho: Any,
    lambda_: float = 1.0,
) -> Any:
    """[T, B]: targets of the values Q(s, a) of the actions taken, from actions of another policy (Munos 2016).

    `taken` [T, B] is Q(s_t, a_t), `expected` [T+1, B] the mean of Q(s_t, .) under the policy pi that is learned about,
    `log_rho` [T, B] log pi(a_t) - log mu(a_t), where mu acted. A correction reaches back over an action by the share
    lambda min(1, pi / mu) of it; the action in row t itself is not weighted, because Q(s_t, a_t) is given it.
    """
    taken, expected, log_rho = (xp.stop_gradient(x) for x in (taken, expected, log_rho))
    trace = valid * lambda_ * clipped_ratio(xp, log_rho, 1.0)
    error = valid * (reward + discount * expected[1:] - taken)
    return taken + _accumulate(xp, error, valid * discount * _of_successor(xp, trace))


def _td_error(reward: Any, discount: Any, values: Any) -> Any:
    """The temporal-difference errors [T, B]."""
    return reward + discount * values[1:] - values[:-1]


def _accumulate(xp: Any, error: Any, decay: Any) -> Any:
    """The recursion at the top of this file, [T, B]. `error` and `decay` [T, B] are zero in rows that are not
    transitions."""

    def step(later: Any, error_t: Any, decay_t: Any) -> tuple[Any, Any]:
        accumulated = error_t + decay_t * later  # [B]
        return accumulated, accumulated

    return xp.scan(step, xp.zeros_like(error[0]), (error, decay), reverse=True)[1]


def _of_successor(xp: Any, accumulated: Any) -> Any:
    """An array [T, B] whose row t is row t+1 of `accumulated`, and whose last row is zero."""
    return xp.concat([accumulated[1:], xp.zeros_like(accumulated[:1])])


def clipped_ratio(xp: Any, log_rho: Any, bar: float) -> Any:
    """min(bar, exp(log_rho)); it is clipped before the exponential, which could overflow."""
    return xp.exp(xp.clip(log_rho, None, math.log(bar)))
