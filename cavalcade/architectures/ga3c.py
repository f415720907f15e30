"""GA3C: agents put observations into a prediction queue, predictors answer them in batches, and what was seen goes
through a training queue to the trainer (Babaeizadeh 2017).

Predictors have processes of their own. Between prediction and training the parameters may have moved: the algorithm
adds a small number inside the logarithm of the policy.
"""

from cavalcade.architectures.build import build
from cavalcade.parts import Parts
from cavalcade.program import Program
from cavalcade.row import Row

ROW = Row(acting="central", predictors=2)


def ga3c(x: Parts) -> Program:
    return build("ga3c", x)
