"""One process of a program on Ray: an actor that builds its group's nodes and gives them their turns.

The loop has a thread of its own. Ray's threads bring messages from other processes; the loop answers them between
turns, as soon as it can.

A node that others reach offers `serve(consumer) -> service`: the service has an `address` to be sent to the consumer's
process, where `address.connect(ask)` takes the node's place; `ask(message)` begins a call and gives something with
`ready()` and `get()`. The service has `answer(message)`, which gives None as long as it cannot answer, a `reclaim()`
for when the consumer has died, and a `close()`. A service that has `current` instead, a version and a value, is a
latest value: it is put into the object store once for each version, and only when somebody asks.
"""

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import ray
from ray import cloudpickle

from cavalcade.errors import Stopped
from cavalcade.failures import Failure
from cavalcade.programs import Node
from cavalcade.runtimes.group import Group
from cavalcade.transport import ParamsService

SWITCH = 5e-4  # seconds after which the loop lets Ray's threads have Python's lock
ALIVE = 2  # values kept in the object store: the newest, and the one that somebody may be fetching


@dataclass(frozen=True)
class Job:
    """What a process is started with."""

    nodes: bytes  # of its group, pickled
    remote: dict[str, tuple[Any, str, Any]]  # node elsewhere -> its process, who reaches it from here, its address
    counted: list[str]  # nodes elsewhere of which one sees their counted steps
    consumers: list[tuple[str, str]]  # (node here, node elsewhere that reaches it)
    incarnation: int  # how often it was started before
    steps: int  # counted by those before it


@dataclass
class Letter:
    """A message that waits for the loop."""

    answer: Callable[[], Any]  # None: not yet
    consumer: str = ""
    incarnation: int = 0
    reply: Any = None
    stopped: bool = False
    answered: threading.Event = field(default_factory=threading.Event)

    def give(self, reply: Any, stopped: bool = False) -> None:
        self.reply, self.stopped = reply, stopped
        self.answered.set()


class Host:
    def __init__(self, job: Job, restore: dict | None = None):
        """`restore`: what the nodes once gave as their state."""
        sys.setswitchinterval(SWITCH)
        self.job = job
        self.mail: deque[Letter] = deque()
        self.bell = threading.Event()
        self.counts: dict[str, int] = {}  # of nodes elsewhere
        self.services: dict[tuple[str, str], Any] = {}
        self.oldest: dict[str, int] = {}  # incarnation of each consumer that is still listened to
        self.values: dict[int, dict[int, Any]] = {}  # of each latest value: version -> reference
        self.putting = threading.Lock()
        self.steps = job.steps
        self.granted: int | None = job.steps  # steps up to which it may count; None: without end
        self.beat = self.moved = time.monotonic()  # of the last turn, and of the last in which anybody moved
        self.news: deque[tuple] = deque()
        self.something_new = threading.Event()
        self.built = self.stopping = self.ended = False
        self.loop = threading.Thread(target=self._run, args=(restore,), name="loop", daemon=True)
        self.loop.start()

    # --- asked by others, in Ray's threads ----------------------------------------------------------------------------

    def watch(
        self, seconds: float, counts: dict[str, int], granted: int | None
    ) -> tuple[float, float, int, list[tuple]]:
        """For the driver: seconds since the loop was last seen alive and since anybody moved, steps, and what is new,
        at once if anything is. `counts`: what nodes elsewhere have counted, for those here that look at it. `granted`:
        up to what those here may count."""
        if counts != self.counts or granted != self.granted:
            self.counts.update(counts)
            self.granted = granted
            self.bell.set()
        self.something_new.wait(seconds)
        self.something_new.clear()
        news = [self.news.popleft() for _ in range(len(self.news))]
        now = time.monotonic()
        return now - self.beat, now - self.moved, self.steps, news

    def order(self, what: str, *given: Any) -> tuple:
        """For the driver: `report`, `call`, `state` or `reclaim`, done between two turns."""
        return self._post(Letter(lambda: getattr(self, f"_{what}")(*given)))

    def ask(self, edge: tuple[str, str], incarnation: int, message: Any) -> Any:
        """For a consumer: the service's answer."""
        service = self.services[edge]
        if isinstance(service, ParamsService):
            return self._latest(service, known=message)
        return self._post(Letter(lambda: service.answer(message), edge[1], incarnation))

    def stop(self, seconds: float) -> None:
        """End the loop and close everything."""
        self.stopping = True
        self.bell.set()
        self.loop.join(seconds)

    def _post(self, letter: Letter) -> Any:
        self.mail.append(letter)
        self.bell.set()
        while not letter.answered.wait(1.0):
            if self.ended:  # it came when nobody read any more
                letter.give(None, stopped=True)
        if letter.stopped:
            raise Stopped("The process has ended.")
        return letter.reply

    def _latest(self, service: Any, known: int) -> tuple[int, Any] | None:
        version, value = service.current
        if version == known:
            return None
        with self.putting:
            kept = self.values.setdefault(id(service), {})
            if version not in kept:
                kept[version] = ray.put(value)
                for old in sorted(kept)[:-ALIVE]:
                    del kept[old]
            return version, kept[version]

    # --- the loop -----------------------------------------------------------------------------------------------------

    def _run(self, restore: dict | None) -> None:
        try:
            self._build(restore)
            self._give_turns()
        except Stopped:
            pass  # what we write to has gone: the driver knows, or will find us silent
        except BaseException as error:
            self._tell("failed", Failure.of(error))
        finally:
            self.ended = True
            while self.mail:
                self.mail.popleft().give(None, stopped=True)
            if self.built:
                self.group.close()

    def _build(self, restore: dict | None) -> None:
        job = self.job
        nodes: list[Node] = cloudpickle.loads(job.nodes)
        others: dict[str, Any] = {name: Counted(self.counts, name) for name in job.counted}
        for name, (host, consumer, address) in job.remote.items():
            others[name] = address.connect(Edge(host, (name, consumer), job.incarnation, self.bell))
        self.group, self.built = Group(nodes, others, job.incarnation, job.steps), True
        if restore:
            self.group.restore(_writable(restore))
        self.services = self.group.offer(job.consumers, by_messages=True)
        addresses = {edge: service.address for edge, service in self.services.items()}
        self._tell("ready", addresses, os.getpid(), ray.get_runtime_context().get_node_id())

    def _give_turns(self) -> None:
        group, used_up = self.group, None
        while not self.stopping:
            self.bell.clear()
            began = time.monotonic()
            moved = self._read_mail()
            granted = self.granted
            may_count = granted is None or self.steps < granted
            moved |= group.take_turns(may_count)
            self.beat = time.monotonic()
            if moved:
                self.moved = self.beat
            if group.counting:
                self.steps = group.steps
                if not may_count and used_up != granted:  # once: the driver may grant more
                    used_up = granted
                    self.something_new.set()
            group.rest(moved, began, self.bell.wait)

    def _read_mail(self) -> bool:
        """Answer what can be answered; the rest stays, in its order."""
        moved = False
        for _ in range(len(self.mail)):
            letter = self.mail.popleft()
            if letter.incarnation < self.oldest.get(letter.consumer, 0):
                letter.give(None, stopped=True)
                continue
            reply = letter.answer()
            if reply is None:
                self.mail.append(letter)
            else:
                letter.give(reply)
                moved = True
        return moved

    def _tell(self, *news: Any) -> None:
        self.news.append(news)
        self.something_new.set()

    # --- the driver's orders ------------------------------------------------------------------------------------------

    def _report(self) -> tuple[dict[str, dict], dict[str, float]]:
        return self.group.reports()

    def _call(self, name: str, method: str, arguments: tuple) -> tuple:
        return (self.group.call(name, method, arguments),)

    def _state(self) -> tuple:
        """A reference: the state is copied to where the driver can fetch it before anybody goes on changing it."""
        return (ray.put(self.group.state()),)

    def _reclaim(self, consumer: str, incarnation: int) -> tuple:
        self.oldest[consumer] = incarnation
        self.group.reclaim(consumer)
        return (None,)


class Edge:
    """Calls to a service in another process, one at a time."""

    def __init__(self, host: Any, edge: tuple[str, str], incarnation: int, bell: threading.Event):
        self.host, self.edge, self.incarnation, self.bell = host, edge, incarnation, bell

    def __call__(self, message: Any) -> "Call":
        return Call(self.host.ask.remote(self.edge, self.incarnation, message), self.bell)


class Call:
    def __init__(self, reference: Any, bell: threading.Event):
        self.future = reference.future()
        self.future.add_done_callback(lambda _: bell.set())

    def ready(self) -> bool:
        return self.future.done()

    def get(self) -> Any:
        try:
            reply = self.future.result()
            if isinstance(reply, tuple) and isinstance(reply[-1], ray.ObjectRef):
                return (*reply[:-1], ray.get(reply[-1]))
        except ray.exceptions.RayError as error:
            raise Stopped(f"A process that this one needs has gone ({type(error).__name__}).") from error
        return reply


class Counted:
    """A node in another process, seen from here: what it has counted, as far as the driver has told."""

    def __init__(self, counts: dict[str, int], name: str):
        self.counts, self.name = counts, name

    @property
    def steps(self) -> int:
        return self.counts.get(self.name, 0)


def _writable(state: Any) -> Any:
    """Arrays from the object store belong to all who look at them; a node gets its own."""
    if isinstance(state, dict):
        return {key: _writable(value) for key, value in state.items()}
    if isinstance(state, list):
        return [_writable(value) for value in state]
    return np.array(state) if isinstance(state, np.ndarray) else state
