"""Calls by message, in one process: what a runtime without shared memory gives a client."""


class Call:
    """A message that is on its way: asked again until there is an answer."""

    def __init__(self, service, message):
        self.service, self.message, self.reply = service, message, None

    def ready(self):
        self.reply = self.reply or self.service.answer(self.message)
        return self.reply is not None

    def get(self):
        return self.reply


def by_message(service):
    """The client's side of a service."""
    return service.address.connect(lambda message: Call(service, message))
