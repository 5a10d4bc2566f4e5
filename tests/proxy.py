"""A reverse proxy in a process of its own: `python -m tests.proxy PORT PREFIX SECONDS CUT OWN` listens on the port
OWN (0: any) and prints it.

It passes a request for PREFIX/path on as one for /path to 127.0.0.1:PORT, and answers any other with 404. Where no byte
of an answer has come after SECONDS it gives up, as proxies do: with the status CUT, or by closing if CUT is 0.
"""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import httpx


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, settings: list[str]) -> None:
    port, prefix, seconds, cut, _ = settings
    line, *headers = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
    method, target, version = line.split(" ")
    fields = {name.lower(): value.strip() for name, _, value in (header.partition(":") for header in headers)}
    body = await reader.readexactly(int(fields.get("content-length", 0)))
    if not target.startswith(f"{prefix}/"):
        return writer.write(_answer(404))
    fields |= {"connection": "close", "host": f"127.0.0.1:{port}"}
    theirs, ours = await asyncio.open_connection("127.0.0.1", int(port))
    head = [f"{method} {target.removeprefix(prefix)} {version}", *(f"{name}: {fields[name]}" for name in fields)]
    ours.write("\r\n".join([*head, "", ""]).encode("latin-1") + body)
    try:
        piece = await asyncio.wait_for(theirs.read(2**16), float(seconds))
        while piece:
            writer.write(piece)
            await writer.drain()
            piece = await theirs.read(2**16)
    except TimeoutError:
        if int(cut):
            writer.write(_answer(int(cut)))
    finally:
        ours.close()


def _answer(status: int) -> bytes:
    body = b"<html>An answer of the proxy.</html>"
    return b"HTTP/1.1 %d No\r\nContent-Type: text/html\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (
        status,
        len(body),
        body,
    )


async def _serve(settings: list[str]) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            await _pass(reader, writer, settings)
        writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", int(settings[-1]))
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def proxy(url: str, *, prefix: str = "", seconds: float = 200, cut: int = 504, port: int = 0) -> Iterator[str]:
    """Start a proxy of the service at that URL, and yield its URL."""
    settings = [httpx.URL(url).port, prefix, seconds, cut, port]
    command = [sys.executable, "-m", "tests.proxy", *map(str, settings)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}{prefix}"
        finally:
            process.kill()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1:]))
