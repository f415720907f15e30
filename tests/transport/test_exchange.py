"""Requests and replies between real processes: each gets its own, in batches, and nobody hangs when somebody dies."""

import multiprocessing
import os
import signal
import threading
import time

import numpy as np
import pytest

from cavalcade.errors import Stopped
from cavalcade.runtimes import child
from cavalcade.transport.bell import Bell
from cavalcade.transport.exchange import Exchange, stacked
from cavalcade.transport.memory import SharedWords
from tests.helpers.leftovers import nothing_is_left  # noqa: F401
from tests.helpers.messages import by_message

SPAWN = multiprocessing.get_context("spawn")
REQUEST = {"obs": np.zeros((3, 4), np.float32), "run": np.zeros((3,), np.int64)}
REPLY = {"action": np.zeros((3,), np.int64)}


@pytest.fixture
def exchange():
    made = Exchange(REQUEST, REPLY)
    yield made
    made.close()


def request(number):
    return {"obs": np.full((3, 4), number, np.float32), "run": np.arange(3) + number}


def serve(exchange, answers, most=8, patience=0.002, seconds=60.0):
    """Answer so many requests with twice their run; the size of each batch."""
    sizes, end = [], time.monotonic() + seconds
    while sum(sizes) < answers and time.monotonic() < end:
        rung = exchange.bell.rung()
        if desks := exchange.collect(most, patience):
            both = stacked([desk.request for desk in desks])
            assert (both["obs"][:, 0] == both["run"] - np.tile(np.arange(3), len(desks))).all(), "torn"
            for desk, part in zip(desks, np.split(2 * both["run"], len(desks))):
                desk.answer({"action": part})
            sizes.append(len(desks))
        else:
            exchange.bell.rest(rung, 0.001)
    return sizes


def ask_many(address, count, start):
    client = address.connect()
    for number in range(start, start + count):
        reply = client.ask(request(number), timeout=30.0)
        assert reply["action"].tolist() == [2 * (number + i) for i in range(3)]


def ask_and_hang(address):
    client = address.connect()
    client.send(request(1))
    time.sleep(600)


def started(target, *args):
    process = SPAWN.Process(target=target, args=args, daemon=True)
    process.start()
    return process


def test_every_client_gets_its_own_reply(exchange):
    clients = [started(ask_many, exchange.share("a").address, 500, 10_000 * n) for n in range(3)]
    sizes = serve(exchange, 1_500)
    for client in clients:
        client.join(30)
    assert [client.exitcode for client in clients] == [0, 0, 0]
    assert sum(sizes) == 1_500 and max(sizes) <= 3


def test_all_that_ask_are_answered_together_and_never_more_than_most(exchange):
    desks = [exchange.share("a") for _ in range(5)]
    clients = [desk.address.connect() for desk in desks]
    for client in clients[:4]:
        client.send(request(7))
    assert exchange.collect(8, patience=60.0) == [], "one of five has not asked, and there is time"
    assert len(exchange.collect(8, patience=0.0)) == 4
    assert exchange.collect(3, patience=60.0) == desks[:3], "three are enough"
    clients[4].send(request(8))
    together = exchange.collect(8, patience=60.0)
    assert len(together) == 5, "all ask: nobody is worth waiting for"
    assert stacked([desk.request for desk in together])["obs"].shape == (15, 4)


def test_who_waits_longest_comes_first(exchange):
    desks = [exchange.share("a") for _ in range(3)]
    late, early = desks[0].address.connect(), desks[2].address.connect()
    early.send(request(1))
    exchange.collect(8, 60.0)
    time.sleep(0.002)
    late.send(request(2))
    assert exchange.collect(1, 0.0) == [desks[2]]


def test_a_reply_that_is_not_there_yet_is_none(exchange):
    desk = exchange.share("a")
    client = desk.address.connect()
    client.send(request(1))
    assert client.take() is None
    desk.answer({"action": np.array([5, 6, 7])})
    assert client.take()["action"].tolist() == [5, 6, 7] and not desk.waiting
    assert client.ask(request(2), timeout=0.01) is None


def test_a_killed_client_is_replaced(exchange):
    desk = exchange.share("a")
    victim = started(ask_and_hang, desk.address)
    while not desk.waiting:
        time.sleep(0.001)
    os.kill(victim.pid, signal.SIGKILL)
    victim.join()
    desk.reclaim()
    assert not desk.waiting
    successor = started(ask_many, desk.address, 50, 40)
    assert sum(serve(exchange, 50)) == 50
    successor.join(30)
    assert successor.exitcode == 0


def test_clients_of_a_closed_exchange_are_told():
    exchange = Exchange(REQUEST, REPLY)
    client = exchange.share("a").address.connect()
    closer = threading.Timer(0.05, exchange.close)
    closer.start()
    with pytest.raises(Stopped):
        client.ask(request(1), timeout=30.0)
    closer.join()


def ring_often(address, count):
    bell = Bell(address.connect().reshape(-1), 0)
    for _ in range(count):
        bell()


def test_no_ring_is_missed():
    words = SharedWords((1, 8))
    bell = Bell(words.array.reshape(-1), 0)
    ringer = started(ring_often, words.address, 20_000)
    seen, missed = 0, False
    while seen < 20_000 and not missed:
        began = time.monotonic()
        bell.rest(seen, 20.0)  # may end early, but its whole time passes only if a ring was missed
        missed, seen = time.monotonic() - began >= 20.0, bell.rung()
    ringer.join()
    words.close()
    assert seen == 20_000 and not missed


def test_a_rest_ends_when_its_time_is_up():
    bell = Bell(np.zeros(8, np.int64), 0)
    bell.rest(0, 0.01)
    bell()
    resting = threading.Thread(target=bell.rest, args=(0, 60.0), daemon=True)
    resting.start()
    resting.join(20.0)
    assert not resting.is_alive(), "it was rung since: no rest at all"


def test_nodes_of_one_process_use_the_same_desks():
    exchange = Exchange(REQUEST, REPLY)
    clients = [exchange.desk(f"actor/{n}") for n in range(2)]
    for number, client in enumerate(clients):
        client.send(request(number))
    (one, other) = exchange.collect(8, 60.0)
    one.answer({"action": 10 * one.request["run"]})
    assert clients[0].take()["action"].tolist() == [0, 10, 20] and clients[1].take() is None
    assert other.name == "actor/1" and other.waiting and not one.waiting
    exchange.close()
    with pytest.raises(Stopped):
        clients[1].take()


def test_where_no_memory_is_shared_messages_carry_the_arrays():
    exchange = Exchange(REQUEST, REPLY)
    service = exchange.serve("actor/0")
    client = by_message(service).desk("actor/0")
    for number in range(3):
        client.send(request(number))
        assert client.take() is None
        (desk,) = exchange.collect(8, 0.0)
        desk.answer({"action": 2 * desk.request["run"]})
        assert client.take()["action"].tolist() == [2 * (number + i) for i in range(3)]
    client.send(request(9))
    client.take()
    service.reclaim()
    assert not exchange.collect(8, 0.0), "who has died is not answered any more"
    exchange.close()


def test_what_a_request_leaves_out_stays_as_it_was():
    exchange = Exchange(REQUEST, REPLY)
    client, desk = exchange.desk("actor/0"), exchange.desks[0]
    client.send(request(5))
    desk.answer({"action": np.arange(3)})
    client.send({"run": np.array([7, 8, 9])})
    assert desk.waiting and desk.number == 2
    assert desk.request["run"].tolist() == [7, 8, 9] and (desk.request["obs"] == 5).all()
    exchange.close()


@pytest.mark.parametrize("answered", [False, True])
def test_a_desk_goes_on_where_it_was(answered):
    """With a request that waits, or with an answer that was not taken."""
    old, new = Exchange(REQUEST, REPLY), Exchange(REQUEST, REPLY)
    client = old.desk("actor/0")
    for number in range(3):
        client.send(request(number))
        if number < 2 or answered:
            old.desks[0].answer({"action": np.arange(3) + number})
    other = new.desk("actor/0")
    new.desks[0].restore(old.desks[0].state())
    assert new.desks[0].waiting != answered
    if not answered:
        assert other.take() is None and (new.desks[0].request["obs"] == 2).all()
        new.desks[0].answer({"action": np.arange(3) + 2})
    assert other.take()["action"].tolist() == [2, 3, 4] and not new.desks[0].waiting
    old.close()
    new.close()


def test_the_words_of_a_process_do_not_overlap():
    """A bell takes two words: a rest must not change when somebody last moved."""
    words = np.zeros(2 * child.WORDS, np.int64)
    for index in range(2):
        words[index * child.WORDS + child.MOVED] = 123_456
    bell = Bell(words, child.BELL)
    bell.rest(bell.rung(), 1e-4)
    assert words[child.MOVED] == words[child.WORDS + child.MOVED] == 123_456
    places = {child.BEAT, child.STEPS, child.BELL, child.BELL + 1, child.MOVED}
    assert len(places) == 5 and max(places) < child.WORDS
