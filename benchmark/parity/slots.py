"""Replays the same conversations on a real llama.cpp server and on the simulated engine and compares what each found cached.

Tokens differ between the two (the simulated one counts four bytes as a token); decisions must not: for every request both
must have found the conversation's own tokens, or the system text that all share, or nothing.

    python3 benchmark/parity/slots.py --lifeboat target/debug/lifeboat --model model.gguf \
        (--llama-server PATH | --xllamacpp FOLDER)

FOLDER is where the xllamacpp package lies (pip install --target FOLDER xllamacpp). Standard library only. Ends with 1 if
any decision differs.
"""

import argparse
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ANSWER = 8

def words(generator, count):
    pool = ["harbour", "signal", "weather", "distance", "engine", "repair", "night", "watch", "current", "island", "depth", "cargo"]
    return " ".join(generator.choice(pool) for _ in range(count))


# Of the same words as the messages, so that tokens and pretended tokens are in one proportion everywhere. Its part of a
# prompt stays well between the rules' limits (0.5 of what is held, 0.8 of the prompt), or a rule would be told apart from a
# rounding by nothing.
SYSTEM = words(random.Random(0), 260)

# Flags: similarity, kv_unified, cache_idle_slots, slots. As in the table of measured launches.
LAUNCHES = [
    ("-np 3, stock", 0.1, False, True, 3),
    ("-np 3 --no-cache-idle-slots", 0.1, False, False, 3),
    ("-np 3 -sps 0.8", 0.8, False, True, 3),
    ("-np 3 -sps 0.8 --no-cache-idle-slots", 0.8, False, False, 3),
    ("-np 4 -kvu (as without -np)", 0.1, True, True, 4),
    ("-np 4 -kvu -sps 0.8", 0.8, True, True, 4),
    ("-np 3 -kvu --no-cache-idle-slots", 0.1, True, False, 3),
    ("-np 3 -kvu --no-cache-idle-slots -sps 0.8", 0.8, True, False, 3),
    ("-np 2 -sps 0", 0.0, False, False, 2),
]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Engine:
    def __init__(self, command, port, env=None):
        self.base = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(600):
            if self.process.poll() is not None:
                sys.exit(f"the engine ended with {self.process.returncode}: {' '.join(command)}")
            try:
                with urllib.request.urlopen(self.base + "/health", timeout=2) as reply:
                    if reply.status == 200:
                        return
            except (urllib.error.URLError, OSError):
                pass
            time.sleep(0.1)
        sys.exit("the engine is not ready after a minute: " + " ".join(command))

    def ask(self, messages, slot):
        body = {"messages": messages, "max_tokens": ANSWER, "temperature": 0, "stream": False}
        if slot is not None:
            body["id_slot"] = slot
        request = urllib.request.Request(
            self.base + "/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=300) as reply:
            answer = json.load(reply)
        return answer["choices"][0]["message"]["content"], answer["timings"]["cache_n"], answer["timings"]["prompt_n"]

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def real(options, folder, launch):
    _name, similarity, unified, idle, slots = launch
    port = free_port()
    if options.llama_server:
        command = [options.llama_server, "--no-ui"]
    else:
        command = [sys.executable, "-I", "-B", os.path.join(folder, "launcher.py")]
    # Without a unified cache each slot has its part of the context.
    context = 4096 if unified else 4096 * slots
    command += ["-m", options.model, "--port", str(port), "-np", str(slots), "-c", str(context), "-sps", str(similarity)]
    command += ["-kvu" if unified else "-no-kvu", "--cache-idle-slots" if idle else "--no-cache-idle-slots"]
    command += ["-cram", str(options.cache_ram), "--slots", "--metrics", "-fit", "off"]
    return Engine(command, port)


def simulated(options, launch):
    _name, similarity, unified, idle, slots = launch
    port = free_port()
    command = [options.lifeboat, "sim-engine", "--port", str(port), "--slots", str(slots), "--context", "4096"]
    command += ["--slot-prompt-similarity", str(similarity), "--cache-ram", str(options.cache_ram), "--tokens", "100000"]
    command += ["--prefill-us-per-char", "0", "--decode-us-per-token", "50"]
    command += (["--kv-unified"] if unified else []) + (["--cache-idle-slots"] if idle else [])
    return Engine(command, port)


def conversations(seed, count, turns, first, further, shuffled):
    """The order of turns, as (conversation, turn), and the user's text of each."""
    generator = random.Random(seed)
    texts = {}
    for conversation in range(count):
        for turn in range(turns):
            texts[conversation, turn] = f"Crew {conversation}, report {turn}: " + words(generator, first if turn == 0 else further)
    order = []
    for turn in range(turns):
        round_of = list(range(count))
        if shuffled:
            generator.shuffle(round_of)
        order += [(conversation, turn) for conversation in round_of]
    return order, texts


def replay(engine, order, texts, pin):
    """For every request: what was found, as a decision, and the tokens."""
    history, held, found = {}, {}, []
    shared = None
    for conversation, turn in order:
        messages = history.setdefault(conversation, [{"role": "system", "content": SYSTEM}])
        messages.append({"role": "user", "content": texts[conversation, turn]})
        answer, cached, computed = engine.ask(messages, pin(conversation))
        messages.append({"role": "assistant", "content": answer})
        own = held.get(conversation)
        if own is not None and cached >= 0.9 * own:
            decision = "own"
        elif cached == 0:
            decision = "nothing"
        elif shared is None or cached <= shared * 1.3 + 16:
            # The first thing ever found by a newcomer is the text that all share.
            shared = shared or cached
            decision = "shared"
        else:
            decision = f"other:{cached}"
        held[conversation] = cached + computed + ANSWER - 1
        found.append((decision, cached, computed))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lifeboat", required=True)
    parser.add_argument("--model", required=True)
    engine = parser.add_mutually_exclusive_group(required=True)
    engine.add_argument("--llama-server")
    engine.add_argument("--xllamacpp")
    parser.add_argument("--cache-ram", type=int, default=1024, help="MiB of host cache on both")
    parser.add_argument("--workloads", type=int, default=3, help="how many of the three workloads, from the cheapest")
    options = parser.parse_args()
    workloads = [
        ("two conversations", conversations(1, 2, 3, 130, 8, False), 2),
        ("five conversations, small turns", conversations(2, 5, 4, 130, 8, True), 5),
        ("five conversations, large turns", conversations(3, 5, 4, 130, 260, True), 5),
    ][: options.workloads]
    differences = 0
    with tempfile.TemporaryDirectory() as folder:
        if options.xllamacpp:
            shutil.copy(os.path.join(ROOT, "control-plane/src/engines/launcher.py"), folder)
            os.symlink(os.path.abspath(options.xllamacpp), os.path.join(folder, "lib"))
        print(f"{'launch':44} {'workload':34} {'pinned':6} {'same':>7} {'cached real':>12} {'cached sim':>11}")
        for launch in LAUNCHES:
            for name, (order, texts), _count in workloads:
                for pinned in (False, True):
                    pin = (lambda conversation, slots=launch[4]: conversation % slots) if pinned else (lambda _conversation: None)
                    results = []
                    for start in (lambda: real(options, folder, launch), lambda: simulated(options, launch)):
                        engine = start()
                        try:
                            results.append(replay(engine, order, texts, pin))
                        finally:
                            engine.stop()
                    pairs = list(zip(order, *results))
                    same = sum(1 for _turn, left, right in pairs if left[0] == right[0])
                    share = [sum(one[1] for one in found) / sum(one[1] + one[2] for one in found) for found in results]
                    print(
                        f"{launch[0]:44} {name:34} {'yes' if pinned else 'no':6} {same:3}/{len(pairs):3} {share[0]:12.1%} {share[1]:11.1%}",
                        flush=True,
                    )
                    for turn, left, right in pairs:
                        if left[0] != right[0]:
                            differences += 1
                            print(f"    conversation {turn[0]} turn {turn[1]}: real {left}, simulated {right}")
    print(f"{differences} decisions differ")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
