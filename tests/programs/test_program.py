"""Programs before they run: groups, order, what is refused, and how they are drawn."""

import pytest

from cavalcade.__main__ import main
from cavalcade.errors import UserError
from cavalcade.programs.program import Handle, Placement, Program


class Part:
    def __init__(self, *others):
        self.others = others


def test_nodes_of_a_group_share_a_process_and_come_after_what_they_refer_to():
    program = Program("made")
    early = program.add("reader", Part, Handle("table"), placement=Placement(restart="alone"))
    with program.group("store"):
        table = program.add("table", Part)
        program.add("learner", Part, table)
    program.add("judge", Part, [early], {"of": Handle("learner")})
    groups = program.groups()
    assert list(groups) == ["store", "reader", "judge"]
    assert [node.name for node in groups["store"]] == ["table", "learner"]
    assert program.nodes["reader"].placement.restart == "alone"
    assert program.nodes["learner"].placement.restart == "program"


def test_groups_that_need_each_other_are_refused():
    program = Program("round")
    program.add("one", Part, Handle("two"))
    program.add("two", Part, Handle("one"))
    with pytest.raises(UserError, match="'round' refer to each other in a circle"):
        program.check()


def test_a_handle_that_leads_nowhere_is_refused():
    program = Program("made")
    program.add("one", Part, Handle("nobody"))
    with pytest.raises(UserError, match="'one' refers to 'nobody'"):
        program.check()


@pytest.mark.parametrize("system", ["dqn", "ppo", "apex-dqn", "impala"])
def test_systems_are_drawn_with_their_processes_and_edges(system, capsys):
    assert main(["graph", system, "--actors", "3"]) == 0
    drawn = capsys.readouterr().out
    assert drawn.startswith("flowchart LR")
    assert drawn.count("subgraph") == 5, "three actors, the learner with its table, the evaluator"
    for edge in ("learner_ --> table_", "actor_2_ --> table_", "actor_2_ --> learner_", "evaluator_ --> actor_0_"):
        assert edge in drawn


def test_a_graph_of_nothing_is_refused(capsys):
    assert main(["graph"]) == 2 and "Usage: cavalcade graph SYSTEM" in capsys.readouterr().err
