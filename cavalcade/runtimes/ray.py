"""Ray: each group of nodes an actor, on this machine or a cluster; messages and parameters through its object store.

Ray starts processes, moves arrays and notices what has died. What is done about it is the same as for local processes
(`supervision.py`). A group is one process: it is given the largest share of CPUs, GPUs and other resources that any of
its nodes asks for, and Ray sees to it that NumPy uses no more threads than that. The run folder is the driver's; states
come to it and go back through the object store.
"""

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cavalcade.checkpoints import Saver, checkpoint
from cavalcade.errors import UserError
from cavalcade.failures import Failure
from cavalcade.programs import Program
from cavalcade.runtimes.ray_connection import connect, guard
from cavalcade.runtimes.supervision import Member, Supervisor, packed
from cavalcade.transport import sweep

PAUSE = 0.02  # seconds between two looks at the processes
WATCH = 0.1  # seconds after which a process in which nothing happens says so
GRACE = 3.0  # seconds for a process to end by itself
CONTROL = 4  # calls of the driver that a process may have to answer at once


@dataclass(eq=False)
class RayMember(Member):
    """`process` is the handle of the Ray actor."""

    watching: Any = None  # the call that will tell how it is
    seen: float = 0.0  # when its loop was alive
    moved: float = 0.0  # when one of its nodes last moved
    granted: int = 0  # up to what it may count by now
    most: int = 0  # and the most that it may count as far as it has answered
    pid: int = 0
    node: str = ""  # of the cluster, that it is on


class RayRuntime(Supervisor):
    quiet = 3 * WATCH  # what others have counted is told once in that time

    def __init__(
        self,
        program: Program,
        hang_seconds: float = 60.0,
        restore: tuple[Path, int, dict] | None = None,
        address: str = "",
    ):
        """`restore`: folder, step and the driver's part of a checkpoint. `address`: of a cluster; without one Ray is
        started here, unless the caller has done so."""
        super().__init__(program, hang_seconds, restore, RayMember)
        self.addresses: dict[tuple[str, str], Any] = {}
        self.states: dict[str, tuple[Any, Path, int]] = {}  # being fetched: group -> call, folder, step
        self.savers: dict[str, Saver] = {}
        self.ours, self.local = connect(address, len(self.members))
        self.guard: Any = None
        import ray

        self.ray = ray
        try:
            self._require_resources()
            for member in self.members:
                for owner in {self.where[edge].group: self.where[edge] for edge, _ in self._edges(member)}.values():
                    self._until_ready(owner)
                self._start(member)
            for member in self.members:
                self._until_ready(member)
            self.guard = guard() if self.local else None
        except BaseException:
            self.close()
            raise

    # --- starting -----------------------------------------------------------------------------------------------------

    def _needs(self, member: RayMember) -> dict[str, float]:
        needs: dict[str, float] = {}
        for node in member.nodes:
            placed = node.placement
            for name, amount in {"CPU": placed.cpus, "GPU": placed.gpus, **placed.resources}.items():
                needs[name] = max(needs.get(name, 0.0), amount)
        return needs

    def _require_resources(self) -> None:
        there = self.ray.cluster_resources()
        if not self.local:  # here, more are promised than there are
            self.cores = int(there.get("CPU", 0))
        needed: dict[str, float] = {}
        for member in self.members:
            for name, amount in self._needs(member).items():
                needed[name] = needed.get(name, 0.0) + amount
        for name, amount in needed.items():
            if amount > there.get(name, 0.0):
                raise UserError(
                    f"The program's {len(self.members)} processes need {amount:g} {name}, but the Ray cluster has "
                    f"{there.get(name, 0.0):g}: lower --actors, set --evaluations 0, or add machines."
                )

    def _start(self, member: RayMember) -> None:
        from cavalcade.runtimes import ray_host

        edges, consumers = self._edges(member), self._consumers(member)
        remote = {
            edge: (self.where[edge].process, consumer, self.addresses[edge, consumer])
            for edge, consumer in edges
            if (edge, consumer) in self.addresses
        }
        job = ray_host.Job(
            packed(member.nodes, member.group, self.ray.cloudpickle.dumps),
            remote,
            [edge for edge, _ in edges if edge not in remote],
            consumers,
            member.incarnation,
            member.steps,
        )
        state = None
        if self.restored and not member.alone:
            folder, step, _ = self.restored
            state = self.ray.put(checkpoint.load_step(folder / member.group, step))
        needs = self._needs(member)
        member.process = (
            self.ray.remote(ray_host.Host)
            .options(
                num_cpus=needs.pop("CPU"),
                num_gpus=needs.pop("GPU"),
                resources=needs,
                max_concurrency=len(consumers) + CONTROL,  # each consumer has one call under way
                max_restarts=0,
            )
            .remote(job, state)
        )
        member.ready, member.started, member.seen = False, time.monotonic(), 0.0
        self._watch(member)

    def _watch(self, member: RayMember) -> None:
        counts = {name: self.where[name].steps for name, _ in self._edges(member)}
        member.watching = member.process.watch.remote(WATCH, counts, self._grant(member))

    def _grant(self, member: RayMember) -> int | None:
        """Up to what it may count until the next look. What others have counted is known late, so each is granted its
        part of half the rest: they seldom wait for more, and near the end, where grants are small, nobody waits long
        for one that is slow. All grants together are never more than the budget."""
        budget = self.program.budget
        if not budget or member not in self.counting:
            return None
        left = budget - sum(other.steps for other in self.counting)
        free = budget - sum(max(other.most, other.steps) for other in self.counting if other is not member)
        part = max(1, left // (2 * len(self.counting)))
        member.granted = max(member.steps, min(member.steps + part, free))
        member.most = max(member.most, member.granted)  # a smaller grant counts when it has been heard
        return member.granted

    def _until_ready(self, member: RayMember) -> None:
        while not member.ready:
            self._hear([member], WATCH)
            if member.failure or self._hangs(member, member.seen):
                self._not_built(member, member.failure or self._silence(member))
                self._start(member)

    # --- running ------------------------------------------------------------------------------------------------------

    def round(self) -> None:
        """Look after the processes for a moment."""
        self._hear(self.members, PAUSE)
        now = time.monotonic()
        for member in self.members:
            if member.process is None:
                if now >= member.start_at:
                    self._start(member)
            elif member.failure:
                self._failed(member, member.failure)
            elif self._hangs(member, member.seen):
                self._failed(member, self._silence(member))

    def _hear(self, members: list[Any], timeout: float) -> None:
        by_call = {member.watching: member for member in members if member.watching is not None}
        if not by_call:
            time.sleep(timeout)
            return
        come, _ = self.ray.wait(list(by_call), num_returns=len(by_call), timeout=timeout)
        for call in come:
            member = by_call[call]
            try:
                age, still, member.steps, news = self.ray.get(call)
            except self.ray.exceptions.RayError as error:
                if isinstance(error, self.ray.exceptions.ActorUnavailableError) and not member.alone:
                    self._watch(member)  # it may come back, and is too dear to be given up for a broken connection
                else:
                    member.watching, member.failure = None, Failure(str(error), _death(error))
                continue
            now = time.monotonic()
            member.seen, member.moved, member.most = now - age, now - still, member.granted
            self._watch(member)
            for what, *given in news:
                if what == "ready":
                    addresses, member.pid, member.node = given
                    self.addresses |= addresses
                    self._is_ready(member)
                elif what == "failed":
                    self._heard_failure(member, given[0])

    def _seen(self, member: RayMember) -> float:
        return member.seen

    def _moved(self, member: RayMember) -> float:
        return member.moved

    def _failed(self, member: RayMember, failure: Failure) -> None:
        self._end(member)
        self._count_failure(member, failure)

    def _end(self, member: RayMember) -> None:
        with contextlib.suppress(self.ray.exceptions.RayError):
            self.ray.kill(member.process)
        member.watching, member.most = None, 0
        if member.pid and member.node == self.ray.get_runtime_context().get_node_id():
            sweep(member.pid)

    # --- asking -------------------------------------------------------------------------------------------------------

    def _ask(self, member: RayMember, *message: Any) -> tuple | None:
        return self._answers([self._order(member, *message)])[0]

    def _ask_all(self, *message: Any) -> list[tuple | None]:
        return self._answers([self._order(member, *message) for member in self.members])

    def _order(self, member: RayMember, *message: Any) -> Any:
        if member.process is None or not member.ready or member.failure:
            return None
        if message[0] == "reclaim":
            message = (*message, self.where[message[1]].incarnation)
        return member.process.order.remote(*message)

    def _answers(self, calls: list[Any]) -> list[tuple | None]:
        """What each call gives; None for one that fails or is not answered in time."""
        sent = [call for call in calls if call is not None]
        if sent:
            self.ray.wait(sent, num_returns=len(sent), timeout=self.hang_seconds)
        return [None if call is None else self._answer(call) for call in calls]

    def _answer(self, call: Any) -> tuple | None:
        try:
            return self.ray.get(call, timeout=0)
        except (self.ray.exceptions.RayError, TimeoutError):
            return None

    # --- keeping ------------------------------------------------------------------------------------------------------

    def _keep(self, member: RayMember, folder: Path, step: int) -> None:
        """Its state comes here, and is written beside the run."""
        if member.process is not None:
            self.states[member.group] = (member.process.order.remote("state"), folder, step)

    def _kept(self, group: str) -> bool:
        if group in self.states:
            call, folder, step = self.states[group]
            answer = self._answer(call)
            if answer is None:
                return False
            del self.states[group]
            self.savers[group] = Saver(folder)
            self.savers[group].save(self.ray.get(answer[0]), step)
        return group in self.savers and self.savers[group].finished()

    def close(self) -> None:
        """Stop everything; whoever does not stop by itself is stopped, and Ray too if it was started for this."""
        if self.closed:
            return
        self.closed = True
        running = [member for member in self.members if member.process is not None]
        with contextlib.suppress(self.ray.exceptions.RayError):
            calls = [member.process.stop.remote(GRACE) for member in reversed(running)]
            if calls:
                self.ray.wait(calls, num_returns=len(calls), timeout=GRACE)
        for member in running:
            self._end(member)
        for saver in self.savers.values():
            with contextlib.suppress(UserError):  # whoever needed the checkpoint has waited for it and been told
                saver.wait()
        if self.guard is not None:
            self.guard.kill()
            self.guard.wait()
            self.guard.stdin.close()
        if self.ours:
            self.ray.shutdown()


def _death(error: Exception) -> str:
    """What became of a process, in a line."""
    if "unavailable" in str(error):
        return "it cannot be reached any more"
    return "its machine was lost" if "node has died" in str(error) else "its process died"
