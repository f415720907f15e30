"""Distributions over actions: numbers done by hand, masks, noise, and that nothing ever becomes NaN."""

from typing import Any

import numpy as np
import pytest

from cavalcade import backends
from cavalcade.errors import UserError
from cavalcade.ops import distributions
from cavalcade.ops.distributions import Categorical, Gaussian, MultiCategorical
from cavalcade.specs import Leaf
from tests.helpers.on_backends import BACKENDS, run

DISCRETE = Leaf("discrete", (), "int64", (4,), (0,))
MULTI = Leaf("multi_discrete", (2, 2), "int64", (2, 3, 4, 2), (0, 0, 0, 0))
BOX = Leaf("box", (3, 2), "float32", low=(-1.0,) * 6, high=(1.0,) * 6)


LOGITS = np.log(np.float32([[1, 2, 5], [4, 4, 8]]))  # probabilities 1/8 1/4 5/8 and 1/4 1/4 1/2
OTHER = np.zeros((2, 3), np.float32)  # 1/3 each
MASK = np.uint8([[1, 1, 0], [1, 0, 1]])  # leaves 1/3 2/3 0 and 1/3 0 2/3; of OTHER 1/2 1/2 0 and 1/2 0 1/2


def test_categorical_by_hand(on: Any) -> None:
    def numbers(xp: Any, logits: Any, other: Any, action: Any) -> tuple:
        policy = Categorical(xp, logits)
        return policy.log_prob(action), policy.entropy(), policy.kl(Categorical(xp, other)), policy.mode()

    log_prob, entropy, kl, mode = on(numbers, LOGITS, OTHER, np.int64([2, 0]))
    np.testing.assert_allclose(log_prob, np.log([5 / 8, 1 / 4]), rtol=1e-6)
    # (1/8) ln 8 + (1/4) ln 4 + (5/8) ln(8/5) = .259930 + .346574 + .293752; second: (1/2) ln 4 + (1/2) ln 2
    np.testing.assert_allclose(entropy, [0.900256, 1.039721], atol=1e-6)
    np.testing.assert_allclose(kl, [1.098612 - 0.900256, 1.098612 - 1.039721], atol=1e-6)  # ln 3 - entropy
    np.testing.assert_array_equal(mode, [2, 2])


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int64])
def test_masked_categorical_by_hand(on: Any, dtype: Any) -> None:
    def numbers(xp: Any, logits: Any, other: Any, mask: Any, action: Any) -> tuple:
        policy, second = Categorical(xp, logits, mask), Categorical(xp, other, mask)
        return policy.probs, policy.log_prob(action), policy.entropy(), policy.kl(second), policy.mode()

    probs, log_prob, entropy, kl, mode = on(numbers, LOGITS, OTHER, MASK.astype(dtype), np.int64([1, 0]))
    np.testing.assert_allclose(probs, [[1 / 3, 2 / 3, 0], [1 / 3, 0, 2 / 3]], rtol=1e-6)
    assert (probs[MASK == 0] == 0.0).all()  # exactly
    np.testing.assert_allclose(log_prob, np.log([2 / 3, 1 / 3]), rtol=1e-6)
    np.testing.assert_allclose(entropy, [0.636514] * 2, atol=1e-6)  # ln 3 - (2/3) ln 2
    np.testing.assert_allclose(kl, [0.056633] * 2, atol=1e-6)  # ln 2 - entropy
    np.testing.assert_array_equal(mode, [1, 2])


def test_epsilon_stands_inside_the_logarithms_of_the_entropy(on: Any) -> None:
    """GA3C: -sum p log(p + epsilon); p = (3/4, 1/4), (1, 0) and, of two legal actions, (1/2, 1/2, 0)."""
    entropy = on(lambda xp, x: Categorical(xp, x).entropy(0.25), np.log(np.float32([[3, 1], [1, 1e-30]])))
    np.testing.assert_allclose(entropy, [0.1732868, -0.2231436], atol=1e-6)  # ln(2) / 4; -ln(5/4)
    masked = on(lambda xp, x, mask: Categorical(xp, x, mask).entropy(0.25), np.float32([1, 1, 1]), np.int8([1, 1, 0]))
    np.testing.assert_allclose(masked, 0.2876821, atol=1e-6)  # -ln(3/4)


def test_masked_entropy_gradient_by_hand(gradient_of: Any) -> None:
    gradient = gradient_of(lambda xp, logits, mask: Categorical(xp, logits, mask).entropy(), LOGITS, MASK)
    # -p (ln p + H) with H = .636514: -(1/3)(-1.098612 + .636514) = .154033, and its opposite
    np.testing.assert_allclose(gradient, [[0.154033, -0.154033, 0], [0.154033, 0, -0.154033]], atol=1e-6)


def hard_cases() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits [5, 10000], mask and a legal action [5]: large logits, one legal, illegal favourites, none."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(5, 10_000)).astype(np.float32)
    mask = (rng.random(logits.shape) < 0.01).astype(np.uint8)
    logits[1] *= 1e4
    mask[2], mask[2, 7] = 0, 1
    logits[3] = np.where(mask[3], -1e5, 1e5)
    mask[4] = 0  # padding
    return logits, mask, mask.argmax(-1)


@pytest.mark.filterwarnings("error:(overflow|invalid|divide)")
def test_hard_masks_give_finite_values(on: Any) -> None:
    logits, mask, action = hard_cases()

    def numbers(xp: Any, logits: Any, mask: Any, action: Any) -> tuple:
        policy, other = Categorical(xp, logits, mask), Categorical(xp, logits * -0.5, mask)
        return policy.log_prob(action), policy.entropy(), policy.kl(other), policy.log_probs, policy.probs

    results = on(numbers, logits, mask, action)
    assert all(np.isfinite(result).all() for result in results)
    log_prob, entropy, kl, _, probs = results
    assert log_prob[2] == entropy[2] == kl[2] == 0.0  # one legal action
    assert (probs[:4][mask[:4] == 0] == 0.0).all()
    assert (entropy[:4] <= np.log(mask[:4].sum(-1)) + 1e-5).all()  # not ln 10000


@pytest.mark.parametrize("quantity", ["log_prob", "entropy", "kl", "kl of other"])
def test_hard_masks_give_finite_gradients(gradient_of: Any, quantity: str) -> None:
    logits, mask, action = hard_cases()

    def number(xp: Any, logits: Any, mask: Any, action: Any) -> Any:
        policy, other = Categorical(xp, logits, mask), Categorical(xp, logits * -0.5, mask)
        if quantity == "log_prob":
            return policy.log_prob(action)
        if quantity == "entropy":
            return policy.entropy()
        return policy.kl(other) if quantity == "kl" else other.kl(policy)

    gradient = gradient_of(number, logits, mask, action)
    assert np.isfinite(gradient).all()
    assert (gradient[mask == 0] == 0.0).all()
    assert (gradient[0][mask[0] == 1] != 0.0).any()


def test_sampling_follows_the_probabilities(on: Any) -> None:
    probability = np.float64([0.05, 0.1, 0.15, 0.2, 0.22, 0.28])
    count = 200_000
    leaf = Leaf("discrete", (), "int64", (6,))
    noise = distributions.draw_noise(leaf, np.random.default_rng(3), count)
    logits = np.broadcast_to(np.log(probability).astype(np.float32) + 2.0, (count, 6))
    drawn = on(lambda xp, logits, noise: Categorical(xp, logits).sample(noise), logits, noise)
    observed, expected = np.bincount(drawn, minlength=6), probability * count
    # chi-square with 5 degrees of freedom exceeds 20.5 once in a thousand; one entry off by .01 gives over 70
    assert np.sum((observed - expected) ** 2 / expected) < 20.5


def draw(xp: Any, logits: Any, mask: Any, noise: Any) -> Any:
    return Categorical(xp, logits, mask).sample(noise)


def test_illegal_actions_are_never_drawn_in_a_million(on: Any) -> None:
    count = 1_000_000
    rng = np.random.default_rng(4)
    leaf = Leaf("discrete", (), "int64", (5,))
    mask = rng.integers(0, 2, (count, 5), dtype=np.uint8)
    mask[np.arange(count), rng.integers(0, 5, count)] = 1
    logits = np.where(mask, np.float32(-3.0), np.float32(30.0))  # the illegal ones are the favourites
    noise = distributions.draw_noise(leaf, rng, count)
    drawn = on(draw, logits, mask, noise)
    assert (mask[np.arange(count), drawn] == 1).all()


def test_noise_is_gumbel_and_finite() -> None:
    noise = distributions.draw_noise(DISCRETE, np.random.default_rng(5), 500, 500)
    assert noise.shape == (500, 500, 4) and noise.dtype == np.float32 and np.isfinite(noise).all()
    assert noise.mean() == pytest.approx(0.5772, abs=0.01)  # Euler's constant
    assert noise.var() == pytest.approx(np.pi**2 / 6, abs=0.02)
    normal = distributions.draw_noise(BOX, np.random.default_rng(5), 7, 5)
    assert normal.shape == (7, 5, 6) and normal.dtype == np.float32
    again = distributions.draw_noise(BOX, np.random.default_rng(5), 7, 5)
    np.testing.assert_array_equal(normal, again)


class ZeroGenerator:
    """The rarest draw: an exponential of exactly zero, whose Gumbel would be infinite."""

    def standard_exponential(self, shape: tuple) -> np.ndarray:
        return np.zeros(shape)


def test_the_rarest_noise_still_respects_the_mask(on: Any) -> None:
    noise = distributions.draw_noise(DISCRETE, ZeroGenerator(), 1)  # type: ignore[arg-type]
    assert np.isfinite(noise).all()
    noise[0, 3] = -4.0
    mask = np.uint8([[0, 0, 0, 1]])
    assert on(draw, np.zeros((1, 4), np.float32), mask, noise).tolist() == [3]


# counts (3, 2): the first row of LOGITS masked to its first two, then probabilities 1/4 3/4
MULTI_LOGITS = np.log(np.float32([[1, 2, 5, 1, 3]]))
MULTI_MASK = np.uint8([[1, 1, 0, 1, 1]])


def test_multi_categorical_by_hand(on: Any) -> None:
    def numbers(xp: Any, logits: Any, mask: Any, action: Any) -> tuple:
        policy, other = (MultiCategorical(xp, x, (3, 2), mask) for x in (logits, logits * 0))
        return policy.log_prob(action), policy.entropy(), policy.kl(other), policy.mode()

    log_prob, entropy, kl, mode = on(numbers, MULTI_LOGITS, MULTI_MASK, np.int64([[0, 1]]))
    np.testing.assert_allclose(log_prob, [np.log(1 / 3 * 3 / 4)], rtol=1e-6)
    # ln 3 - (2/3) ln 2 = .636514 and ln 4 - (3/4) ln 3 = .562335; against uniform ln 2 less each
    np.testing.assert_allclose(entropy, [0.636514 + 0.562335], atol=1e-6)
    np.testing.assert_allclose(kl, [2 * 0.693147 - 0.636514 - 0.562335], atol=1e-6)
    np.testing.assert_array_equal(mode, [[1, 1]])


def test_multi_categorical_noise_lies_end_to_end(on: Any) -> None:
    noise = np.float32([[9, 0, 99, 9, 0]])  # prefers 0 in both; 2 is illegal in the first

    def draw_both(xp: Any, logits: Any, mask: Any, noise: Any) -> Any:
        return MultiCategorical(xp, logits, (3, 2), mask).sample(noise)

    drawn = on(draw_both, MULTI_LOGITS, MULTI_MASK, noise)
    np.testing.assert_array_equal(drawn, [[0, 0]])


# means 1 and -1, deviations 1/2 and 3
PARAMETERS = np.float32([[1, -1, np.log(0.5), np.log(3)]])
ACTION = np.float32([[2, 2]])  # scores 1 / .5 = 2 and 3 / 3 = 1


def test_gaussian_by_hand(on: Any) -> None:
    def numbers(xp: Any, parameters: Any, action: Any, noise: Any) -> tuple:
        p, standard = Gaussian(xp, parameters), Gaussian(xp, parameters * 0)
        return p.log_prob(action), p.entropy(), p.kl(standard), p.sample(noise), p.mode()

    log_prob, entropy, kl, drawn, mode = on(numbers, PARAMETERS, ACTION, np.float32([[2, -1]]))
    np.testing.assert_allclose(log_prob, [-4.743342], atol=1e-6)  # -(4 + 1)/2 - (ln .5 + ln 3) - ln(2 pi)
    np.testing.assert_allclose(entropy, [3.243342], atol=1e-6)  # 1 + ln(2 pi) + ln .5 + ln 3
    # (s^2 + m^2 - 1)/2 - ln s: (.25 + 1 - 1)/2 + .693147 and (9 + 1 - 1)/2 - 1.098612; the other way 3.516576
    np.testing.assert_allclose(kl, [4.219535], atol=1e-6)
    np.testing.assert_allclose(drawn, [[2, -4]], rtol=1e-6)
    np.testing.assert_allclose(mode, [[1, -1]], rtol=1e-6)


def test_gaussian_gradient_by_hand(gradient_of: Any) -> None:
    gradient = gradient_of(lambda xp, p, action: Gaussian(xp, p).log_prob(action), PARAMETERS, ACTION)
    # (a - m) / s^2 = 1/.25 and 3/9; score^2 - 1 = 3 and 0
    np.testing.assert_allclose(gradient, [[4, 1 / 3, 3, 0]], atol=1e-5)


def test_gaussian_survives_absurd_deviations(gradient_of: Any) -> None:
    def number(xp: Any, parameters: Any, action: Any) -> Any:
        policy = Gaussian(xp, parameters)
        return policy.log_prob(action) + policy.entropy() + policy.kl(Gaussian(xp, parameters * -1.0))

    gradient = gradient_of(number, np.float32([[0, 0, -500, 500]]), np.float32([[1, 1]]))
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("leaf, count", [(DISCRETE, 4), (MULTI, 11), (BOX, 12)])
def test_make_follows_the_leaf(on: Any, leaf: Leaf, count: int) -> None:
    assert distributions.parameter_count(leaf) == count
    rng = np.random.default_rng(6)
    parameters = rng.normal(size=(5, 7, count)).astype(np.float32)
    noise = distributions.draw_noise(leaf, rng, 5, 7)

    def act(xp: Any, parameters: Any, noise: Any) -> tuple:
        policy = distributions.make(xp, leaf, parameters)
        action = policy.sample(noise)
        return action, policy.mode(), policy.log_prob(action), policy.entropy(), policy.kl(policy)

    action, mode, log_prob, entropy, kl = on(act, parameters, noise)
    assert action.shape == mode.shape == (5, 7, *leaf.shape)
    assert log_prob.shape == entropy.shape == kl.shape == (5, 7)
    np.testing.assert_allclose(kl, 0.0, atol=1e-5)
    if leaf.counts:
        limits = np.reshape(leaf.counts, leaf.shape)
        assert (action >= 0).all() and (action < limits).all() and (action == limits - 1).any()


def test_make_refuses_what_it_cannot_do() -> None:
    xp = backends.load("numpy").xp
    binary = Leaf("multi_binary", (3,), "int8", (2, 2, 2))
    for call in (
        lambda: distributions.make(xp, binary, np.zeros((1, 6), np.float32)),
        lambda: distributions.parameter_count(binary),
        lambda: distributions.draw_noise(binary, np.random.default_rng(0)),
    ):
        with pytest.raises(UserError, match="multi_binary"):
            call()
    with pytest.raises(UserError, match="mask"):
        distributions.make(xp, BOX, np.zeros((1, 12), np.float32), np.ones((1, 6), np.uint8))


@pytest.mark.parametrize("leaf", [DISCRETE, MULTI, BOX])
def test_backends_agree(leaf: Leaf) -> None:
    rng = np.random.default_rng(7)
    first, second = rng.normal(size=(2, 64, distributions.parameter_count(leaf))).astype(np.float32)
    noise = distributions.draw_noise(leaf, rng, 64)
    mask = rng.integers(0, 2, (64, leaf.logits), dtype=np.uint8)
    mask[:, np.cumsum(leaf.counts, dtype=int) - 1] = 1  # a legal choice in every entry

    def numbers(xp: Any, first: Any, second: Any, noise: Any, mask: Any) -> tuple:
        usable = mask if leaf.counts else None
        policy, other = (distributions.make(xp, leaf, p, usable) for p in (first, second))
        action = policy.sample(noise)
        return action, policy.mode(), policy.log_prob(action), policy.entropy(), policy.kl(other)

    results = [run(name, numbers, first, second, noise, mask) for name in (*BACKENDS, "jax-eager")]
    for result in results[1:]:
        for mine, reference in zip(result, results[0]):
            np.testing.assert_allclose(mine, reference, rtol=1e-5, atol=1e-5)
