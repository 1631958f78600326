"""Runs the comparison of routers and writes benchmark/results/<date>-router.json and .md.

    python3 benchmark/comparison/router.py [--quick] [--lifeboat PATH] [--bench PATH] [--peers FOLDER]

1. What a proxy costs, over an engine that answers at once: CPU per request and streamed token, added time to the first byte.
2. Conversations on simulated engines with llama-server's rules: 16 and 64 of them, on enough slots and on too few.
3. The simulation of the decisions themselves.

Wants an idle machine, release builds and what setup.sh installs. --quick is a smoke test: its numbers mean nothing.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import subprocess

from peers import MODEL, ROOT, Bench, free_ports, get, versions

# One engine as the conversations see it: 4 slots, 1500 prompt tokens a second, 20 ms a step.
SLOTS = 4
PREFILL_US_PER_CHAR = 166
DECODE_US = 20000
HOST_CACHE_MIB = 2048
KV_BYTES_PER_TOKEN = 131072


def engine_flags(slots):
    return [
        "--slots", slots, "--context", 32768, "--prefill-us-per-char", PREFILL_US_PER_CHAR, "--decode-us-per-token", DECODE_US,
        "--batch-slowdown", "0.1", "--cache-ram", HOST_CACHE_MIB, "--kv-bytes-per-token", KV_BYTES_PER_TOKEN, "--tokens", 4096,
    ]  # fmt: skip


def sim_row(slots):
    """The same engine as a row of Lifeboat."""
    flags = [str(flag) for flag in engine_flags(slots)]
    taken = {"--slots", "--context"}
    extra = [part for at in range(0, len(flags), 2) if flags[at] not in taken for part in flags[at : at + 2]]
    return {"model_name": MODEL, "engine": "sim", "model": "sim", "slots": slots, "context": 32768, "extra_args": extra}


def run_bench(options, *arguments):
    out = pathlib.Path(options.folder) / "part.json"
    command = [options.bench, *map(str, arguments), "--json", str(out)]
    print("$", " ".join(command), flush=True)
    subprocess.run(command, check=True)
    return json.loads(out.read_text())


def proxy_cost(options, bench):
    """One backend for all: it remembers nothing."""
    port = free_ports(1)[0]
    tokens = 16 if options.quick else 64
    backend = bench.start("backend", [options.bench, "backend", "--port", port, "--tokens", tokens, "--model", MODEL])
    bench.wait("backend", backend, lambda: get(port, "/health")[0] == 200)
    targets = ["--target", f"direct=http://127.0.0.1:{port}"]
    row = {"model_name": MODEL, "engine": "external", "url": f"http://127.0.0.1:{port}", "slots": 256}
    for name, (peer, pid), alone in [
        ("nginx", bench.nginx([port]), False),
        ("sglang-router", bench.sglang([port]), False),
        ("vllm-router", bench.vllm([port], "round_robin"), False),
        ("lifeboat", bench.lifeboat_with("lifeboat", [row]), True),
    ]:
        targets += ["--target", f"{name}=http://127.0.0.1:{peer}@{pid}{'!' if alone else ''}"]
    load = ["--rounds", 1, "--requests", 100, "--streams", 8, "--waves", 1] if options.quick else ["--rounds", 7, "--requests", 20000]
    return run_bench(options, "proxy", "--model", MODEL, "--tokens", tokens, *load, *targets)


def conversations(options, count, rows):
    """Every target with engines of its own."""
    with Bench(options.lifeboat, options.peers) as bench:
        flags = engine_flags(SLOTS)
        own = lambda name: bench.engines(name, rows, flags)
        targets = []
        for strategy in ("round-robin", "least-connections", "oracle"):
            places = ",".join(f"http://127.0.0.1:{port}" for port in own(strategy))
            targets += ["--target", f"{strategy}={strategy}@{places}"]
        for name, (port, _pid) in [
            ("nginx least_conn", bench.nginx(own("nginx"))),
            ("sglang-router cache_aware", bench.sglang(own("sglang"))),
            ("vllm-router cache_aware", bench.vllm(own("vllm cache_aware"), "cache_aware")),
            ("vllm-router sticky", bench.vllm(own("vllm sticky"), "sticky_least_loaded")),
            ("lifeboat", bench.lifeboat_with("lifeboat", [sim_row(SLOTS)] * rows)),
        ]:
            targets += ["--target", f"{name}=http://127.0.0.1:{port}"]
        load = ["--turns", 2, "--pause", 0.2, "--ramp", 0.5, "--seeds", 1] if options.quick else ["--turns", 8, "--pause", 6, "--ramp", 12, "--seeds", 3]
        texts = ["--system-tokens", 600, "--first-tokens", 400, "--message-tokens", 80, "--answer-tokens", 8 if options.quick else 64]
        oracle = ["--engine-slots", SLOTS, "--engine-host-tokens", HOST_CACHE_MIB * 2**20 // KV_BYTES_PER_TOKEN]
        oracle += ["--engine-prefill-us-per-char", PREFILL_US_PER_CHAR, "--engine-decode-us", DECODE_US]
        return run_bench(options, "conversations", "--together", "--conversations", count, "--model", MODEL, *load, *texts, *oracle, *targets)


def simulation(options):
    seconds, seeds = (60, 1) if options.quick else (900, 5)
    found = []
    for engine, workload, rates in [
        ("slots", "chat", [0.25, 0.45, 0.55, 0.62]),
        ("slots", "agent", [0.05, 0.08, 0.12]),
        ("slots", "unique", [3.2]),
        ("pool", "agent", [2, 3]),
        ("pool", "back-to-back", [15, 25, 35]),
        ("pool", "chat", [8]),
    ]:
        for rate in rates[:1] if options.quick else rates:
            found += run_bench(
                options, "simulate", "--engine", engine, "--workload", workload, "--rate", rate, "--seconds", seconds, "--seeds", seeds
            )
    if not options.quick:
        # A thousand rows, at the load per row that 8 have at 0.45.
        found += run_bench(
            options, "simulate", "--engine", "slots", "--workload", "chat", "--rate", 56, "--rows", 1000, "--seconds", 120, "--seeds", 1,
            "--strategy", "least-connections,sticky-table,lifeboat,lifeboat-keyed,lifeboat-hybrid",
        )  # fmt: skip
    return found


def number(value, digits=1):
    return "-" if value is None else f"{value:.{digits}f}"


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows] + [""]


def markdown(results):
    lines = ["# Routers compared", ""]
    lines += [f"- {name}: {value}" for name, value in results["machine"].items()]
    lines += [f"- {name} {version}" for name, version in results["versions"].items()] + [""]
    if "proxy" in results:
        header = ["proxy", "CPU µs/request", "CPU µs/token", "added p50 µs (1)", "added p99 (1)", "added p50 (32)", "added p99 (32)", "peak MiB", "errors"]
        names = ["cpu_per_request", "cpu_per_token", "alone_added_p50", "alone_added_p99", "crowded_added_p50", "crowded_added_p99", "peak_mib"]
        rows = [[line["target"], *(number(line[name]) for name in names), str(line["errors"])] for line in results["proxy"]]
        lines += ["## What a proxy costs", ""] + table(header, rows)
    for part in results.get("conversations", []):
        header = ["router", "TTFT mean s", "p50", "p95", "p99", "cached", "tokens computed", "req/s", "errors"]
        rows = []
        for line in part["lines"]:
            times = [number(line["ttft"][name], 3) for name in ("mean", "p50", "p95", "p99")]
            share = f"{line['cached_share']:.1%}"
            rows.append([line["target"], *times, share, str(line["computed_tokens"]), number(line["requests_per_second"]), str(line["errors"])])
        lines += [f"## {part['conversations']} conversations on {part['rows']} engines of {SLOTS} slots", ""] + table(header, rows)
    if "simulation" in results:
        header = ["engine", "workload", "rows", "rate/s", "strategy", "TTFT mean s", "p50", "p95", "p99", "cached", "req/s", "decision µs"]
        rows = []
        for line in results["simulation"]:
            times = [number(line["ttft"][name], 3) for name in ("mean", "p50", "p95", "p99")]
            place = [line["engine"], line["workload"], str(line["rows"]), f"{line['rate']:g}", line["strategy"]]
            rows.append([*place, *times, f"{line['cached_share']:.1%}", number(line["requests_per_second"], 2), number(line["decision_micros"])])
        lines += ["## Simulated", ""] + table(header, rows)
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--lifeboat", default=str(ROOT / "target/release/lifeboat"))
    parser.add_argument("--bench", default=str(ROOT / "target/release/lifeboat-bench"))
    parser.add_argument("--peers", default=str(ROOT / "target/peers"))
    parser.add_argument("--parts", default="proxy,conversations,simulation", help="which of them")
    parser.add_argument("--out", default=str(ROOT / "benchmark/results"))
    options = parser.parse_args()
    parts = options.parts.split(",")
    date = datetime.date.today().isoformat()
    results = {
        "machine": {"date": date, "cpus": str(os.cpu_count()), "system": platform.platform()},
        "versions": versions(options.peers),
    }
    with Bench(options.lifeboat, options.peers) as bench:
        options.folder = bench.folder
        if "proxy" in parts:
            results["proxy"] = proxy_cost(options, bench)
    with Bench(options.lifeboat, options.peers) as bench:
        options.folder = bench.folder
        if "conversations" in parts:
            cases = [(4, 2)] if options.quick else [(16, 4), (16, 2), (64, 8)]
            results["conversations"] = [
                {"conversations": count, "rows": rows, "lines": conversations(options, count, rows)} for count, rows in cases
            ]
        if "simulation" in parts:
            results["simulation"] = simulation(options)
    out = pathlib.Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    name = "quick" if options.quick else date
    (out / f"{name}-router.json").write_text(json.dumps(results, indent=2) + "\n")
    (out / f"{name}-router.md").write_text(markdown(results))
    print(f"written: {out / f'{name}-router.md'}")


if __name__ == "__main__":
    main()
