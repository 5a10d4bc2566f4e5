"""Bridges that are killed, the first at its first step, the second at its second, until one ends by itself.

`python -m tests.client.killed_bridge` reads JSON: the `server`, the `subject` of new messages, a list of `messages` to
publish before each of the first starts, and the `arguments` of the bridge. It prints how many bridges ran. A note, a
request to the service, a subscription, an acknowledgement and a message that is set aside are two steps each: before it
is done, and after it.
"""

import asyncio
import json
import os
import signal
import sys
from itertools import count

# Each bridge would load these again.
import anyio._backends._asyncio  # noqa: F401
import certifi  # noqa: F401
import httpcore._backends.anyio  # noqa: F401
import httpx  # noqa: F401
import nats
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.kv import KeyValue

from perennial.__main__ import main
from perennial.transport import AsyncTransport


def in_steps(step, owner, name, only=lambda *_: True):
    true = getattr(owner, name)

    async def stepping(*arguments, **more):
        if not only(*arguments):
            return await true(*arguments, **more)
        step()
        answer = await true(*arguments, **more)
        step()
        return answer

    setattr(owner, name, stepping)


def bridge(last, arguments):
    """Run a bridge in a process that is killed at its last step, and return the exit status."""
    child = os.fork()
    if child == 0:
        steps = count(1)

        def step():
            if next(steps) == last:
                os.kill(os.getpid(), signal.SIGKILL)

        in_steps(step, KeyValue, "update")
        in_steps(step, AsyncTransport, "run")
        in_steps(step, JetStreamContext, "pull_subscribe_bind")
        in_steps(step, JetStreamContext, "publish", lambda _, subject, *more: not subject.startswith("$KV"))
        in_steps(step, Client, "request", lambda _, subject, payload=b"", *more: payload == b"+ACK")
        os._exit(main(arguments))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


async def publish(server, subject, messages):
    connection = await nats.connect(server)
    for message in messages:
        await connection.jetstream().publish(subject, message.encode())
    await connection.close()


def run(server, subject, messages, arguments):
    for step in count(1):
        if step <= len(messages):
            asyncio.run(publish(server, subject, messages[step - 1]))
        ended = bridge(step, arguments)
        if ended != -signal.SIGKILL:
            print(step)
            return ended
    return None


if __name__ == "__main__":
    sys.exit(run(**json.load(sys.stdin)))
