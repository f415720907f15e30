"""The newest params for actors: in this process, in other processes of this machine, or by messages."""

import numpy as np

from cavalcade.learning.learner import Learner
from cavalcade.transport import ParamsBroadcast, ParamsService
from cavalcade.tree import Tree


class Publisher:
    """A node from which actors take the newest params."""

    version: int  # updates behind the params that were published last
    published: tuple[np.ndarray, Tree]  # the params [n] and the statistics
    broadcast: ParamsBroadcast | ParamsService | None = None  # to nodes in other processes, once one has asked

    def publish(self, learner: Learner) -> None:
        """Copy the learner's params and statistics to where actors take them; the version is its count of updates."""
        self.version, self.published = learner.updates, learner.params()
        if self.broadcast is not None:
            self.broadcast.publish_params(self.version, *self.published)

    def latest(self, known: int) -> tuple[int, np.ndarray, Tree] | None:
        """Version, params [n] and statistics; None if the version is still `known`."""
        return None if known == self.version else (self.version, *self.published)

    def share(self, consumer: str) -> ParamsBroadcast | ParamsService:
        """For a consumer in another process of this machine: one broadcast in shared memory serves all of them."""
        if self.broadcast is None:
            self.broadcast = ParamsBroadcast(*self.published)
            self.broadcast.publish_params(self.version, *self.published)
        return self.broadcast

    def serve(self, consumer: str) -> ParamsBroadcast | ParamsService:
        """The same for a consumer that shares no memory with this process, by messages."""
        if self.broadcast is None:
            self.broadcast = ParamsService(self.version, *self.published)
        return self.broadcast
