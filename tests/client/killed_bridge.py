"""A bridge that is killed at a step: `python -m tests.client.killed_bridge STEP ARGUMENTS…`.

Each note, request to the service, acknowledgement and message that is set aside is two steps: before it, and after it.
"""

import os
import signal
import sys
from itertools import count

from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.kv import KeyValue

from perennial.__main__ import main
from perennial.transport import AsyncTransport

steps = count(1)


def step() -> None:
    if next(steps) == int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)


def in_steps(owner, name):
    true = getattr(owner, name)

    async def stepping(*arguments, **more):
        step()
        answer = await true(*arguments, **more)
        step()
        return answer

    setattr(owner, name, stepping)


if __name__ == "__main__":
    in_steps(KeyValue, "update")
    in_steps(AsyncTransport, "run")
    in_steps(JetStreamContext, "pull_subscribe_bind")
    in_steps(JetStreamContext, "publish")
    acknowledged = Client.request

    async def request(self, subject, payload=b"", *arguments, **more):
        if payload != b"+ACK":
            return await acknowledged(self, subject, payload, *arguments, **more)
        step()
        answer = await acknowledged(self, subject, payload, *arguments, **more)
        step()
        return answer

    Client.request = request
    sys.exit(main(sys.argv[2:]))
