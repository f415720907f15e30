"""Items of a table as trees of arrays, for tests that look inside them."""

import numpy as np

from cavalcade import tree
from cavalcade.table import Rows


def table_rows(item, rows, size, count):
    """Just the rows that `size` items and the steps of `count` environments under way can need."""
    return item.rows_needed(rows, size, True) + item.rows_under_way(rows, count)


def materialise(table, items):
    """What a draw of exactly these items would give, [M, ...]."""
    own = {name: np.asarray(leaf) for name, leaf in table.signature.flatten(items.own).items()}
    return tree.map(np.copy, table.signature.build(table.rows, np.asarray(items.rows, np.int32), own))


def blank(signature):
    """One item of zeros."""
    own = {name: np.asarray(leaf)[None] for name, leaf in signature.flatten(signature.own).items()}
    rows = Rows(signature.rows, 1)
    return tree.take(signature.build(rows, np.zeros((1, signature.length), np.int32), own), 0)
