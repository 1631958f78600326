"""Starts the HTTP server inside the xllamacpp wheel with llama-server's own flags.

The wheel carries llama.cpp's server as a library, without the program around it. This file is that
program: it maps flags to the library's parameters, starts the server and waits for a signal. It
imports nothing but the standard library and the wheel beside it (folder `lib`), is run with
`python3 -I -B`, and holds no state. A flag it does not know ends it, as it would end llama-server.
"""

import os
import signal
import sys

LIBRARY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib")
KEY_VARIABLE = "LLAMA_API_KEY"


class Refused(Exception):
    """A command line that cannot be."""


def number(text):
    return int(text)


def real(text):
    return float(text)


def text(value):
    return value


def switch(value):
    """on/off words of llama-server's newer flags."""
    return {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}[value.lower()]


def member(enum_name, prefix, extra=None):
    """A word that names one member of an enum of the library."""

    def read(value):
        import xllamacpp

        name = (extra or {}).get(value.lower(), value.upper().replace("-", "_"))
        return getattr(getattr(xllamacpp, enum_name), prefix + name)

    return read


def set_at(path):
    """Stores a value at a dotted path below the parameters."""
    *parents, last = path.split(".")

    def store(params, value):
        target = params
        for parent in parents:
            target = getattr(target, parent)
        setattr(target, last, value)

    return store


def store_fit_target(params, value):
    """MiB to leave free, one for all devices or one each."""
    margins = [int(part) << 20 for part in value.split(",")]
    known = len(params.fit_params_target)
    params.fit_params_target = (margins + [margins[-1]] * known)[:known]


def store_tensor_split(params, value):
    shares = [float(part) for part in value.replace("/", ",").split(",")]
    known = len(params.tensor_split)
    params.tensor_split = (shares + [0.0] * known)[:known]


def store_template_arguments(params, value):
    import json

    known = dict(params.default_template_kwargs)
    known.update({key: json.dumps(item) for key, item in json.loads(value).items()})
    params.default_template_kwargs = known


def store_speculation(params, value):
    read = member("common_speculative_type", "COMMON_SPECULATIVE_TYPE_")
    params.speculative.types = [read(word) for word in value.split(",")]


def store_rerank(params, _value):
    import xllamacpp

    params.embedding = True
    params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_RANK


def store_swap_mode(name):
    """The flags that --load-mode replaced."""

    def store(params, _value):
        import xllamacpp

        params.load_mode = getattr(xllamacpp.llama_load_mode, "LLAMA_LOAD_MODE_" + name)

    return store


def store_timeout(params, value):
    params.timeout_read = value
    params.timeout_write = value


def fixed(path, value):
    """A flag without a value."""
    store = set_at(path)
    return lambda params, _value: store(params, value)


CACHE_TYPE = member("ggml_type", "GGML_TYPE_")

# (names, how to read the value or None where there is none, how to store it)
FLAGS = [
    # serving
    (("--host",), text, lambda params, value: setattr(params, "hostnames", value.split(","))),
    (("--port",), number, set_at("port")),
    (("-a", "--alias"), text, lambda params, value: setattr(params, "model_alias", {value})),
    (("--metrics",), None, fixed("endpoint_metrics", True)),
    (("--slots",), None, fixed("endpoint_slots", True)),
    (("--no-slots",), None, fixed("endpoint_slots", False)),
    (("--no-ui", "--no-webui"), None, fixed("ui", False)),
    (("--offline",), None, fixed("offline", True)),
    (("--sse-ping-interval",), number, set_at("sse_ping_interval")),
    (("--cors-origins",), text, lambda params, value: (set_at("cors_origins")(params, value), setattr(params, "cors_origins_explicit", True))),
    (("--cors-credentials",), None, fixed("cors_credentials", True)),
    (("--no-cors-credentials",), None, fixed("cors_credentials", False)),
    (("-to", "--timeout"), number, store_timeout),
    (("--threads-http",), number, set_at("n_threads_http")),
    (("-lv", "--verbosity", "--log-verbosity"), number, set_at("verbosity")),
    # model
    (("-m", "--model"), text, set_at("model.path")),
    (("-mm", "--mmproj"), text, set_at("mmproj.path")),
    (("--mmproj-offload",), None, fixed("mmproj_use_gpu", True)),
    (("--no-mmproj-offload",), None, fixed("mmproj_use_gpu", False)),
    (("--image-min-tokens",), number, set_at("image_min_tokens")),
    (("--image-max-tokens",), number, set_at("image_max_tokens")),
    (("--mtmd-batch-max-tokens",), number, set_at("mtmd_batch_max_tokens")),
    (("--embedding", "--embeddings"), None, fixed("embedding", True)),
    (("--rerank", "--reranking"), None, store_rerank),
    (("--pooling",), member("llama_pooling_type", "LLAMA_POOLING_TYPE_"), set_at("pooling_type")),
    (
        ("--attention",),
        member("llama_attention_type", "LLAMA_ATTENTION_TYPE_"),
        set_at("attention_type"),
    ),
    (("--embd-normalize",), number, set_at("embd_normalize")),
    # memory
    (("-c", "--ctx-size"), number, set_at("n_ctx")),
    (("-np", "--parallel"), number, set_at("n_parallel")),
    (("-kvu", "--kv-unified"), None, fixed("kv_unified", True)),
    (("-no-kvu", "--no-kv-unified"), None, fixed("kv_unified", False)),
    (("-b", "--batch-size"), number, set_at("n_batch")),
    (("-ub", "--ubatch-size"), number, set_at("n_ubatch")),
    (("--keep",), number, set_at("n_keep")),
    (("-ctk", "--cache-type-k"), CACHE_TYPE, set_at("cache_type_k")),
    (("-ctv", "--cache-type-v"), CACHE_TYPE, set_at("cache_type_v")),
    (("-cram", "--cache-ram"), number, set_at("cache_ram_mib")),
    (("-ctxcp", "--ctx-checkpoints"), number, set_at("n_ctx_checkpoints")),
    (("-cms", "--checkpoint-min-step"), number, set_at("checkpoint_min_step")),
    (("-sps", "--slot-prompt-similarity"), real, set_at("slot_prompt_similarity")),
    (("--cache-prompt",), None, fixed("cache_prompt", True)),
    (("--no-cache-prompt",), None, fixed("cache_prompt", False)),
    (("--cache-reuse",), number, set_at("n_cache_reuse")),
    (("--cache-idle-slots",), None, fixed("cache_idle_slots", True)),
    (("--no-cache-idle-slots",), None, fixed("cache_idle_slots", False)),
    (("--context-shift",), None, fixed("ctx_shift", True)),
    (("--no-context-shift",), None, fixed("ctx_shift", False)),
    (("--swa-full",), None, fixed("swa_full", True)),
    (
        ("-lm", "--load-mode"),
        member("llama_load_mode", "LLAMA_LOAD_MODE_", {"mmap+mlock": "MMAP_MLOCK", "dio": "DIRECT_IO"}),
        set_at("load_mode"),
    ),
    (("-lzm", "--lazy-mode"), member("llama_lazy_mode", "LLAMA_LAZY_MODE_"), set_at("lazy_mode")),
    (("--mmap",), None, store_swap_mode("MMAP")),
    (("--no-mmap",), None, store_swap_mode("NONE")),
    (("--mlock",), None, store_swap_mode("MMAP_MLOCK")),
    (("-fit", "--fit"), switch, set_at("fit_params")),
    (("-fitt", "--fit-target"), text, store_fit_target),
    # computing
    (("-t", "--threads"), number, set_at("cpuparams.n_threads")),
    (("-tb", "--threads-batch"), number, set_at("cpuparams_batch.n_threads")),
    (("--poll",), number, set_at("cpuparams.poll")),
    (("--numa",), member("ggml_numa_strategy", "GGML_NUMA_STRATEGY_"), set_at("numa")),
    (
        ("-fa", "--flash-attn"),
        member("llama_flash_attn_type", "LLAMA_FLASH_ATTN_TYPE_", {"on": "ENABLED", "off": "DISABLED"}),
        set_at("flash_attn_type"),
    ),
    (("-ngl", "--gpu-layers", "--n-gpu-layers"), lambda value: {"auto": -1, "all": -2}.get(value) or int(value), set_at("n_gpu_layers")),
    (("-sm", "--split-mode"), member("llama_split_mode", "LLAMA_SPLIT_MODE_"), set_at("split_mode")),
    (("-ts", "--tensor-split"), text, store_tensor_split),
    (("-mg", "--main-gpu"), number, set_at("main_gpu")),
    (("-ot", "--override-tensor"), text, set_at("tensor_buft_overrides")),
    (("-kvo", "--kv-offload"), None, fixed("no_kv_offload", False)),
    (("-nkvo", "--no-kv-offload"), None, fixed("no_kv_offload", True)),
    (("--repack",), None, fixed("no_extra_bufts", False)),
    (("-nr", "--no-repack"), None, fixed("no_extra_bufts", True)),
    (("--op-offload",), None, fixed("no_op_offload", False)),
    (("--no-op-offload",), None, fixed("no_op_offload", True)),
    (("--no-host",), None, fixed("no_host", True)),
    (("--check-tensors",), None, fixed("check_tensors", True)),
    (("--warmup",), None, fixed("warmup", True)),
    (("--no-warmup",), None, fixed("warmup", False)),
    (("-cb", "--cont-batching"), None, fixed("cont_batching", True)),
    (("-nocb", "--no-cont-batching"), None, fixed("cont_batching", False)),
    # rope
    (
        ("--rope-scaling",),
        member("llama_rope_scaling_type", "LLAMA_ROPE_SCALING_TYPE_"),
        set_at("rope_scaling_type"),
    ),
    (("--rope-scale",), real, lambda params, value: setattr(params, "rope_freq_scale", 1.0 / value)),
    (("--rope-freq-base",), real, set_at("rope_freq_base")),
    (("--rope-freq-scale",), real, set_at("rope_freq_scale")),
    (("--yarn-orig-ctx",), number, set_at("yarn_orig_ctx")),
    (("--yarn-ext-factor",), real, set_at("yarn_ext_factor")),
    (("--yarn-attn-factor",), real, set_at("yarn_attn_factor")),
    (("--yarn-beta-slow",), real, set_at("yarn_beta_slow")),
    (("--yarn-beta-fast",), real, set_at("yarn_beta_fast")),
    # talking
    (("--jinja",), None, fixed("use_jinja", True)),
    (("--no-jinja",), None, fixed("use_jinja", False)),
    (("--chat-template",), text, set_at("chat_template")),
    (("--chat-template-kwargs",), text, store_template_arguments),
    (("--skip-chat-parsing",), None, fixed("force_pure_content_parser", True)),
    (("--prefill-assistant",), None, fixed("prefill_assistant", True)),
    (("--no-prefill-assistant",), None, fixed("prefill_assistant", False)),
    (
        ("--reasoning-format",),
        member("common_reasoning_format", "COMMON_REASONING_FORMAT_"),
        set_at("reasoning_format"),
    ),
    (("-rea", "--reasoning"), lambda value: {"on": 1, "off": 0, "auto": -1}[value], set_at("enable_reasoning")),
    (("--reasoning-budget",), number, set_at("sampling.reasoning_budget_tokens")),
    (("--reasoning-budget-message",), text, set_at("sampling.reasoning_budget_message")),
    (("-sp", "--special"), None, fixed("special", True)),
    # sampling defaults
    (("-n", "--predict", "--n-predict"), number, set_at("n_predict")),
    (("-s", "--seed"), number, set_at("sampling.seed")),
    (("--ignore-eos",), None, fixed("sampling.ignore_eos", True)),
    (("--temp", "--temperature"), real, set_at("sampling.temp")),
    (("--top-k",), number, set_at("sampling.top_k")),
    (("--top-p",), real, set_at("sampling.top_p")),
    (("--min-p",), real, set_at("sampling.min_p")),
    (("--xtc-probability",), real, set_at("sampling.xtc_probability")),
    (("--xtc-threshold",), real, set_at("sampling.xtc_threshold")),
    (("--typical", "--typical-p"), real, set_at("sampling.typ_p")),
    (("--repeat-last-n",), number, set_at("sampling.penalty_last_n")),
    (("--repeat-penalty",), real, set_at("sampling.penalty_repeat")),
    (("--presence-penalty",), real, set_at("sampling.penalty_present")),
    (("--frequency-penalty",), real, set_at("sampling.penalty_freq")),
    (("--dry-multiplier",), real, set_at("sampling.dry_multiplier")),
    (("--dry-base",), real, set_at("sampling.dry_base")),
    (("--dry-allowed-length",), number, set_at("sampling.dry_allowed_length")),
    (("--dry-penalty-last-n",), number, set_at("sampling.dry_penalty_last_n")),
    (("--adaptive-target",), real, set_at("sampling.adaptive_target")),
    (("--adaptive-decay",), real, set_at("sampling.adaptive_decay")),
    (("--dynatemp-range",), real, set_at("sampling.dynatemp_range")),
    (("--dynatemp-exp",), real, set_at("sampling.dynatemp_exponent")),
    (("--mirostat",), number, set_at("sampling.mirostat")),
    (("--mirostat-lr",), real, set_at("sampling.mirostat_eta")),
    (("--mirostat-ent",), real, set_at("sampling.mirostat_tau")),
    (("-bs", "--backend-sampling"), None, fixed("sampling.backend_sampling", True)),
    # speculation without a second model
    (("--spec-type",), text, store_speculation),
    (("--spec-draft-n-max",), number, set_at("speculative.draft.n_max")),
    (("--spec-draft-n-min",), number, set_at("speculative.draft.n_min")),
    (("--spec-draft-p-min", "--draft-p-min"), real, set_at("speculative.draft.p_min")),
    (("--spec-draft-p-split", "--draft-p-split"), real, set_at("speculative.draft.p_split")),
    (("--spec-ngram-mod-n-min",), number, set_at("speculative.ngram_mod.n_min")),
    (("--spec-ngram-mod-n-max",), number, set_at("speculative.ngram_mod.n_max")),
    (("--spec-ngram-mod-n-match",), number, set_at("speculative.ngram_mod.n_match")),
]


def say(line):
    print(line, file=sys.stderr, flush=True)


def show_help():
    print("usage: launcher.py FLAGS   (llama-server's flags; the key comes from " + KEY_VARIABLE + ")\n")
    for names, read, _store in FLAGS:
        print("  " + ", ".join(names) + (" VALUE" if read else ""))
    for name in ("--help", "--version", "--list-devices"):
        print("  " + name)


def show_version():
    import xllamacpp

    print("version: " + xllamacpp.__version__)


def show_devices():
    import xllamacpp

    kind = xllamacpp.ggml_backend_dev_type.GGML_BACKEND_DEVICE_TYPE_CPU
    print("Available devices:")
    devices = [device for device in xllamacpp.get_device_info() if device["type"] != kind]
    for device in devices:
        total, free = device["memory_total"] >> 20, device["memory_free"] >> 20
        print(f"  {device['name']}: {device['description']} ({total} MiB, {free} MiB free)")
    if not devices:
        print("  (none)")


def read_flags(params, arguments):
    """Applies the flags to the parameters, in their order; the last of a repeated one counts."""
    table = {name: entry for entry in FLAGS for name in entry[0]}
    rest = iter(arguments)
    for argument in rest:
        if argument not in table:
            raise Refused("invalid argument: " + argument)
        _names, read, store = table[argument]
        value = None
        if read:
            raw = next(rest, None)
            if raw is None:
                raise Refused("expected value for argument: " + argument)
            try:
                value = read(raw)
            except (ValueError, KeyError, AttributeError):
                raise Refused(f"invalid value for argument: {argument}: {raw}") from None
        try:
            store(params, value)
        except (ValueError, TypeError, OverflowError) as problem:
            raise Refused(f"invalid value for argument: {argument}: {problem}") from None


def settle(params):
    """What llama-server settles after it has read its flags."""
    if not params.model.path:
        raise Refused("no model: --model is missing")
    if params.cpuparams.n_threads < 1:
        count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        params.cpuparams.n_threads = count or 1
    if params.cpuparams_batch.n_threads < 1:
        params.cpuparams_batch.n_threads = params.cpuparams.n_threads
    if params.embedding and params.n_batch > params.n_ubatch:
        params.n_batch = params.n_ubatch
    if os.environ.get(KEY_VARIABLE):
        params.api_keys = [os.environ[KEY_VARIABLE]]


def serve(arguments):
    import xllamacpp

    params = xllamacpp.CommonParams()
    read_flags(params, arguments)
    settle(params)

    # Until the model is loaded a signal ends the process at once (nothing to let go of); the server
    # answers 503 meanwhile. The constructor returns when it is ready.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    server = xllamacpp.Server(params)

    # A signal may be delivered to any thread of the library: the wake-up pipe reaches this one.
    inlet, outlet = os.pipe()
    os.set_blocking(outlet, False)
    signal.set_wakeup_fd(outlet)

    def first(_number, _frame):
        # The second one ends the process whatever the server is waiting for.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    signal.signal(signal.SIGTERM, first)
    signal.signal(signal.SIGINT, first)
    say("launcher: listening on " + str(server.listening_address))
    os.read(inlet, 1)
    say("launcher: stopping")
    del server
    sys.stderr.flush()
    os._exit(0)


def main(arguments):
    sys.path.insert(0, LIBRARY)
    if arguments == ["--help"]:
        return show_help()
    if arguments == ["--version"]:
        return show_version()
    if arguments == ["--list-devices"]:
        return show_devices()
    try:
        return serve(arguments)
    except Refused as problem:
        say("error: " + str(problem))
    except (RuntimeError, ImportError, OSError) as problem:
        say("error: " + str(problem))
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
