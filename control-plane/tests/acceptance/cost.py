"""CPU time of the control plane per request and per streamed token, over the simulated engine.

Not a limit of its own: it tells two builds apart. Alternate them with LIFEBOAT_BINARY and compare.
"""

import asyncio
import json
import os
import pathlib

from served import BINARY, Served

REQUESTS = 4000
CONNECTIONS = 4
STREAMS = 64
TOKENS = 64


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def request(port, **more):
    body = json.dumps({"model": "chat", "messages": [{"role": "user", "content": "x" * 200}], **more}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def ask(port, count):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    sent = request(port, max_tokens=1)
    for _ in range(count):
        writer.write(sent)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        length = next(int(line.split(b":")[1]) for line in head.lower().splitlines() if line.startswith(b"content-length"))
        await reader.readexactly(length)
    writer.close()


async def stream(port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request(port, max_tokens=TOKENS, stream=True))
    tail = b""
    while piece := await reader.read(65536):
        tail = (tail + piece)[-64:]
        if b"[DONE]" in tail:
            break
    assert b"[DONE]" in tail, tail
    writer.close()


async def requests(port):
    await asyncio.gather(*(ask(port, REQUESTS // CONNECTIONS) for _ in range(CONNECTIONS)))


async def streams(port):
    await asyncio.gather(*(stream(port) for _ in range(STREAMS)))


def main():
    with Served() as served:
        flags = ["--decode-us-per-token", "20000", "--batch-slowdown", "0", "--prefill-us-per-char", "0", "--tokens", "100"]
        served.ready(served.create_row(model_name="chat", engine="sim", model="sim", slots=STREAMS, context=4096, extra_args=flags))
        pid, port = served.process.pid, served.port
        asyncio.run(requests(port))
        found = {}
        for name, load, units in (("request", requests, REQUESTS), ("token", streams, STREAMS * TOKENS)):
            start = cpu_seconds(pid)
            rounds = 1 if name == "request" else 4
            for _ in range(rounds):
                asyncio.run(load(port))
            found[name] = (cpu_seconds(pid) - start) / units / rounds * 1e6
        print(f"{BINARY}: {found['request']:.1f} us CPU per request, {found['token']:.1f} us per streamed token")


if __name__ == "__main__":
    main()
