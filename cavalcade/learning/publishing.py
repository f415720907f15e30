"""Params for whoever acts: the newest version, in this process, in others of this machine, or by messages."""

import numpy as np

from cavalcade.learning.learner import Learner
from cavalcade.transport import ParamsBroadcast, ParamsService
from cavalcade.tree import Tree


class Publisher:
    version: int  # updates behind the params that were published last
    published: tuple[np.ndarray, Tree]  # the params [n] and the statistics
    broadcast: ParamsBroadcast | ParamsService | None = None  # to nodes in other processes, once one has asked

    def publish(self, learner: Learner) -> None:
        self.version, self.published = learner.updates, learner.params()
        if self.broadcast is not None:
            self.broadcast.publish_params(self.version, *self.published)

    def latest(self, known: int) -> tuple[int, np.ndarray, Tree] | None:
        """Version, params and statistics, if they are newer than the version `known`."""
        return None if known == self.version else (self.version, *self.published)

    def share(self, consumer: str) -> ParamsBroadcast | ParamsService:
        """For nodes in other processes: one broadcast for all of them."""
        if self.broadcast is None:
            self.broadcast = ParamsBroadcast(*self.published)
            self.broadcast.publish_params(self.version, *self.published)
        return self.broadcast

    def serve(self, consumer: str) -> ParamsBroadcast | ParamsService:
        """The same for nodes that share no memory with this process."""
        if self.broadcast is None:
            self.broadcast = ParamsService(self.version, *self.published)
        return self.broadcast
