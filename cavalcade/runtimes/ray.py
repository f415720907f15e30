"""Ray: each group of nodes is a Ray actor, on this machine or in a cluster; messages and params go through Ray.

Ray starts processes, moves arrays and notices which process has died. What is done then is the same as for local
processes (`supervision.py`). A group is one process: of CPUs, GPUs and every other resource it gets the largest amount
that any of its nodes asks for, and Ray sees to it that NumPy uses no more threads than that. The run folder is on the
driver's machine; states come to it and go back through the object store.
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
WATCH = 0.1  # seconds after which a process answers the driver's call `watch`, also if it has no news
GRACE = 3.0  # seconds in which a process may end by itself
CONTROL = 4  # calls of the driver that a process may have under way at once


@dataclass(eq=False)
class RayMember(Member):
    """A process on Ray, as the driver knows it; `process` is the handle of the Ray actor."""

    watching: Any = None  # the call `watch` that is under way
    seen: float = 0.0  # when its loop last took turns, in monotonic seconds here
    moved: float = 0.0  # when one of its nodes last moved
    granted: int = 0  # steps up to which it may count by the last grant
    most: int = 0  # the largest grant that it may still go by, because it has not answered since
    pid: int = 0
    node: str = ""  # the id of the Ray node (machine) that it is on


def _needs(member: RayMember) -> dict[str, float]:
    """By resource, the largest amount that any node of the process asks for."""
    needs: dict[str, float] = {}
    for node in member.nodes:
        placed = node.placement
        for name, amount in {"CPU": placed.cpus, "GPU": placed.gpus, **placed.resources}.items():
            needs[name] = max(needs.get(name, 0.0), amount)
    return needs


class RayRuntime(Supervisor):
    """A program on Ray."""

    quiet = 3 * WATCH  # seconds: in this time every process hears at least once what others have counted

    def __init__(
        self,
        program: Program,
        hang_seconds: float = 60.0,
        restore: tuple[Path, int, dict] | None = None,
        address: str = "",
    ):
        """`restore`: folder, step and the driver's part of a checkpoint. `address`: of a Ray cluster; if empty, Ray is
        started on this machine, unless the caller has connected to Ray already."""
        super().__init__(program, hang_seconds, restore, RayMember)
        self.addresses: dict[tuple[str, str], Any] = {}  # of services, by (node, consumer)
        self.states: dict[str, tuple[Any, Path, int]] = {}  # by group whose state is on its way: call, folder, step
        self.savers: dict[str, Saver] = {}
        self.ours, self.local = connect(address, len(self.members))
        self.guard: Any = None
        import ray

        self.ray = ray
        try:
            self._require_resources()
            for member in self.members:
                for owner in {self.where[edge].group: self.where[edge] for edge, _ in member.edges}.values():
                    self._until_ready(owner)
                self._start(member)
            for member in self.members:
                self._until_ready(member)
            self.guard = guard() if self.local else None
        except BaseException:
            self.close()
            raise

    # --- starting -----------------------------------------------------------------------------------------------------

    def _require_resources(self) -> None:
        """Raise a UserError if all processes together need more than the cluster has."""
        there = self.ray.cluster_resources()
        if not self.local:  # a Ray that was started here is told of more CPUs than there are
            self.cores = int(there.get("CPU", 0))  # by which `runs/session.py` says what bounds the run
        needed: dict[str, float] = {}
        for member in self.members:
            for name, amount in _needs(member).items():
                needed[name] = needed.get(name, 0.0) + amount
        for name, amount in needed.items():
            if amount > there.get(name, 0.0):
                raise UserError(
                    f"The program's {len(self.members)} processes need {amount:g} {name}, but the Ray cluster has "
                    f"{there.get(name, 0.0):g}: lower --actors, set --evaluations 0, or add machines."
                )

    def _start(self, member: RayMember) -> None:
        """Start a process with its job; all processes that it refers to must be ready."""
        from cavalcade.runtimes import ray_host

        edges, consumers = member.edges, self.program.consumers(member.nodes)
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
        needs = _needs(member)
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
        """Begin a call to the process that answers after `WATCH` seconds, or at once if it has news."""
        counts = {name: self.where[name].steps for name, _ in member.edges}
        member.watching = member.process.watch.remote(WATCH, counts, self._grant(member))

    def _grant(self, member: RayMember) -> int | None:
        """The steps up to which the process may count until the next `watch`; None if it need not know. Counts come
        late here, so each counting process is granted an equal part of half of the steps that are left: grants are so
        large that processes seldom wait, and so small near the end that nobody waits long for a slow one. All grants
        together never exceed the budget."""
        budget = self.program.budget
        if not budget or member not in self.counting:
            return None
        left = budget - sum(other.steps for other in self.counting)
        free = budget - sum(max(other.most, other.steps) for other in self.counting if other is not member)
        part = max(1, left // (2 * len(self.counting)))
        member.granted = max(member.steps, min(member.steps + part, free))
        member.most = max(member.most, member.granted)  # a smaller grant holds only when the process has answered
        return member.granted

    def _until_ready(self, member: RayMember) -> None:
        while not member.ready:
            self._hear([member], WATCH)
            if member.failure or member.hangs(member.seen, self.hang_seconds):
                self._not_built(member, member.failure or member.silence(self.hang_seconds))
                self._start(member)

    # --- running ------------------------------------------------------------------------------------------------------

    def round(self) -> None:
        """Read answers for up to `PAUSE` seconds, count failures, and start failed processes anew."""
        self._hear(self.members, PAUSE)
        now = time.monotonic()
        for member in self.members:
            if member.process is None:
                if now >= member.start_at:
                    self._start(member)
            elif member.failure:
                self._failed(member, member.failure)
            elif member.hangs(member.seen, self.hang_seconds):
                self._failed(member, member.silence(self.hang_seconds))

    def _hear(self, members: list[Any], timeout: float) -> None:
        """Take the answers to `watch`, waiting up to `timeout` seconds for them, and begin the next calls."""
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
                    self._watch(member)  # the connection may come back, and the program would fail without this process
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
                    member.is_ready()
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
        """The answer to each call; None where it failed, was not answered in time, or was not made."""
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
        """Ask the process for its state; `_kept` writes it here when it has come."""
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
        """Stop all processes; those that do not end by themselves within `GRACE` seconds are killed. Disconnects from
        Ray, or stops it, if we have connected to it or started it."""
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
            with contextlib.suppress(UserError):  # `finish_saving` has raised it if anybody needed this checkpoint
                saver.wait()
        if self.guard is not None:
            self.guard.kill()
            self.guard.wait()
            self.guard.stdin.close()
        if self.ours:
            self.ray.shutdown()


def _death(error: Exception) -> str:
    """What became of a process, in a few words."""
    if "unavailable" in str(error):
        return "it cannot be reached any more"
    return "its machine was lost" if "node has died" in str(error) else "its process died"
