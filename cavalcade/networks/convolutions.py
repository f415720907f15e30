"""Networks for images: `images.py` says which observations are images, and which of these networks fits."""

from collections.abc import Callable
from typing import Any

import numpy as np

from cavalcade.networks.layers import Network, Rng, initial_bias, initialiser_of, linear
from cavalcade.tree import Tree

# Up to so many pixels the small CNN acts faster in NumPy than in torch: for 8 environments in 260 instead of 390 us at
# 10x10x4 and in 580 instead of 760 at 16x16x3, on one thread. (For 64 environments torch is: --acts-in backend.)
FEW_PIXELS = 16 * 16


def _convolution(channels: int, outputs: int, size: int, initialiser: str) -> Callable[[Rng], Tree]:
    """`init` of a convolution with kernels of `size` x `size` pixels."""
    fan_in = channels * size * size

    def init(rng: Rng) -> Tree:
        weight = initialiser_of(initialiser, np.sqrt(2.0))(rng, (outputs, channels, size, size), fan_in)
        return {"weight": weight, "bias": initial_bias(initialiser, rng, outputs, fan_in)}

    return init


def small_cnn(shape: tuple[int, int, int], initialiser: str) -> Network:
    """[N, C, H, W] -> [N, 128]. Young and Tian 2019, MinAtar: one convolution, 16 3x3/1, then 128 units.
    `shape`: (C, H, W)."""
    channels, height, width = shape
    convolution = _convolution(channels, 16, 3, initialiser)
    dense = linear(16 * (height - 2) * (width - 2), 128, initialiser, np.sqrt(2.0))

    def init(rng: Rng) -> Tree:
        return {"0": convolution(rng), "dense": dense.init(rng)}

    def apply(xp: Any, params: Tree, x: Any) -> Any:
        x = xp.rectified(xp.conv2d(x, params["0"]["weight"], params["0"]["bias"], 1))
        return xp.relu(dense.apply(xp, params["dense"], xp.reshape(x, (x.shape[0], -1))))

    return Network(init, apply, 128, small=height * width <= FEW_PIXELS)


def nature_cnn(shape: tuple[int, int, int], initialiser: str) -> Network:
    """[N, C, H, W] in [0, 1] -> [N, 512]. Mnih 2015: convolutions 32 8x8/4, 64 4x4/2, 64 3x3/1, then 512 units.
    `shape`: (C, H, W)."""
    return _chain(shape, ((32, 8, 4), (64, 4, 2), (64, 3, 1)), 512, initialiser)


def shallow_cnn(shape: tuple[int, int, int], initialiser: str) -> Network:
    """[N, C, H, W] in [0, 1] -> [N, 256]. Mnih 2013 and 2016 (A3C): convolutions 16 8x8/4, 32 4x4/2, then 256 units.
    An update costs half of one of the Nature CNN. `shape`: (C, H, W)."""
    return _chain(shape, ((16, 8, 4), (32, 4, 2)), 256, initialiser)


def _chain(
    shape: tuple[int, int, int], convolutions: tuple[tuple[int, int, int], ...], units: int, initialiser: str
) -> Network:
    """Convolutions (outputs, pixels of a kernel's side, stride), each with a relu, then a layer of `units`."""
    channels, height, width = shape
    inits = []
    for outputs, size, stride in convolutions:
        inits.append(_convolution(channels, outputs, size, initialiser))
        channels, height, width = outputs, (height - size) // stride + 1, (width - size) // stride + 1
    dense = linear(channels * height * width, units, initialiser, np.sqrt(2.0))

    def init(rng: Rng) -> Tree:
        return {**{str(i): one(rng) for i, one in enumerate(inits)}, "dense": dense.init(rng)}

    def apply(xp: Any, params: Tree, x: Any) -> Any:
        for i, (_, _, stride) in enumerate(convolutions):
            layer = params[str(i)]
            x = xp.rectified(xp.conv2d(x, layer["weight"], layer["bias"], stride))
        return xp.relu(dense.apply(xp, params["dense"], xp.reshape(x, (x.shape[0], -1))))

    return Network(init, apply, units, small=False)


def impala_cnn(shape: tuple[int, int, int], initialiser: str) -> Network:
    """[N, C, H, W] -> [N, 256]. Espeholt 2018, the deep network: three sections of a convolution, a max-pool
    and two residual blocks, then 256 units. `shape`: (C, H, W)."""
    channels, height, width = shape
    widths = (16, 32, 32)
    for _ in widths:
        height, width = (height + 1) // 2, (width + 1) // 2
    dense = linear(widths[-1] * height * width, 256, initialiser, np.sqrt(2.0))
    blocks = [f"block{block}.{half}" for block in range(2) for half in range(2)]

    def init(rng: Rng) -> Tree:
        params: dict = {}
        inputs = channels
        for i, outputs in enumerate(widths):
            section = {name: _convolution(outputs, outputs, 3, initialiser)(rng) for name in blocks}
            params[str(i)] = {"entry": _convolution(inputs, outputs, 3, initialiser)(rng), **section}
            inputs = outputs
        return {**params, "dense": dense.init(rng)}

    def apply(xp: Any, params: Tree, x: Any) -> Any:
        def convolve(layer: Tree, y: Any) -> Any:
            return xp.conv2d(y, layer["weight"], layer["bias"], 1, 1)

        for i in range(len(widths)):
            section = params[str(i)]
            x = xp.max_pool(convolve(section["entry"], x), 3, 2, 1)
            for block in range(2):
                y = convolve(section[f"block{block}.0"], xp.relu(x))
                x = x + convolve(section[f"block{block}.1"], xp.relu(y))
        x = xp.reshape(xp.relu(x), (x.shape[0], -1))
        return xp.relu(dense.apply(xp, params["dense"], x))

    return Network(init, apply, 256, small=False)
