"""Which observations are images, and how they are laid out.

The rule, which the line at the start of a run states for each image:

- An image is a Box with three axes, or with two if it holds bytes (uint8, a grey picture), or with four (a stack of
  pictures with channels, on its first axis), whose pixel axes have at least `SMALLEST` entries each. All else is a
  vector.
- Of three axes, the first or the last holds the channels. If the other two are equal, as in a square picture, that
  decides it; else the shorter of first and last does, and the last if they are equal.
- A stack of grey pictures that is known as one (`EnvSpec.frames`) has its frames as channels, however many there are.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from cavalcade.errors import UserError
from cavalcade.specs import Leaf

SMALLEST = 4  # entries of a pixel axis; below, a convolution has nothing to slide over
NEEDS = {"nature": 36, "shallow": 20}  # pixels in a row that the convolutions need; the others slide over any image
CNNS = {  # name of a convolution, in words
    "nature": "Nature CNN",
    "shallow": "shallow CNN",
    "impala": "IMPALA CNN",
    "small": "small CNN",
}


@dataclass(frozen=True)
class Image:
    """The layout of observations of one leaf."""

    leaf: Leaf
    frames: int  # pictures in the stack; 1: it is none
    axis: str  # where the channels of a picture are: first, last, or empty if it has none
    height: int
    width: int
    channels: int  # that the CNN sees: those of all frames

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W), as CNNs want it."""
        return self.channels, self.height, self.width

    def fits(self, convolution: str) -> bool:
        """Whether the network can take it."""
        return min(self.height, self.width) >= NEEDS.get(convolution, SMALLEST)

    def cnn(self, convolution: str) -> str:
        """The name in `CNNS` of the network for this image. `convolution`: as the user has set it."""
        if convolution == "auto":
            return "nature" if self.fits("nature") else "small"
        if not self.fits(convolution):
            least = NEEDS[convolution]
            raise UserError(
                f"An image of {self.height}x{self.width} pixels is too small for the {CNNS[convolution]}, which needs "
                f"{least}x{least}; use --convolution auto, small or impala."
            )
        return convolution

    def told(self, path: str, convolution: str) -> str:
        """In words: what was taken for pixels and channels, and which network sees it. `path`: of the leaf."""
        name = f"image '{path}'" if path else "image"
        each = self.channels // self.frames
        channels = f"{each} channel{'s' if each > 1 else ''} ({self.axis} axis)" if self.axis else "grey"
        stacked = f"{self.frames} frames (first axis), " if self.frames > 1 else ""
        return f"{name} {self.height}x{self.width}, {stacked}{channels}, {CNNS[self.cnn(convolution)]}"

    def arranged(self, xp: Any, x: Any) -> Any:
        """Observations [N, *shape of the leaf] as float32 [N, C, H, W]. Bytes are divided by the highest value that
        their Box declares, so that they lie in 0 .. 1; booleans are 0 and 1; all else is taken as it is."""
        if self._order != tuple(range(x.ndim)):
            x = xp.permute_dims(x, self._order)
        if len(self.leaf.shape) != 3:
            x = xp.reshape(x, (x.shape[0], *self.shape))
        if self.leaf.dtype != "uint8":
            return xp.astype(x, xp.float32)
        return xp.fractions(x) if self._scale is None else xp.astype(x, xp.float32) * xp.asarray(self._scale)

    @cached_property
    def _order(self) -> tuple[int, ...]:
        """The axes of a batch, channels before pixels."""
        axes = tuple(range(len(self.leaf.shape) + 1))
        return (*axes[:-3], axes[-1], *axes[-3:-1]) if self.axis == "last" else axes

    @cached_property
    def _scale(self) -> np.ndarray | None:
        """What bytes are multiplied by, for each entry or for all; None for 1/255."""
        high = np.array(self.leaf.high or (255.0,), np.float32)
        if (high == 255.0).all():
            return None
        scale = 1.0 / np.maximum(high, 1.0)
        if len(scale) == 1:
            return scale
        return scale.reshape(1, *self.leaf.shape).transpose(self._order).reshape(1, *self.shape)


def image_of(leaf: Leaf, frames: int = 1) -> Image | None:
    """How observations of this leaf are seen as images; None if they are none. `frames`: of `EnvSpec`."""
    axes, shape = len(leaf.shape), leaf.shape
    if leaf.kind != "box" or axes not in (2, 3, 4) or (axes == 2 and (leaf.dtype != "uint8" or frames > 1)):
        return None
    if axes == 2 or (axes == 3 and frames > 1):
        stack, axis = (1 if axes == 2 else shape[0]), ""
        height, width, channels = shape[-2], shape[-1], stack
    else:
        stack = shape[0] if axes == 4 else 1
        axis = _channel_axis(shape[-3], shape[-2], shape[-1])
        height, width = shape[-2:] if axis == "first" else shape[-3:-1]
        channels = stack * (shape[-3] if axis == "first" else shape[-1])
    if min(height, width) < SMALLEST:
        return None
    return Image(leaf, stack, axis, height, width, channels)


def _channel_axis(first: int, middle: int, last: int) -> str:
    """Which of three axes holds the channels, from their lengths."""
    if (first == middle) != (middle == last):
        return "last" if first == middle else "first"
    return "first" if first < last else "last"
