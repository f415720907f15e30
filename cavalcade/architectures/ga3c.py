"""GA3C: agents put observations into a prediction queue, predictors answer them in batches, and what was seen goes
through a training queue to the trainers (Babaeizadeh 2017).

Predictors and trainers have processes of their own. Trainers draw from one queue and change one model, the parameters
and the optimiser's statistics in shared memory. Between prediction and training the parameters may have moved: the
algorithm adds a small number inside the logarithm of the policy.
"""

from cavalcade.architectures.build import build
from cavalcade.assembly import Parts, Wiring
from cavalcade.programs import Program

WIRING = Wiring(acting="central", updates="hogwild", learners=2, predictors=2)


def ga3c(x: Parts) -> Program:
    return build("ga3c", x)
