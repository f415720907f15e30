"""A program in one thread whose processes are apart all the same: its groups reach each other as separate processes do,
through ports, desks and broadcasts in shared memory. Whoever would block there is found out here."""

from types import SimpleNamespace

from cavalcade.runtimes.group import Group


class Apart:
    def __init__(self, program):
        program.check()
        self.groups, addresses = {}, {}
        for name, nodes in program.groups().items():
            here = {node.name for node in nodes}
            edges = {(edge, node.name) for node in nodes for edge in node.edges() if edge not in here}
            others = {edge: self._connected(addresses.get((edge, consumer))) for edge, consumer in edges}
            group = self.groups[name] = Group(nodes, others, 0, 0)
            reached = [(edge, n.name) for n in program.nodes.values() for edge in n.edges() if n.name not in here]
            group.offer([pair for pair in reached if pair[0] in here])
            for pair, service in group.services.items():
                service.ring = nobody
                addresses[pair] = service.address

    @staticmethod
    def _connected(address):
        if address is None:
            return SimpleNamespace(steps=0)
        made = address.connect()
        made.ring = nobody
        return made

    def node(self, name):
        return next(group.mine[name] for group in self.groups.values() if name in group.mine)

    def nodes(self, role):
        mine = [pair for group in self.groups.values() for pair in group.mine.items()]
        return [node for name, node in mine if name.partition("/")[0] == role]

    def round(self):
        moved = [group.take_turns() for group in self.groups.values()]
        return any(moved)

    def close(self):
        for group in reversed(self.groups.values()):
            group.close()


def nobody():
    """Is woken: all take turns anyway."""
