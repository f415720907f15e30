"""Where experience waits: the tables of a wiring, and what learners in other processes draw from them through."""

from cavalcade.architectures.queues import QueueBesideReplay, mixture
from cavalcade.assembly import Parts
from cavalcade.errors import UserError
from cavalcade.programs import Handle, Program
from cavalcade.table import Drawer, Draws, QueueDraws


def add_table(program: Program, x: Parts) -> tuple[Handle, Handle]:
    """Where actors write, and where learners draw."""
    store = x.experience.store
    if not (store.drawn_once and store.replay_share):
        table = program.add("table", x.table)
        return table, table
    table = program.add("table", QueueBesideReplay, x)
    return table, program.add("mixture", mixture, table, store.replay_share)


def add_tables(program: Program, x: Parts) -> tuple[list[Handle], list[Handle]]:
    """Tables in processes of their own, each with a drawer; none where every learner has its table beside it."""
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
            drawers.append(program.add("drawer", Drawer, source, sink, batch, x.lock_step))
    return sinks, drawers


def add_draws(program: Program, x: Parts, drawers: list[Handle], learner: int) -> Handle:
    """Where a learner draws from all of these tables."""
    name = f"draws/{learner}" if learner else "draws"
    if x.wiring.experience == "shared":
        return program.add("draws", Draws, drawers, name, [x.of_one_learner.experience.batch])
    if x.experience.store.drawn_once and not x.lock_step:
        return program.add("draws", QueueDraws, drawers, name)
    return program.add("draws", Draws, drawers, name, _quotas(x) if x.lock_step else [], (x.seed, 4, learner))


def _quotas(x: Parts) -> list[int]:
    """Items of each shard in every batch of lock step: what its actors make."""
    return [x.of_shard(k).experience.batch for k in range(x.wiring.shards)]


def _refuse_what_cannot_be_divided(x: Parts) -> None:
    store, shards, batch = x.experience.store, x.wiring.shards, x.experience.batch
    if shards and store.drawn_once and store.replay_share:
        raise UserError(
            f"--experience shards are tables of one kind, but --replay-share {store.replay_share:g} draws from a queue "
            "and a replay beside it: use --experience shared."
        )
    if shards and x.lock_step and sum(_quotas(x)) != batch:
        raise UserError(
            f"--experience shards lets the actors of each of {shards} shards bring their share of every batch, but the "
            f"batch of {batch} cannot be divided like --actors {x.actors}."
        )
