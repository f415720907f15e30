"""One process of a program on Ray: a Ray actor that builds its group's nodes and gives them turns.

The turns are given in a loop, which has a thread of its own. Ray's threads bring messages from other processes; the
loop answers them between turns.

A node that nodes in other processes refer to offers `serve(consumer) -> service`. The service has an `address`, which
is sent to the consumer's process, where `address.connect(ask)` stands in for the node; `ask(message)` begins a call and
returns an object with `ready()` and `get()`. The service has `answer(message)`, which returns None while it cannot
answer yet; a `reclaim()` for when the consumer has died; and a `close()`. A `ParamsService` has `current` instead, a
version and a value: the value is put into the object store once for each version, and only when somebody asks.
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

SWITCH = 5e-4  # seconds after which the loop lets Ray's threads have Python's global lock
ALIVE = 2  # versions kept in the object store: the newest, and the one that a consumer may be fetching


@dataclass(frozen=True)
class Job:
    """What a process is started with."""

    nodes: bytes  # of its group, pickled
    remote: dict[str, tuple[Any, str, Any]]  # by node in another process: its process, its consumer here, its address
    counted: list[str]  # nodes in other processes of which only the counted steps can be seen
    consumers: list[tuple[str, str]]  # (node here, node in another process that refers to it)
    incarnation: int  # how often this group was started before
    steps: int  # counted by its earlier incarnations


@dataclass
class Letter:
    """A message that waits for the loop."""

    answer: Callable[[], Any]  # returns the reply, or None if there is none yet
    consumer: str = ""  # who sent it; empty: the driver
    incarnation: int = 0  # of the consumer
    reply: Any = None
    stopped: bool = False  # there will be no reply
    answered: threading.Event = field(default_factory=threading.Event)

    def give(self, reply: Any, stopped: bool = False) -> None:
        self.reply, self.stopped = reply, stopped
        self.answered.set()


class Host:
    """The Ray actor."""

    def __init__(self, job: Job, restore: dict | None = None):
        """`restore`: the state of the group's nodes from a checkpoint."""
        sys.setswitchinterval(SWITCH)
        self.job = job
        self.mail: deque[Letter] = deque()
        self.bell = threading.Event()
        self.counts: dict[str, int] = {}  # steps of nodes in other processes, as the driver has told
        self.services: dict[tuple[str, str], Any] = {}  # by (node here, consumer)
        self.oldest: dict[str, int] = {}  # by consumer: messages of earlier incarnations are dropped
        self.values: dict[int, dict[int, Any]] = {}  # by id of a `ParamsService`: version -> reference
        self.putting = threading.Lock()  # one thread at a time puts a value into the object store
        self.steps = job.steps
        self.granted: int | None = job.steps  # steps up to which it may count; None: without end
        self.beat = self.moved = time.monotonic()  # of the last turns, and of the last in which a node moved
        self.news: deque[tuple] = deque()  # for the driver
        self.something_new = threading.Event()
        self.built = self.stopping = self.ended = False
        self.loop = threading.Thread(target=self._run, args=(restore,), name="loop", daemon=True)
        self.loop.start()

    # --- asked by others, in Ray's threads ----------------------------------------------------------------------------

    def watch(
        self, seconds: float, counts: dict[str, int], granted: int | None
    ) -> tuple[float, float, int, list[tuple]]:
        """For the driver: seconds since the loop's last turns and since a node moved, counted steps, and news. Returns
        after `seconds`, or at once when there is something new. `counts`: steps that nodes in other processes have
        counted, for nodes here that look at them. `granted`: steps up to which nodes here may count."""
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
        """For the driver: do `report`, `call`, `state` or `reclaim` between two turns, and return the result."""
        return self._post(Letter(lambda: getattr(self, f"_{what}")(*given)))

    def ask(self, edge: tuple[str, str], incarnation: int, message: Any) -> Any:
        """For a consumer in another process: the answer of its service, when there is one."""
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
        """Hand a message to the loop and wait for the reply."""
        self.mail.append(letter)
        self.bell.set()
        while not letter.answered.wait(1.0):
            if self.ended:  # the message came when the loop read no more
                letter.give(None, stopped=True)
        if letter.stopped:
            raise Stopped("The process has ended.")
        return letter.reply

    def _latest(self, service: Any, known: int) -> tuple[int, Any] | None:
        """The latest version and a reference to its value; None if the version is `known`."""
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
            pass  # a process that this one needs has gone: the driver knows it, or notices that this one is silent
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
                if not may_count and used_up != granted:  # tell the driver once, which may then grant more
                    used_up = granted
                    self.something_new.set()
            group.rest(moved, began, self.bell.wait)

    def _read_mail(self) -> bool:
        """Answer the messages that can be answered now; others stay, in their order. Returns whether any was
        answered."""
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
        """A reference to a copy of the state in the object store, made before any node goes on."""
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
    """A call that is under way; its answer wakes the loop."""

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
    """Stands in for a node in another process of which only the counted steps can be seen, as the driver told them."""

    def __init__(self, counts: dict[str, int], name: str):
        self.counts, self.name = counts, name

    @property
    def steps(self) -> int:
        return self.counts.get(self.name, 0)


def _writable(state: Any) -> Any:
    """A copy of the arrays, because those from the object store are shared and read-only."""
    if isinstance(state, dict):
        return {key: _writable(value) for key, value in state.items()}
    if isinstance(state, list):
        return [_writable(value) for value in state]
    return np.array(state) if isinstance(state, np.ndarray) else state
