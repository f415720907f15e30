"""Groups of params with a rate, a clip and a period each, over the same one vector.

Gradients stay one vector, so all-reduce, parameter servers and hogwild work as without groups: a node that holds a
slice of the vector has the ranges of the groups that fall into its slice. Without groups there is one range, and the
backend's optimiser gets the whole vector.
"""

from typing import Any, NamedTuple

from cavalcade.backends import Backend
from cavalcade.errors import UserError
from cavalcade.networks import Model
from cavalcade.optimiser import Group, Optimiser
from cavalcade.tree import Layout, Tree, map

REST = ""  # the name of the group of all parts for which the settings name no group


class Range(NamedTuple):
    """Consecutive params of one group: `vector[start:end]`."""

    group: str
    start: int
    end: int


def ranges(layout: Layout, model: Model, settings: Optimiser) -> list[Range]:
    """The whole vector, cut where the group changes."""
    known = {model.part_of(path) for path in layout.paths}
    for name in settings.groups:
        if name not in known:
            raise UserError(f"The optimiser has a group '{name}', but the model has only {', '.join(sorted(known))}.")
    found: list[Range] = []
    for path, start, end in zip(layout.paths, layout.offsets, layout.offsets[1:]):
        part = model.part_of(path)
        group = part if part in settings.groups else REST
        if found and found[-1].group == group:
            found[-1] = Range(group, found[-1].start, end)
        else:
            found.append(Range(group, start, end))
    return found


class Rule:
    """An optimiser over the vector of params, or a slice of it, with the rate, clip and period of each group."""

    def __init__(self, backend: Backend, settings: Optimiser, cuts: list[Range]):
        self.backend, self.settings, self.cuts = backend, settings, cuts
        self.groups = {cut.group: settings.groups.get(cut.group, Group()) for cut in cuts}
        self.optimisers = [backend.optimiser(settings.of_group(self.groups[cut.group])) for cut in cuts]
        self.alone = len(cuts) == 1 and cuts[0].group == REST

    def of_slice(self, part: slice) -> "Rule":
        """The rule for a node that holds only this slice of the params."""
        inside = [
            Range(cut.group, max(cut.start, part.start) - part.start, min(cut.end, part.stop) - part.start)
            for cut in self.cuts
            if cut.start < part.stop and cut.end > part.start
        ]
        return Rule(self.backend, self.settings, inside or [Range(REST, 0, 0)])

    def init(self, vector: Any) -> Tree:
        if self.alone:
            return self.optimisers[0].init(vector)
        states = {str(n): each.init(vector[a:b]) for n, (each, (_, a, b)) in enumerate(zip(self.optimisers, self.cuts))}
        return {**states, "calls": self.backend.zero()}

    def update(self, gradient: Any, state: Tree, vector: Any) -> tuple[Any, Tree]:
        """The params and the optimiser's state after one update with this gradient [n], which is clipped already."""
        if self.alone:
            return self.optimisers[0].update(gradient, state, vector)
        calls = self.backend.increment(state["calls"])
        pieces, states = [], {}
        for number, (optimiser, (group, start, end)) in enumerate(zip(self.optimisers, self.cuts)):
            piece, kept, every = vector[start:end], state[str(number)], self.groups[group].every
            before = map(self.backend.copied, {"piece": piece, "state": kept}) if every > 1 else {}
            piece, kept = optimiser.update(gradient[start:end], kept, piece)
            if every > 1:
                now = calls % every == 0
                piece = self.backend.select(now, piece, before["piece"])
                kept = map(lambda new, old, now=now: self.backend.select(now, new, old), kept, before["state"])
            pieces.append(piece)
            states[str(number)] = kept
        return self.backend.joined(vector, pieces), {**states, "calls": calls}

    def clipped(self, xp: Any, gradient: Any) -> tuple[Any, Any]:
        """The gradient with each group scaled down to its largest norm, and the norm of all before clipping."""
        norm = xp.sqrt(gradient @ gradient)
        if self.alone:
            return _scaled(xp, gradient, norm, self.settings.clip), norm
        pieces = [gradient[cut.start : cut.end] for cut in self.cuts]
        norms = {}
        for name in self.groups:
            squares = [piece @ piece for cut, piece in zip(self.cuts, pieces) if cut.group == name]
            norms[name] = xp.sqrt(sum(squares[1:], squares[0]))
        clips = {name: self.settings.clip if group.clip is None else group.clip for name, group in self.groups.items()}
        scaled = [_scaled(xp, x, norms[cut.group], clips[cut.group]) for cut, x in zip(self.cuts, pieces)]
        return xp.concat(scaled), norm


def _scaled(xp: Any, gradient: Any, norm: Any, clip: float) -> Any:
    return gradient * xp.clip(clip / (norm + 1e-6), None, 1.0) if clip else gradient
