"""Resident memory of the control plane: idle with one row, and with 256 and 1000 open streams of the simulated engine.

Limits: 16, 32 and 48 MB (10^6 bytes). Exit code 1 if one is passed.
"""

import asyncio
import json
import time

from served import Served, resident_kib

# Streams at once, and the rows they are spread over.
PARTS = [(256, 1, 32_000_000), (1000, 4, 48_000_000)]
IDLE_LIMIT = 16_000_000


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


async def all_streams(port, pid, count):
    started, peak = [], 0
    tasks = [asyncio.create_task(stream(port, number, started)) for number in range(count)]
    deadline = time.monotonic() + 120
    while not all(task.done() for task in tasks) and time.monotonic() < deadline:
        if len(started) == count:
            peak = max(peak, resident_kib(pid)[0])
        await asyncio.sleep(0.1)
    for task in tasks:
        task.result()
    assert peak, "the streams were never all open at once"
    return peak


def measure(streams, rows):
    """Resident KiB idle, with all streams open, and after them."""
    with Served() as served:
        flags = ["--decode-us-per-token", "100000", "--batch-slowdown", "0", "--prefill-us-per-char", "0", "--tokens", "120"]
        spec = dict(model_name="chat", engine="sim", model="sim", slots=streams // rows, context=4096, extra_args=flags)
        for row in [served.create_row(**spec) for _ in range(rows)]:
            served.ready(row)
        time.sleep(5)
        pid = served.process.pid
        idle = resident_kib(pid)[0]
        peak = asyncio.run(all_streams(served.port, pid, streams))
        time.sleep(5)
        return idle, peak, resident_kib(pid)[0]


def main():
    passed = True
    for streams, rows, limit in PARTS:
        idle, peak, after = (kib * 1024 for kib in measure(streams, rows))
        # The limit of an idle one is for one row.
        passed &= peak < limit and (rows > 1 or idle < IDLE_LIMIT)
        print(
            f"{rows} row(s) idle {idle / 1e6:.1f} MB (limit for one row {IDLE_LIMIT / 1e6:.0f}), "
            f"{streams} streams {peak / 1e6:.1f} MB (limit {limit / 1e6:.0f}), after {after / 1e6:.1f} MB"
        )
    raise SystemExit(int(not passed))


if __name__ == "__main__":
    main()
