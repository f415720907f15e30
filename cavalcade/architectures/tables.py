"""Where experience waits: the tables of a wiring, and the nodes through which learners of other processes draw."""

from cavalcade.architectures.queues import QueueBesideReplay, mixture
from cavalcade.assembly import Parts
from cavalcade.errors import UserError
from cavalcade.programs import Handle, Program
from cavalcade.table import Drawer, Draws, QueueDraws


def add_table(program: Program, x: Parts) -> tuple[Handle, Handle]:
    """Add a table; gives the node to which actors write and the node from which learners draw."""
    store = x.experience.store
    if not (store.drawn_once and store.replay_share):
        table = program.add("table", x.table)
        return table, table
    table = program.add("table", QueueBesideReplay, x)
    return table, program.add("mixture", mixture, table, store.replay_share)


def add_tables(program: Program, x: Parts) -> tuple[list[Handle], list[Handle]]:
    """Add tables in processes of their own, each with a drawer; gives tables and drawers. Both are empty if each
    learner has a table in its own process."""
    wiring, sinks, drawers = x.wiring, [], []
    if wiring.experience == "shared" and wiring.learners > 1:
        parts = {"table": x}
    else:
        parts = {f"table/{k}": x.of_shard(k) for k in range(wiring.shards)}
        _refuse_what_cannot_be_divided(x)
    for group, part in parts.items():
        with program.group(group):
            sink, source = add_table(program, part)
            sinks.append(sink)
            batch = x.of_one_learner.experience.batch
            drawers.append(program.add("drawer", Drawer, source, sink, batch, x.algorithm.lock_step))
    return sinks, drawers


def add_draws(program: Program, x: Parts, drawers: list[Handle], learner: int) -> Handle:
    """Add the node through which one learner draws from the tables behind these drawers."""
    name = f"draws/{learner}" if learner else "draws"
    if x.wiring.experience == "shared":
        return program.add("draws", Draws, drawers, name, [x.of_one_learner.experience.batch])
    if x.experience.store.drawn_once and not x.algorithm.lock_step:
        return program.add("draws", QueueDraws, drawers, name)
    return program.add("draws", Draws, drawers, name, _quotas(x) if x.algorithm.lock_step else [], (x.seed, 4, learner))


def _quotas(x: Parts) -> list[int]:
    """In lock step: items of each shard in every batch, which are those that its actors make."""
    return [x.of_shard(k).experience.batch for k in range(x.wiring.shards)]


def _refuse_what_cannot_be_divided(x: Parts) -> None:
    """Refuse shards of a queue with replay, and shards of lock step whose shares do not add up to the batch."""
    store, shards, batch = x.experience.store, x.wiring.shards, x.experience.batch
    if shards and store.drawn_once and store.replay_share:
        raise UserError(
            f"--experience shards are tables of one kind, but --replay-share {store.replay_share:g} draws from a queue "
            "and a replay beside it: use --experience shared."
        )
    if shards and x.algorithm.lock_step and sum(_quotas(x)) != batch:
        raise UserError(
            f"--experience shards lets the actors of each of {shards} shards bring their share of every batch, but the "
            f"batch of {batch} cannot be divided like --actors {x.actors}."
        )
