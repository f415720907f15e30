"""IMPALA: actors send whole unrolls through a bounded queue to one learner, and need not wait for it (Espeholt 2018).

Actors take the newest params at the start of each unroll, so the length of the queue bounds the policy lag of an
unroll that is drawn; the algorithm has to correct for that lag. Several learners make each update together (--learners
N --updates allreduce). In the variant with replay (`queues.py`) every unroll goes into the queue and into a replay
beside it, and a share of each batch is drawn from the replay.
"""

from cavalcade.architectures.build import build
from cavalcade.assembly import Parts, Wiring
from cavalcade.errors import UserError
from cavalcade.programs import Program

WIRING = Wiring()


def impala(x: Parts) -> Program:
    if x.algorithm.lock_step or not x.experience.store.drawn_once:
        raise UserError(
            "The architecture impala draws unrolls once, a little after their policy has changed; this algorithm "
            "replays transitions, or bears no such lag: use it with the architecture sync."
        )
    return build("impala", x)
