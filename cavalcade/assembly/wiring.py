"""A wiring: who acts where, where experience waits, how updates are combined. Architectures are named wirings."""

from dataclasses import dataclass

from cavalcade.errors import UserError, require_at_least, require_one_of

CHOICES = {
    "acting": ("local", "central"),
    "experience": ("shared", "shards", "bundled"),
    "updates": ("own", "allreduce", "parameter-server", "hogwild"),
}


@dataclass(frozen=True)
class Wiring:
    """The choices of one wiring; combinations that contradict themselves are refused with a sentence."""

    acting: str = "local"  # local: with the environments; central: one policy answers many environment workers
    # shared: one table; shards: several, each with some of the actors, drawn from as one by all learners; bundled: one
    # with each learner and its actors
    experience: str = "shared"
    updates: str = "own"  # own, allreduce, parameter-server, hogwild
    learners: int = 1
    shards: int = 0  # tables of --experience shards, each in a process of its own
    predictors: int = 0  # central actors in processes of their own; 0 is one beside each learner
    servers: int = 1  # of --updates parameter-server, each with a slice of the params
    stragglers: int = 0  # gradients that an all-reduce may leave out of each update
    max_staleness: int = 100  # a server drops gradients of params that are more updates old than this
    adjust_every: float = 0.0  # seconds between changes of how many nodes are active; 0 never changes it
    together: bool = False  # each learner shares a process with its actors; for --experience bundled

    def __post_init__(self) -> None:
        require_one_of(self, **CHOICES)
        require_at_least(self, learners=1, shards=0, predictors=0, servers=1, stragglers=0)
        require_at_least(self, max_staleness=0, adjust_every=0)
        if self.learners > 1 and self.updates == "own":
            raise UserError(
                f"--learners {self.learners} and --updates own contradict each other: learners that share nothing "
                "learn as many policies; combine their updates by allreduce, parameter-server or hogwild."
            )
        if self.shards and self.experience != "shards":
            raise UserError(f"--shards are those of --experience shards; --experience {self.experience} has none.")
        if self.stragglers and self.updates != "allreduce":
            raise UserError(
                f"--stragglers are gradients an all-reduce does without; --updates {self.updates} waits for none."
            )
        if self.stragglers >= self.learners:
            raise UserError(f"--stragglers {self.stragglers} leaves no gradient of {self.learners} learners.")
        if self.predictors and self.acting == "local":
            raise UserError("--predictors answer environment workers, but with --acting local there are none.")
        if self.predictors and self.experience == "bundled":
            raise UserError("--predictors write into one table, but --experience bundled has one with each learner.")
        for name, wrong, why in (
            ("acting", "local", "it changes how many predictors answer, and there are none"),
            ("experience", "bundled", "it goes by what is drawn from one table"),
            ("experience", "shards", "it goes by what is drawn from one table"),
            ("updates", "allreduce", "it lets learners rest, and the others would wait for them"),
        ):
            if self.adjust_every and getattr(self, name) == wrong:
                raise UserError(f"--adjust-every {self.adjust_every:g} contradicts --{name} {wrong}: {why}.")


SYNC = Wiring()
