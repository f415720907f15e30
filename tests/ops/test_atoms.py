"""Distributions of returns on fixed atoms, and their projection, in numbers done by hand."""

from typing import Any

import numpy as np
import pytest

from cavalcade.ops.atoms import Atoms

ONE_AT_ONCE = np.eye(5, dtype=np.float32)  # all probability on one atom of -2, -1, 0, 1, 2


def project(on: Any, probabilities: Any, reward: Any, discount: Any) -> tuple[np.ndarray, np.ndarray]:
    """The projection on -2, -1, 0, 1, 2, and the share outside."""

    def projected(xp: Any, p: Any, r: Any, d: Any) -> tuple:
        atoms = Atoms(xp, -2.0, 2.0, 5)
        places = atoms.moved(r, d)
        return atoms.projected(p, places), atoms.outside(p, places)

    return on(projected, *(np.float32(each) for each in (probabilities, reward, discount)))


def test_mean_and_probabilities(on: Any) -> None:
    def numbers(xp: Any, logits: Any) -> tuple:
        atoms = Atoms(xp, -2.0, 2.0, 5)
        found = atoms.probabilities(logits)
        return found, atoms.mean(found)

    found, mean = on(numbers, np.log(np.float32([[1, 1, 2, 4, 8], [1, 1, 1, 1, 1]])))
    np.testing.assert_allclose(found[0], np.array([1, 1, 2, 4, 8]) / 16, rtol=1e-6)
    np.testing.assert_allclose(mean, [(-2 - 1 + 4 + 16) / 16, 0.0], atol=1e-6)


def test_projection_by_hand(on: Any) -> None:
    cases = [  # on which atom all lies, reward, discount, and what comes of it
        (3, 0.0, 1.0, [0, 0, 0, 1, 0]),  # nothing moves
        (3, -1.0, 1.0, [0, 0, 1, 0, 0]),  # to another atom
        (4, 0.0, 0.5, [0, 0, 0, 1, 0]),  # 2 -> 1, onto an atom
        (3, 0.0, 0.75, [0, 0, 0.25, 0.75, 0]),  # 1 -> 0.75, nearer to 1
        (0, 0.1, 0.9, [0.7, 0.3, 0, 0, 0]),  # -2 -> 0.1 - 1.8 = -1.7: 0.7 of it to -2
        (4, 5.0, 0.9, [0, 0, 0, 0, 1]),  # 6.8, above the support
        (0, -5.0, 0.9, [1, 0, 0, 0, 0]),  # below it
        (2, 1.25, 0.0, [0, 0, 0, 0.75, 0.25]),  # an end of an episode: the reward alone counts
        (1, 2.0, 0.0, [0, 0, 0, 0, 1]),  # and lies just on the last atom
    ]
    places, reward, discount, expected = (list(each) for each in zip(*cases))
    found, outside = project(on, ONE_AT_ONCE[places], reward, discount)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert outside == pytest.approx(2 / 9)


def test_shares_of_several_atoms_add_up(on: Any) -> None:
    # atoms -2 .. 2 go to 0.5, 1, 1.5, 2, 2.5: halves to 0 and 1; 1; halves to 1 and 2; 2; the end for 2.5
    found, outside = project(on, [[0.1, 0.2, 0.3, 0.15, 0.25]], [1.5], [0.5])
    np.testing.assert_allclose(found, [[0, 0, 0.05, 0.05 + 0.2 + 0.15, 0.15 + 0.15 + 0.25]], atol=1e-6)
    assert outside == pytest.approx(0.25)


def test_a_projection_keeps_all_probability_and_the_mean_of_what_lies_inside(on: Any) -> None:
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet(np.ones(51), 64)
    reward, discount = rng.uniform(-0.5, 0.5, 64), rng.uniform(0.0, 0.9, 64)

    def projected(xp: Any, p: Any, r: Any, d: Any) -> tuple:
        atoms = Atoms(xp, -7.3, 7.3, 51)
        places = atoms.moved(r, d)
        return atoms.projected(p, places), atoms.outside(p, places)

    found, outside = on(projected, *(each.astype(np.float32) for each in (probabilities, reward, discount)))
    np.testing.assert_allclose(found.sum(-1), 1.0, atol=1e-5)
    support = np.linspace(-7.3, 7.3, 51)
    np.testing.assert_allclose(found @ support, reward + discount * (probabilities @ support), atol=1e-4)
    assert outside == 0.0


def test_rounding_does_not_count_as_outside(on: Any) -> None:
    """0.1 + 0.2 and the last atom itself lie on the edge, not beyond it."""

    def outside(xp: Any, p: Any, r: Any, d: Any) -> Any:
        atoms = Atoms(xp, 0.0, 0.3, 4)
        return atoms.outside(p, atoms.moved(r, d))

    last = np.float32([[0, 0, 0, 1]] * 2)
    assert on(outside, last, np.float32([0.3, 0.1 + 0.2]), np.float32([0.0, 0.0])) == 0.0
    assert on(outside, last, np.float32([0.0, 0.001]), np.float32([1.0, 1.0])) == 0.5
