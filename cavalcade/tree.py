"""Trees: nested dicts of arrays. Everything that moves between workers, tables and files is a tree.

A single array is a tree as well. Keys are strings and are visited in sorted order, so that every backend, file and
process lays out the same tree in the same way.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Tree = Any


def map(function: Callable, tree: Tree, *rest: Tree) -> Tree:
    """Apply `function` to the leaves of one tree, or of several trees of one shape."""
    if not isinstance(tree, dict):
        return function(tree, *rest)
    if not rest:
        return {key: map(function, child) for key, child in tree.items()}
    return {key: map(function, child, *(other[key] for other in rest)) for key, child in tree.items()}


def leaves(tree: Tree) -> list:
    """The arrays of a tree, in the sorted order of their keys."""
    if not isinstance(tree, dict):
        return [tree]
    return [leaf for key in sorted(tree) for leaf in leaves(tree[key])]


def rebuild(tree: Tree, leaves: Iterator) -> Tree:
    """A tree of the shape of `tree` with these leaves, in the order of `leaves(tree)`."""
    if not isinstance(tree, dict):
        return next(leaves)
    return {key: rebuild(tree[key], leaves) for key in sorted(tree)}


def named(tree: Tree, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Each leaf with its path, `("torso/0/weight", array)`."""
    if isinstance(tree, dict):
        for key in sorted(tree):
            yield from named(tree[key], f"{prefix}/{key}" if prefix else key)
    else:
        yield prefix, tree


def from_named(pairs: dict[str, Any]) -> Tree:
    """The inverse of `named`."""
    if set(pairs) == {""}:
        return pairs[""]
    tree: dict = {}
    for path, leaf in pairs.items():
        *parents, last = path.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = leaf
    return tree


def assign(into: Tree, index: Any, values: Tree) -> None:
    """`into[index] = values`, leaf by leaf."""
    if isinstance(into, dict):
        for key in into:
            assign(into[key], index, values[key])
    else:
        into[index] = values


def take(tree: Tree, index: Any) -> Tree:
    """`tree[index]`, leaf by leaf."""
    return map(lambda leaf: leaf[index], tree)


def joined(parts: Sequence[Tree]) -> Tree:
    """A copy of trees [N, ...] of one shape, joined along the first axis."""
    if isinstance(parts[0], dict):
        return {key: joined([part[key] for part in parts]) for key in parts[0]}
    return np.concatenate(parts)


def placed(parts: Sequence[Tree], places: Sequence[Any], empty: Callable = np.empty) -> Tree:
    """Trees [N, ...] as one, in which the entries of parts[i] lie at the indices places[i] of the first axis.
    `empty(shape, dtype)` makes the arrays."""

    def place(*leaves: np.ndarray) -> np.ndarray:
        whole = empty((sum(len(leaf) for leaf in leaves), *leaves[0].shape[1:]), leaves[0].dtype)
        for at, leaf in zip(places, leaves):
            whole[at] = leaf
        return whole

    return map(place, *parts)


@dataclass(frozen=True)
class Layout:
    """Where each leaf of a parameter tree lies in one contiguous float32 vector.

    Servers hold slices of that vector, all-reduce and broadcast move it whole, and optimisers see one array.
    """

    paths: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    offsets: tuple[int, ...]  # where each leaf begins, in numbers; one more than paths: the last is the size

    @classmethod
    def of(cls, tree: Tree) -> "Layout":
        """The layout of a tree of float32 arrays."""
        pairs = list(named(tree))
        for path, leaf in pairs:
            if np.dtype(leaf.dtype) != np.float32:
                raise TypeError(f"parameter {path} is {leaf.dtype}; parameters are float32")
        sizes = [int(np.prod(leaf.shape)) for _, leaf in pairs]
        offsets = tuple(int(n) for n in np.cumsum([0, *sizes]))
        return cls(tuple(p for p, _ in pairs), tuple(tuple(leaf.shape) for _, leaf in pairs), offsets)

    @property
    def size(self) -> int:
        return self.offsets[-1]

    def flatten(self, tree: Tree) -> np.ndarray:
        """[size] float32, a copy."""
        parts = [np.asarray(leaf, np.float32).reshape(-1) for _, leaf in named(tree)]
        return np.concatenate(parts) if parts else np.zeros(0, np.float32)

    def unflatten(self, vector: Any) -> Tree:
        """The tree as views of `vector` (any backend's array)."""
        spans = zip(self.offsets, self.offsets[1:], self.shapes)
        return from_named({p: vector[a:b].reshape(shape) for p, (a, b, shape) in zip(self.paths, spans)})
