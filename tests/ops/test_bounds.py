"""Actions in the unit box, whatever the Box of the environment."""

import math
from typing import Any

import numpy as np
import pytest

from cavalcade.errors import UserError
from cavalcade.ops.bounds import Bounds, require_bounds
from cavalcade.specs import EnvSpec, Leaf

BOXES = {  # shape, low and high
    "unit": ((2,), (-1.0, -1.0), (1.0, 1.0)),
    "asymmetric": ((1,), (-3.0,), (1.0,)),
    "each its own": ((3,), (-1.0, 0.0, 5.0), (1.0, 10.0, 5.5)),
    "matrix": ((2, 2), (-2.0, 0.0, 1.0, -1e-3), (2.0, 1.0, 3.0, 1e-3)),
    "scalar": ((), (-2.0,), (4.0,)),
}


def spec_of(kind: str = "box", **leaf: Any) -> EnvSpec:
    observation = Leaf("box", (3,), "float32", low=(-1.0,) * 3, high=(1.0,) * 3)
    return EnvSpec("Some-v0", observation, Leaf(kind, dtype="float32", **leaf))


def box(shape: tuple[int, ...], low: tuple[float, ...], high: tuple[float, ...]) -> EnvSpec:
    return spec_of(shape=shape, low=low, high=high)


@pytest.mark.parametrize("name", BOXES)
def test_there_and_back(name: str, on: Any) -> None:
    shape, low, high = BOXES[name]
    spec, size = box(*BOXES[name]), len(low)
    unit = np.random.default_rng(0).uniform(-1.0, 1.0, (4, 5, size)).astype(np.float32)
    unit[0, 0], unit[0, 1], unit[0, 2] = -1.0, 1.0, 0.0

    def mapped(xp: Any, unit: Any) -> tuple:
        action = Bounds(xp, spec).action(unit)
        return action, Bounds(xp, spec).unit(action)

    action, back = on(mapped, unit)
    assert action.shape == (4, 5, *shape) and back.shape == unit.shape and action.dtype == np.float32
    np.testing.assert_allclose(back, unit, atol=5e-6)
    ends = [np.float32(each).reshape(shape) for each in (low, high)]
    np.testing.assert_allclose(action[0, 0], ends[0], rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(action[0, 1], ends[1], rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(action[0, 2], (ends[0] + ends[1]) / 2, rtol=1e-6, atol=1e-7)


def test_actions_of_a_box_in_double_precision_are_judged_in_single(on: Any) -> None:
    found = on(lambda xp, action: Bounds(xp, box((1,), (0.0,), (4.0,))).unit(action), np.array([[3.0]]))
    assert found.dtype == np.float32 and found == 0.5


@pytest.mark.parametrize("low, high", [(-math.inf, math.inf), (0.0, math.inf), (-math.inf, 1.0), (2.0, 2.0)])
def test_a_box_without_two_ends_is_refused(low: float, high: float) -> None:
    with pytest.raises(UserError) as caught:
        require_bounds(box((2,), (-1.0, low), (1.0, high)), "td3")
    assert str(caught.value) == (
        f"td3 scales actions to their bounds, but an action of Some-v0 reaches from {low:g} to {high:g}; "
        "declare finite ones with gymnasium.wrappers.TransformAction, or use ppo, which needs none."
    )


@pytest.mark.parametrize("kind, instead", [("discrete", "dqn, ppo or sac"), ("multi_discrete", "ppo")])
def test_other_actions_are_refused_with_what_takes_them(kind: str, instead: str) -> None:
    counts = {"counts": (3,), "shape": ()} if kind == "discrete" else {"counts": (3, 2), "shape": (2,)}
    with pytest.raises(UserError, match=f"ddpg needs a Box .* Some-v0 has {kind} actions; use {instead}.$"):
        require_bounds(spec_of(kind, start=(0,) * len(counts["counts"]), **counts), "ddpg")
