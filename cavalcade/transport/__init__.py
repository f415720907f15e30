"""Transport: shared memory, and messages between processes through it. Nothing is pickled on the way."""

from cavalcade.transport.bell import Bell, nobody
from cavalcade.transport.exchange import Client, Desk, Exchange, RemoteClient, ServedDesk
from cavalcade.transport.memory import (
    Attached,
    Memory,
    SharedWords,
    Signpost,
    WordsAddress,
    available,
    require,
    sweep,
    sweep_dead,
)
from cavalcade.transport.params import ParamsBroadcast, ParamsService

__all__ = [
    "Attached",
    "Bell",
    "Client",
    "Desk",
    "Exchange",
    "Memory",
    "ParamsBroadcast",
    "ParamsService",
    "RemoteClient",
    "ServedDesk",
    "SharedWords",
    "Signpost",
    "WordsAddress",
    "available",
    "nobody",
    "require",
    "sweep",
    "sweep_dead",
]
