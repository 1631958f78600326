"""Resident memory of the control plane: idle with one row, and with 256 open streams of the simulated engine.

Limits: 16 MB and 32 MB (10^6 bytes). Exit code 1 if one is passed.
"""

import asyncio
import json
import time

from served import Served, resident_kib

STREAMS = 256
LIMITS_KIB = {"idle": 16_000_000 // 1024, "streams": 32_000_000 // 1024}


async def stream(port, number, started):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({"model": "chat", "stream": True, "messages": [{"role": "user", "content": f"stream {number} " + "x" * 1000}]}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    first = True
    while piece := await reader.read(65536):
        if first:
            assert piece.startswith(b"HTTP/1.1 200"), piece
            first = False
            started.append(number)
        if b"[DONE]" in piece:
            break
    writer.close()


async def all_streams(port, pid):
    started, peak = [], 0
    tasks = [asyncio.create_task(stream(port, number, started)) for number in range(STREAMS)]
    deadline = time.monotonic() + 120
    while not all(task.done() for task in tasks) and time.monotonic() < deadline:
        if len(started) == STREAMS:
            peak = max(peak, resident_kib(pid)[0])
        await asyncio.sleep(0.1)
    for task in tasks:
        task.result()
    assert peak, "the streams were never all open at once"
    return peak


def main():
    with Served() as served:
        flags = ["--decode-us-per-token", "100000", "--batch-slowdown", "0", "--prefill-us-per-char", "0", "--tokens", "120"]
        row = served.create_row(model_name="chat", engine="sim", model="sim", slots=STREAMS, context=4096, extra_args=flags)
        served.ready(row)
        time.sleep(5)
        pid = served.process.pid
        idle = resident_kib(pid)[0]
        streams = asyncio.run(all_streams(served.port, pid))
        time.sleep(5)
        after = resident_kib(pid)[0]
    found = {"idle": idle, "streams": streams}
    for name, kib in found.items():
        print(f"{name:8} {kib * 1024 / 1e6:6.1f} MB  (limit {LIMITS_KIB[name] * 1024 / 1e6:.0f} MB)")
    print(f"{'after':8} {after * 1024 / 1e6:6.1f} MB")
    raise SystemExit(int(any(kib > LIMITS_KIB[name] for name, kib in found.items())))


if __name__ == "__main__":
    main()
