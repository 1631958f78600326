//! `/metrics`, under the names of the engine that is simulated.

use std::fmt::Write;

use super::decode::Report;
use super::slots::PoolView;

/// The page. `model` is the label `vLLM` puts on everything.
pub fn text(report: &Report, model: &str) -> String {
    match report.pool {
        Some(pool) => shared_pool(report, pool, model),
        None => llama_server(report),
    }
}

fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}

fn busy(report: &Report) -> usize {
    report.slots.iter().filter(|slot| slot.serving.is_some()).count()
}

fn llama_server(report: &Report) -> String {
    let totals = &report.totals;
    let per_second = |tokens: u64, micros: u64| if micros > 0 { tokens as f64 / seconds(micros) } else { 0.0 };
    let mut text = String::new();
    for (kind, name, help, value) in [
        ("counter", "prompt_tokens_total", "Prompt tokens processed.", totals.prompt_tokens as f64),
        ("counter", "prompt_tokens_cached_total", "Prompt tokens taken from the cache.", totals.cached_tokens as f64),
        ("counter", "prompt_seconds_total", "Prompt process time.", seconds(totals.prompt_micros)),
        ("counter", "tokens_predicted_total", "Generation tokens processed.", totals.predicted_tokens as f64),
        ("counter", "tokens_predicted_seconds_total", "Predict process time.", seconds(totals.predicted_micros)),
        ("counter", "n_decode_total", "Decode steps.", totals.steps as f64),
        ("gauge", "n_busy_slots_per_decode", "Average busy slots of a step.", totals.busy_slots as f64 / totals.steps.max(1) as f64),
        ("gauge", "prompt_tokens_seconds", "Average prompt throughput.", per_second(totals.prompt_tokens, totals.prompt_micros)),
        (
            "gauge",
            "predicted_tokens_seconds",
            "Average generation throughput.",
            per_second(totals.predicted_tokens, totals.predicted_micros),
        ),
        ("gauge", "requests_processing", "Requests processing.", busy(report) as f64),
        ("gauge", "requests_deferred", "Requests deferred.", report.deferred as f64),
    ] {
        // Writing to a string cannot fail.
        let _infallible = write!(text, "# HELP llamacpp:{name} {help}\n# TYPE llamacpp:{name} {kind}\nllamacpp:{name} {value}\n");
    }
    text
}

fn shared_pool(report: &Report, pool: PoolView, model: &str) -> String {
    let totals = &report.totals;
    let mut text = String::new();
    for (kind, name, value) in [
        ("gauge", "num_requests_running", busy(report) as f64),
        ("gauge", "num_requests_waiting", report.deferred as f64),
        ("gauge", "kv_cache_usage_perc", pool.usage),
        ("counter", "prefix_cache_queries", pool.queried as f64),
        ("counter", "prefix_cache_hits", pool.found as f64),
        ("counter", "num_preemptions", 0.0),
        ("counter", "prompt_tokens", (totals.prompt_tokens + totals.cached_tokens) as f64),
        ("counter", "generation_tokens", totals.predicted_tokens as f64),
    ] {
        let suffix = if kind == "counter" { "_total" } else { "" };
        // Writing to a string cannot fail.
        let _infallible = write!(text, "# TYPE vllm:{name} {kind}\nvllm:{name}{suffix}{{engine=\"0\",model_name=\"{model}\"}} {value}\n");
    }
    let PoolView { blocks, block_tokens, .. } = pool;
    let _infallible = write!(
        text,
        "# TYPE vllm:cache_config_info gauge\n\
         vllm:cache_config_info{{block_size=\"{block_tokens}\",engine=\"0\",num_gpu_blocks=\"{blocks}\"}} 1.0\n"
    );
    text
}
