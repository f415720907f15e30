"""GA3C: agents (environment workers) ask predictors for actions, predictors answer them in batches, and unrolls go
through a training queue to the trainers (learners) (Babaeizadeh 2017).

Predictors and trainers have processes of their own. Trainers draw from one queue and change the same params and
optimiser statistics in shared memory. Between prediction and training the params may change, so that an action's
probability may have become 0: the algorithm adds a small number inside the logarithm (--log-epsilon).
"""

from cavalcade.architectures.build import build
from cavalcade.assembly import Parts, Wiring
from cavalcade.programs import Program

WIRING = Wiring(acting="central", updates="hogwild", learners=2, predictors=2)


def ga3c(x: Parts) -> Program:
    return build("ga3c", x)
