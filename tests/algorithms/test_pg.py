"""REINFORCE: its loss in numbers done by hand on every backend, equal runs, and a run on processes."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cavalcade
from cavalcade.algorithms.pg import PG
from cavalcade.checkpoints import checkpoint
from cavalcade.specs import EnvSpec, Leaf

SPEC = EnvSpec("Some-v0", Leaf("box", (1,), "float32", low=(-1.0,), high=(1.0,)), Leaf("discrete", (), "int64", (2,)))
PLAIN = {"normalise_advantages": False, "discount": 0.5}


def numbers(on: Any, **settings: Any) -> tuple[float, ...]:
    """Loss, its part of the policy and its entropy for two unrolls of two steps. The policy has probabilities 1/4 and
    3/4; values are 2, 4, 6. Action 1 throughout; the second unroll terminates at its first step, and its second row is
    no transition."""
    algorithm = PG(**{**PLAIN, **settings})

    def loss(xp: Any, obs: Any, value: Any, policy: Any, action: Any, reward: Any, discount: Any, valid: Any) -> tuple:
        def forward(obs: Any, carry: Any, first: Any, heads: tuple[str, ...]) -> tuple[dict, None]:
            made = {"policy": policy, "value": value}
            return {head: made[head] for head in heads}, None

        items = {"obs": obs, "action": action, "reward": reward, "discount": discount, "valid": valid, "first": valid}
        found = algorithm.loss(xp, SPEC, forward, None, items, {}, {})
        return found.value, found.metrics["policy_loss"], found.metrics["entropy"]

    value = np.float32([2, 4, 6])[:, None, None] * np.ones((1, 2, 1), np.float32)  # [T + 1, B, 1]
    policy = np.log(np.float32([0.25, 0.75])) * np.ones((3, 2, 1), np.float32)
    reward, discount = np.float32([[1, 2, 9], [3, 9, 9]]), np.float32([[0.5, 0.5, 0.5], [0, 0.5, 0.5]])  # [B, T + 1]
    arrays = (reward, discount, np.float32([[1, 1, 0], [1, 0, 0]]))
    return on(loss, np.zeros((2, 3, 1), "f4"), value, policy, np.ones((2, 3), np.int64), *arrays)


LOG = -math.log(0.75)
ENTROPY = 0.75 * LOG + 0.25 * math.log(4)


def test_the_loss_with_a_baseline_by_hand(on: Any) -> None:
    # returns 1 + .5 * 5 = 3.5, 2 + .5 * 6 = 5 and 3; advantages 1.5, 1 and 1
    loss, policy_loss, entropy = numbers(on, value_cost=2.0, entropy_cost=0.1)
    assert policy_loss == pytest.approx(LOG * 3.5 / 3, rel=1e-5) and entropy == pytest.approx(ENTROPY, rel=1e-5)
    assert loss == pytest.approx(LOG * 3.5 / 3 + 2.0 * 0.5 * (2.25 + 1 + 1) / 3 - 0.1 * ENTROPY, rel=1e-5)


def test_the_loss_without_a_baseline_by_hand(on: Any) -> None:
    # returns 1 + .5 * 2 = 2, 2 and 3: what comes after the unroll counts as 0
    loss, policy_loss, _ = numbers(on, baseline=False, value_cost=2.0)
    assert policy_loss == pytest.approx(LOG * 7 / 3, rel=1e-5) and loss == policy_loss


def test_advantages_are_standardised(on: Any) -> None:
    # returns 2, 2, 3: mean 7/3; standardised ones have mean 0, and all actions are as probable
    loss, _, _ = numbers(on, baseline=False, normalise_advantages=True)
    assert loss == pytest.approx(0.0, abs=1e-6)


RUN = {"envs": 4, "unroll": 16, "hidden": (8,), "evaluations": 1, "evaluation_episodes": 2, "display": False}


def learned(run: Any) -> np.ndarray:
    return checkpoint.load_latest(run.checkpoints)[0]["nodes"]["learner"]["state"]["params"]


@pytest.mark.parametrize("baseline", [True, False])
def test_equal_runs_are_equal_to_the_bit(tmp_path: Path, baseline: bool) -> None:
    given = {**RUN, "steps": 4_000, "seed": 3, "baseline": baseline}
    one, other = (cavalcade.train("pg", "CartPole-v1", out=tmp_path / out, **given) for out in "ab")
    assert np.array_equal(learned(one), learned(other)) and np.isfinite(learned(one)).all()
    assert [row.get("return") for row in one.rows()] == [row.get("return") for row in other.rows()]


def test_it_runs_on_processes_without_lag(tmp_path: Path) -> None:
    given = {**RUN, "steps": 2_000, "runtime": "process", "actors": 2, "backend": "numpy"}
    rows = cavalcade.train("pg", "CartPole-v1", out=tmp_path / "run", **given).rows()
    assert rows[-1]["updates"] >= 10 and {row["policy_lag"] for row in rows if "policy_lag" in row} == {0.0}
