"""Trees and their layout in one vector: nothing is lost, nothing is copied, and the order is the same everywhere."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from cavalcade import tree
from cavalcade.tree import Layout

bits = st.integers(0, 2**32 - 1).map(lambda word: np.uint32(word).view(np.float32))  # NaN, infinities and -0.0 too
shapes = npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
arrays = npst.arrays(np.float32, shapes, elements=bits, fill=st.nothing())
names = st.text("ab0.:_", min_size=1, max_size=3)
nests = st.dictionaries(names, st.recursive(arrays, lambda t: st.dictionaries(names, t, min_size=1, max_size=3)))
trees = arrays | nests


def identical(a, b) -> bool:
    if isinstance(a, dict):
        return isinstance(b, dict) and set(a) == set(b) and all(identical(a[key], b[key]) for key in a)
    return (a.shape, a.dtype) == (b.shape, b.dtype) and a.tobytes() == b.tobytes()


def in_reverse(node):
    """The same tree, its keys inserted in the opposite order."""
    return {key: in_reverse(node[key]) for key in reversed(node)} if isinstance(node, dict) else node


# --- layout -------------------------------------------------------------------------------------------------------


@given(trees)
@settings(max_examples=200, deadline=None)
def test_flatten_and_unflatten_are_exact_inverses(params):
    layout = Layout.of(params)
    vector = layout.flatten(params)
    assert vector.dtype == np.float32 and vector.shape == (layout.size,)
    assert identical(layout.unflatten(vector), params)
    assert layout.flatten(layout.unflatten(vector)).tobytes() == vector.tobytes()


@given(trees)
@settings(max_examples=100, deadline=None)
def test_layout_does_not_depend_on_the_order_of_insertion(params):
    layout, other = Layout.of(params), Layout.of(in_reverse(params))
    assert layout == other
    assert other.flatten(in_reverse(params)).tobytes() == layout.flatten(params).tobytes()


def test_layout_in_literal_numbers():
    params = {
        "b": np.array([[1, 2, 3], [4, 5, 6]], np.float32),
        "a": {"y": np.array(7, np.float32), "x": np.zeros((0, 4), np.float32)},
    }
    layout = Layout.of(params)
    assert layout.paths == ("a/x", "a/y", "b")
    assert layout.shapes == ((0, 4), (), (2, 3))
    assert layout.offsets == (0, 0, 1, 7) and layout.size == 7
    assert layout.flatten(params).tolist() == [7, 1, 2, 3, 4, 5, 6]


def test_leaves_are_views_of_the_vector_and_flatten_is_a_copy():
    params = {"a": np.zeros((2, 3), np.float32), "b": np.zeros((), np.float32)}
    layout = Layout.of(params)
    vector = layout.flatten(params)
    assert not any(np.shares_memory(vector, leaf) for leaf in tree.leaves(params))
    views = layout.unflatten(vector)
    assert all(np.shares_memory(vector, leaf) for leaf in tree.leaves(views))
    vector[:] = np.arange(7)
    assert views["a"].tolist() == [[0, 1, 2], [3, 4, 5]] and views["b"] == 6
    views["a"][1, 2] = 50
    assert vector[5] == 50


def test_a_lone_array_has_a_layout_that_copies_too():
    params = np.ones(3, np.float32)
    layout = Layout.of(params)
    vector = layout.flatten(params)
    vector[:] = 2
    assert params.tolist() == [1, 1, 1] and layout.unflatten(vector).tolist() == [2, 2, 2]


def test_an_empty_tree_is_an_empty_vector():
    layout = Layout.of({})
    assert layout.size == 0 and layout.flatten({}).shape == (0,) and layout.unflatten(layout.flatten({})) == {}


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int32, np.bool_])
def test_parameters_that_are_not_float32_are_refused_by_name(dtype):
    with pytest.raises(TypeError, match="torso/bias"):
        Layout.of({"torso": {"weight": np.zeros(2, np.float32), "bias": np.zeros(2, dtype)}})


def test_shards_are_slices_of_the_vector():
    params = {"a": np.arange(4, dtype=np.float32), "b": np.arange(4, 7, dtype=np.float32)}
    layout = Layout.of(params)
    vector = np.zeros(layout.size, np.float32)
    for shard in (slice(0, 3), slice(3, 7)):
        vector[shard] = layout.flatten(params)[shard]
    assert identical(layout.unflatten(vector), params)


# --- names --------------------------------------------------------------------------------------------------------


@given(trees)
@settings(max_examples=100, deadline=None)
def test_named_and_from_named_are_inverses(params):
    pairs = dict(tree.named(params))
    assert identical(tree.from_named(pairs), params)
    assert [id(leaf) for leaf in pairs.values()] == [id(leaf) for leaf in tree.leaves(params)]  # one order for both


def test_names_are_paths_in_sorted_order():
    params = {"b": 1, "a": {"z": 2, "c": {"d": 3}}}
    assert list(tree.named(params)) == [("a/c/d", 3), ("a/z", 2), ("b", 1)]
    assert list(tree.named(5)) == [("", 5)]


# --- map, assign, take --------------------------------------------------------------------------------------------


def test_map_joins_trees_by_key_and_not_by_order():
    a, b = {"x": np.array(1), "y": np.array(2)}, {"y": np.array(20), "x": np.array(10)}
    assert tree.map(lambda p, q: int(p + q), a, b) == {"x": 11, "y": 22}
    assert tree.map(lambda p, q: p + q, 1, 2) == 3


def test_assign_writes_every_leaf_in_place():
    into = {"a": np.zeros((3, 2)), "b": {"c": np.zeros(3, int)}}
    kept = into["a"]
    tree.assign(into, 1, {"b": {"c": 7}, "a": np.array([1.0, 2.0])})
    assert kept.tolist() == [[0, 0], [1, 2], [0, 0]] and into["b"]["c"].tolist() == [0, 7, 0]
    tree.assign(into, np.array([2, 0]), {"a": np.array([[5, 5], [6, 6]]), "b": {"c": np.array([1, 2])}})
    assert kept.tolist() == [[6, 6], [1, 2], [5, 5]] and into["b"]["c"].tolist() == [2, 7, 1]


def test_assign_needs_every_leaf():
    with pytest.raises(KeyError):
        tree.assign({"a": np.zeros(2), "b": np.zeros(2)}, 0, {"a": 1})


def test_take_gives_rows_of_every_leaf():
    nest = {"a": np.arange(6).reshape(3, 2), "b": {"c": np.arange(3)}}
    rows = tree.take(nest, np.array([2, 0]))
    assert rows["a"].tolist() == [[4, 5], [0, 1]] and rows["b"]["c"].tolist() == [2, 0]
    assert tree.take(np.arange(5), slice(-1)).tolist() == [0, 1, 2, 3]


@given(st.lists(st.integers(0, 4), max_size=6))
@settings(max_examples=30, deadline=None)
def test_what_is_assigned_can_be_taken(index):
    nest = {"a": np.zeros((5, 2)), "b": {"c": np.zeros(5)}}
    index = np.array(sorted(set(index)), int)
    rng = np.random.default_rng(len(index))
    values = {"a": rng.random((len(index), 2)), "b": {"c": rng.random(len(index))}}
    tree.assign(nest, index, values)
    assert identical(tree.take(nest, index), values)


def test_joined_trees_are_one_after_the_other_and_a_copy():
    one = {"a": np.array([[1, 2]]), "b": {"c": np.array([5])}}
    other = {"b": {"c": np.array([6, 7])}, "a": np.array([[3, 4], [0, 0]])}
    both = tree.joined([one, other])
    assert both["a"].tolist() == [[1, 2], [3, 4], [0, 0]] and both["b"]["c"].tolist() == [5, 6, 7]
    alone = tree.joined([one])
    alone["a"][:] = 9
    assert one["a"].tolist() == [[1, 2]]


def test_placed_trees_lie_where_it_was_said():
    both = tree.placed([{"a": np.array([1, 2])}, {"a": np.array([3])}], [np.array([2, 0]), np.array([1])])
    assert both["a"].tolist() == [2, 3, 1]
