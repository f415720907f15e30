"""GORILA: bundles of actor, replay and learner send gradients to a parameter server in slices (Nair 2015).

Servers drop gradients that are too old (--max-staleness), and learners drop those whose loss is an outlier. With global
replay all actors fill one table and all learners draw from it (--experience shared).
"""

from cavalcade.architectures.build import build
from cavalcade.assembly import Parts, Wiring
from cavalcade.errors import UserError
from cavalcade.programs import Program

WIRING = Wiring(experience="bundled", updates="parameter-server", servers=2, together=True)


def gorila(x: Parts) -> Program:
    if x.experience.store.drawn_once:
        raise UserError("The architecture gorila replays experience, but this algorithm draws it once; use a3c.")
    return build("gorila", x)
