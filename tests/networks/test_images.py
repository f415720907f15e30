"""Which observations are images, where their channels are, and which network sees them."""

import gymnasium as gym
import numpy as np
import pytest

from cavalcade import backends
from cavalcade.backends.numpy_backend import acting
from cavalcade.envs.spaces import action_spec, observation_spec
from cavalcade.errors import UserError
from cavalcade.experiment import has_images
from cavalcade.networks import image_of
from cavalcade.networks.torso import Torso, torso
from cavalcade.specs import EnvSpec, Leaf


def leaf(shape, dtype="uint8", high=255.0):
    return Leaf("box", shape, dtype, low=(0.0,), high=(high,))


@pytest.mark.parametrize(
    "shape, dtype, frames, told",
    [
        ((10, 10, 4), "bool", 1, "image 10x10, 4 channels (last axis), small CNN"),
        ((7, 7, 3), "uint8", 1, "image 7x7, 3 channels (last axis), small CNN"),
        ((10, 10, 10), "bool", 1, "image 10x10, 10 channels (last axis), small CNN"),  # equal: the last
        ((7, 7, 20), "uint8", 1, "image 7x7, 20 channels (last axis), small CNN"),  # a square has them elsewhere
        ((20, 7, 7), "float32", 1, "image 7x7, 20 channels (first axis), small CNN"),
        ((3, 35, 84), "uint8", 1, "image 35x84, 3 channels (first axis), small CNN"),
        ((210, 160, 3), "uint8", 1, "image 210x160, 3 channels (last axis), Nature CNN"),
        ((4, 84, 84), "uint8", 1, "image 84x84, 4 channels (first axis), Nature CNN"),
        ((4, 84, 84), "uint8", 4, "image 84x84, 4 frames (first axis), grey, Nature CNN"),
        ((10, 8, 8), "float32", 10, "image 8x8, 10 frames (first axis), grey, small CNN"),
        ((4, 84, 84, 3), "uint8", 4, "image 84x84, 4 frames (first axis), 3 channels (last axis), Nature CNN"),
        ((2, 3, 36, 40), "uint8", 1, "image 36x40, 2 frames (first axis), 3 channels (first axis), Nature CNN"),
        ((84, 84), "uint8", 1, "image 84x84, grey, Nature CNN"),
        ((4, 4, 1), "float64", 1, "image 4x4, 1 channel (last axis), small CNN"),
    ],
)
def test_the_rule_and_its_words(shape, dtype, frames, told):
    assert torso(leaf(shape, dtype), Torso(), frames).sees == told


@pytest.mark.parametrize(
    "shape, dtype, frames",
    [
        ((3, 4, 2), "uint8", 1),  # three pixels are too few
        ((2, 3, 4), "float32", 1),
        ((84, 84), "float32", 1),  # two axes of floats may be anything
        ((4, 128), "uint8", 4),  # a stack of vectors
        ((128,), "uint8", 1),
    ],
)
def test_all_else_is_a_vector(shape, dtype, frames):
    assert image_of(leaf(shape, dtype), frames) is None
    assert torso(leaf(shape, dtype), Torso((6,)), frames).sees == ""


@pytest.mark.parametrize("shape, frames", [((5, 6), 1), ((3, 5, 6), 3), ((3, 5, 6, 2), 3), ((3, 2, 5, 6), 3)])
def test_frames_and_channels_become_channels_in_every_library(shape, frames):
    picture = image_of(leaf(shape), frames)
    x = np.random.default_rng(0).integers(0, 256, (4, *shape), np.uint8)
    last = shape[-1] == 2
    expected = (np.moveaxis(x, -1, 2) if last else x).reshape(4, *picture.shape).astype(np.float32) / 255
    assert picture.shape == (np.prod(shape) // 30, 5, 6)
    for xp, to, back in [(acting, np.asarray, np.asarray), *_libraries()]:
        np.testing.assert_allclose(back(picture.arranged(xp, to(x))), expected, atol=1e-6)


def _libraries():
    loaded = [backends.load(name, 1) for name in backends.NAMES]
    return [(backend.xp, backend.from_numpy, backend.to_numpy) for backend in loaded]


def test_bytes_are_divided_by_the_highest_value_that_is_declared():
    x = np.full((1, 4, 4, 3), 3, np.uint8)
    assert np.allclose(image_of(leaf((4, 4, 3))).arranged(acting, x), 3 / 255)
    assert np.allclose(image_of(leaf((4, 4, 3), high=12.0)).arranged(acting, x), 0.25)
    of_each = observation_spec(gym.spaces.Box(0, np.broadcast_to(np.uint8([10, 5, 3]), (4, 4, 3)), dtype=np.uint8))
    for xp, to, back in [(acting, np.asarray, np.asarray), *_libraries()]:
        seen = back(image_of(of_each).arranged(xp, to(x)))
        assert seen.dtype == np.float32 and np.allclose(seen[0, :, 2, 2], [0.3, 0.6, 1.0])
    floats = np.full((1, 4, 4, 3), 3, np.float64)
    assert np.allclose(image_of(leaf((4, 4, 3), "float64")).arranged(acting, floats), 3.0)


def test_the_nature_cnn_refuses_what_is_too_small_for_it():
    with pytest.raises(UserError, match=r"7x7 pixels is too small .* use --convolution auto, small or impala"):
        torso(leaf((7, 7, 3)), Torso(convolution="nature"))
    with pytest.raises(UserError, match=r"19x84 pixels is too small for the shallow CNN, which needs 20x20"):
        torso(leaf((19, 84, 3)), Torso(convolution="shallow"))
    assert torso(leaf((20, 20, 3)), Torso(convolution="shallow")).sees.endswith("shallow CNN")
    assert torso(leaf((7, 7, 3)), Torso(convolution="impala")).sees.endswith("IMPALA CNN")
    assert torso(leaf((40, 40, 3)), Torso(convolution="small")).sees.endswith("small CNN")


@pytest.mark.parametrize("shape, large", [((10, 10, 4), False), ((35, 84, 3), False), ((36, 36, 3), True)])
def test_settings_of_papers_on_atari_are_for_large_images_only(shape, large):
    spec = EnvSpec("", {"camera": leaf(shape), "arm": leaf((3,))}, action_spec(gym.spaces.Discrete(2)))
    assert has_images(spec) == large
