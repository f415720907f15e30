"""From Gymnasium's observations and infos to trees of arrays, and from our actions to Gymnasium's.

A space is walked over once, which makes functions that build its trees, so that a step costs one new array for each
leaf. Action masks always end up under `specs.MASK`, wherever they came from: [N, choices] of 0 and 1.
"""

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from cavalcade import tree
from cavalcade.envs.spaces import action_spec, observation_spec
from cavalcade.errors import BadEnvironment
from cavalcade.specs import MASK, EnvSpec, Leaf

Builder = Callable[[Any], tree.Tree]


class Encoder:
    """Turns observations of one kind of environment into trees of arrays [N, ...], with a mask where there is one."""

    def __init__(
        self,
        name: str,
        observation: gym.Space,
        action: gym.Space,
        info_mask: bool,
        place: Callable[[int], str],
        copy: bool = True,
    ):
        """`info_mask`: whether infos say which actions are legal. `place`: where an environment is, in words for a
        message. `copy`: whether batches are copied, because a vector environment may write into them again."""
        self._place = place
        action_leaf = action_spec(action)
        tree_spec = observation_spec(observation)
        own_mask = isinstance(tree_spec, dict) and MASK in tree_spec
        self._info_mask = info_mask and not own_mask
        self._choices = action_leaf.logits
        if own_mask or self._info_mask:
            if action_leaf.kind == "box":
                raise BadEnvironment(
                    f"The environment '{name}' has a '{MASK}' but Box actions, which cannot be masked; "
                    f"rename '{MASK}' or use Discrete or MultiDiscrete actions."
                )
            mask_leaf = Leaf("multi_binary", (self._choices,), "int8", (2,) * self._choices)
            content = tree_spec if own_mask else {"observation": tree_spec}
            tree_spec = {**content, MASK: mask_leaf}
        self.spec = EnvSpec(name, tree_spec, action_leaf)
        self._stack = _stacker(observation, self._stack_masks)
        self._batch = _batcher(observation, self._batch_masks, copy)

    def stack(self, rows: Sequence[Any], infos: Sequence[dict]) -> tree.Tree:
        """[N, ...] from N observations of single environments; always new arrays."""
        if self._info_mask:
            masks = self._stack_masks([info.get(MASK) for info in infos])
            return {"observation": self._stack(rows), MASK: masks}
        return self._stack(rows)

    def batch(self, batch: Any, info: dict) -> tree.Tree:
        """[N, ...] from the batched observations of a vector environment."""
        if self._info_mask:
            observation = self._batch(batch)
            count = len(tree.leaves(observation)[0])
            masks = self._batch_masks(info[MASK]) if MASK in info else np.zeros((count, self._choices), np.int8)
            return {"observation": observation, MASK: masks}
        return self._batch(batch)

    def _stack_masks(self, masks: Sequence[Any]) -> np.ndarray:
        """[N, choices] from N masks of single environments."""
        if all(isinstance(mask, np.ndarray) and mask.shape == (self._choices,) for mask in masks):
            whole = np.array(masks)
            if whole.dtype.kind in "biu":
                return (whole != 0).astype(np.int8)
        return np.stack([self._flat_mask(mask, row) for row, mask in enumerate(masks)])

    def _batch_masks(self, masks: Any) -> np.ndarray:
        """[N, choices] from the masks that a vector environment gave."""
        if isinstance(masks, tuple):  # a Tuple space: one [N, choices] array for each entry of the action
            masks = np.concatenate([np.reshape(part, (len(part), -1)) for part in masks], axis=1)
        return self._stack_masks(list(masks))

    def _flat_mask(self, mask: Any, row: int) -> np.ndarray:
        """One mask as [choices] of 0 and 1. For MultiDiscrete actions it may come as one array for each entry. No mask
        at all, as some environments give at the end of an episode, means that nothing is legal."""
        if mask is None:
            return np.zeros(self._choices, np.int8)
        parts = mask if isinstance(mask, (tuple, list)) else (mask,)
        flat = np.concatenate([np.ravel(part) for part in parts])
        if len(flat) != self._choices:
            raise BadEnvironment(
                f"The '{MASK}' of '{self.spec.environment}' has {len(flat)} entries for {self._choices} "
                f"choices in {self._place(row)}; give one entry for each choice."
            )
        strange = [value for value in flat.tolist() if value not in (0, 1)]
        if strange:  # such as logits, where 0 is legal: they would be read the wrong way round
            raise BadEnvironment(
                f"The '{MASK}' of '{self.spec.environment}' holds {strange[0]!r} in {self._place(row)}; "
                "give 1 for what is legal and 0 for what is not."
            )
        return (flat != 0).astype(np.int8)


def _stacker(space: gym.Space, masks: Builder | None = None) -> Builder:
    """A function from a list of N observations of `space` to their tree [N, ...]. `masks` builds a MASK at the top."""
    if isinstance(space, (gym.spaces.Dict, gym.spaces.Tuple)):
        children = _children(space, lambda child: _stacker(child), masks)
        return lambda rows: {name: build([row[key] for row in rows]) for name, key, build in children}
    dtype, start = _values(space)
    if start.any():
        return lambda rows: np.array(rows, dtype) - start
    return lambda rows: np.array(rows, dtype)


def _batcher(space: gym.Space, masks: Builder | None, copy: bool) -> Builder:
    """The same for observations that a vector environment has batched already. `copy`: into new arrays."""
    if isinstance(space, (gym.spaces.Dict, gym.spaces.Tuple)):
        children = _children(space, lambda child: _batcher(child, None, copy), masks)
        return lambda batch: {name: build(batch[key]) for name, key, build in children}
    dtype, start = _values(space)
    if start.any():
        return lambda batch: np.asarray(batch, dtype) - start
    # In C order, because the table, which reads row by row, and the sums of `sentinel.py` would copy it otherwise.
    return (lambda batch: np.array(batch, dtype, order="C")) if copy else (lambda batch: np.asarray(batch, dtype))


def _children(space: gym.Space, build: Callable[[gym.Space], Builder], masks: Builder | None) -> list:
    """For each part of a Dict or Tuple: its name in our tree, its key in an observation, and what builds it."""
    if isinstance(space, gym.spaces.Tuple):
        return [(str(index), index, build(child)) for index, child in enumerate(space.spaces)]
    assert isinstance(space, gym.spaces.Dict)
    return [
        (key, key, masks if masks is not None and key == MASK else build(child)) for key, child in space.spaces.items()
    ]


def _values(space: gym.Space) -> tuple[np.dtype, np.ndarray]:
    """The dtype of our array for a space, and the number from which its choices count (zero where it has none)."""
    leaf = observation_spec(space)
    start = np.array(leaf.start, np.int64).reshape(leaf.shape) if leaf.start else np.zeros((), np.int64)
    return np.dtype(leaf.dtype), start


class ActionDecoder:
    """Turns our actions into the environment's: adds the `start` of its choices, clips to the bounds of its Box."""

    def __init__(self, space: gym.Space) -> None:
        leaf = action_spec(space)
        self.kind = leaf.kind
        self.dtype = np.dtype(leaf.dtype)
        self._start = np.array(leaf.start, np.int64).reshape(leaf.shape) if leaf.start else np.zeros((), int)
        self._shifted = bool(self._start.any())
        if isinstance(space, gym.spaces.Box):
            self._low, self._high = space.low, space.high

    def batch(self, action: np.ndarray) -> np.ndarray:
        """Actions [N, *action shape] as a vector environment takes them."""
        if self.kind == "box":  # two ufuncs cost a third of np.clip
            return np.minimum(np.maximum(action, self._low), self._high).astype(self.dtype, copy=False)
        action = np.asarray(action, self.dtype)
        return action + self._start if self._shifted else action

    def rows(self, action: np.ndarray) -> list:
        """One action for each single environment: Python integers where actions are discrete, else arrays."""
        batch = self.batch(action)
        return batch.tolist() if self.kind == "discrete" else list(batch)


def random_actions(spec: EnvSpec, observation: tree.Tree, count: int, random: np.random.Generator) -> np.ndarray:
    """Legal actions [count, *action shape], all equally likely; normally distributed where a Box has no bounds."""
    action = spec.action
    if action.kind == "box":
        low, high = action.bounds
        bounded = np.isfinite(low) & np.isfinite(high)
        drawn = random.normal(size=(count, *action.shape))
        even = random.uniform(np.where(bounded, low, 0.0), np.where(bounded, high, 1.0), drawn.shape)
        return np.where(bounded, even, drawn)
    weights = observation[MASK] if spec.masked else np.ones((count, action.logits))
    parts = np.split(weights, np.cumsum(action.counts)[:-1], axis=1)
    drawn = np.stack([np.argmax(part * random.random(part.shape), axis=1) for part in parts], axis=1)
    return drawn[:, 0] if action.kind == "discrete" else drawn.reshape(count, *action.shape)
