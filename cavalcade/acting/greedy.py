"""A trained policy in a program of one's own: what an environment gives goes in, what it takes comes out.

    act = Greedy(load_policy("runs/first"))
    observation, info = env.reset()
    observation, reward, terminated, truncated, info = env.step(act(observation, info))

The spaces stored with the policy say how to read observations and how to write actions, as in training: `start` of
Discrete spaces, Dict and Tuple, bounds of Box actions. An observation that does not fit them is refused.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from cavalcade.acting.policy import Policy
from cavalcade.envs import ActionDecoder, action_space
from cavalcade.errors import UserError
from cavalcade.specs import MASK, Leaf
from cavalcade.tree import Tree


class Greedy:
    """Called with one observation, gives the greedy action and keeps the carry; call `reset()` before each episode."""

    def __init__(self, policy: Policy):
        self.policy, self.spec = policy, policy.model.spec
        self._decoder = ActionDecoder(action_space(self.spec.action))
        self.reset()

    def reset(self) -> None:
        self.carry, self.first = self.policy.model.carry(1), np.ones(1, np.bool_)

    def __call__(self, observation: Any, info: dict | None = None, mask: Any = None) -> Any:
        """The action for an observation as the environment gives it: an int for Discrete actions, else an array.

        Where the environment says which actions are legal, the mask is taken from `mask`, from the observation or from
        `info`, whichever of them, in this order, has one.
        """
        batch = self._masked(observation, info, mask) if self.spec.masked else self._unmasked(observation, mask)
        action, _, self.carry = self.policy.act(batch, self.carry, self.first, None)
        self.first = np.zeros(1, np.bool_)
        return self._decoder.rows(action)[0]

    def _unmasked(self, observation: Any, mask: Any) -> Tree:
        if mask is not None:
            raise UserError(f"This policy was trained on {self.spec.environment}, without masks; leave mask= away.")
        return self._read(self.spec.observation, observation, "")

    def _masked(self, observation: Any, info: dict | None, mask: Any) -> Tree:
        """The observation with its mask as the model reads them, wherever the mask came from."""
        spec = {key: part for key, part in self.spec.observation.items() if key != MASK}
        with_mask = isinstance(observation, Mapping) and MASK in observation
        if mask is None:
            mask = observation[MASK] if with_mask else (info or {}).get(MASK)
        if mask is None:
            raise UserError(
                f"This policy was trained on {self.spec.environment}, which says which actions are legal; give that "
                f"too: act(observation, info) with info['{MASK}'], or act(observation, mask=...)."
            )
        # If the masks of training came from `info`, the spec has the observation under the name "observation", which
        # the environment itself does not use.
        named = with_mask or (isinstance(observation, Mapping) and isinstance(spec.get("observation"), Leaf))
        if set(spec) == {"observation"} and not named:
            observation = {"observation": observation}
        return {**self._read(spec, observation, ""), MASK: self._legal(mask)}

    def _legal(self, mask: Any) -> np.ndarray:
        """The mask as [1, choices]; for MultiDiscrete actions it may be one array for each entry of the action."""
        parts = mask if isinstance(mask, (tuple, list)) else (mask,)
        flat = np.concatenate([np.ravel(part) for part in parts])
        choices = self.spec.action.logits
        if len(flat) != choices:
            raise UserError(f"The mask has {len(flat)} entries for {choices} choices; give one entry for each choice.")
        if not np.isin(flat, (0, 1)).all():
            raise UserError(
                "The mask holds other numbers than 0 and 1; give 1 for what is legal and 0 for what is not."
            )
        if not flat.any():
            raise UserError("The mask allows no action; ask for an action only where there is one.")
        return flat.astype(np.int8)[None]

    def _read(self, spec: Tree, given: Any, path: str) -> Tree:
        """`given` as the tree of arrays [1, ...] that the model reads; `path` is where in the observation it lies."""
        if isinstance(spec, Leaf):
            return self._array(spec, given, path)
        parts = given if isinstance(given, Mapping) else {}
        if isinstance(given, (tuple, list)):  # a Tuple space has its places as names
            parts = {str(place): part for place, part in enumerate(given)}
        for name in spec:
            if name not in parts:
                raise self._misfit(path, f"a {type(given).__name__} without '{name}'", f"a nest of {', '.join(spec)}")
        return {name: self._read(spec[name], parts[name], f"{path}/{name}" if path else name) for name in spec}

    def _array(self, leaf: Leaf, given: Any, path: str) -> np.ndarray:
        """One array [1, ...] with the shape and dtype of `leaf`, choices counted from zero."""
        try:
            array = np.asarray(given)
        except ValueError:  # a list of lists of different lengths
            array = np.asarray(given, object)
        if array.dtype.kind not in "biuf":
            raise self._misfit(path, f"a {type(given).__name__}", f"numbers of shape {leaf.shape}")
        if array.shape != leaf.shape:
            raise self._misfit(path, f"the shape {array.shape}", f"the shape {leaf.shape}")
        if not np.isfinite(array).all():
            raise self._misfit(path, "a number that is not finite", "finite numbers")
        cast = array.astype(leaf.dtype)
        if cast.dtype.kind != "f" and not np.array_equal(cast, array):
            wrong = array[cast != array].flat[0]
            raise self._misfit(path, f"{wrong:.6g} ({array.dtype})", leaf.dtype)
        if leaf.counts:
            start = np.reshape(np.array(leaf.start or np.zeros(len(leaf.counts)), np.int64), leaf.shape)
            last = start + np.reshape(leaf.counts, leaf.shape) - 1
            if (cast < start).any() or (cast > last).any():
                raise self._misfit(
                    path, f"the choice {array.tolist()}", f"choices from {start.tolist()} to {last.tolist()}"
                )
            cast = (cast - start).astype(leaf.dtype)
        return cast[None]

    def _misfit(self, path: str, came: str, wanted: str) -> UserError:
        where = f"'{path}' of the observation" if path else "The observation"
        return UserError(
            f"{where} has {came}, but {self.spec.environment}, on which this policy was trained, has {wanted}; give "
            "what its reset() or step() gives."
        )
