//! What an engine's metrics page says of its own queue.
//!
//! Read line by line for the few names that matter, in the text format all of these engines write; a page without any of
//! them is no answer. Ranks and models of one server are added up: a request may wait for any of them.

/// What an engine says of its own queue.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EngineQueue {
    /// Requests that wait inside the engine.
    pub waiting: u32,
    /// Part of its cache in use, 0 to 1, where it says so; of several, the fullest.
    pub cache_used: Option<f64>,
}

/// Gauges of waiting requests: `vLLM`, `SGLang`, llama-server, TGI.
const WAITING: [&str; 4] = ["vllm:num_requests_waiting", "sglang:num_queue_reqs", "llamacpp:requests_deferred", "tgi_queue_size"];
/// Gauges of cache in use: `vLLM` (under the name of before 0.10 too), `SGLang`.
const CACHE_USED: [&str; 3] = ["vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage"];

/// Reads a metrics page; `None` = it does not tell.
pub fn read(page: &str) -> Option<EngineQueue> {
    let (mut waiting, mut cache_used): (Option<f64>, Option<f64>) = (None, None);
    for line in page.lines() {
        let Some((name, value)) = sample(line) else { continue };
        if WAITING.contains(&name) {
            waiting = Some(waiting.unwrap_or(0.0) + value);
        } else if CACHE_USED.contains(&name) {
            cache_used = Some(cache_used.map_or(value, |most: f64| most.max(value)));
        }
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative; saturates")]
    let waiting = waiting? as u32;
    Some(EngineQueue { waiting, cache_used })
}

/// The name and the value of a line, where they are sane. A label may hold blanks, and a time may follow the value.
fn sample(line: &str) -> Option<(&str, f64)> {
    let end = line.find(['{', ' '])?;
    let (name, rest) = line.split_at_checked(end)?;
    let rest = if rest.starts_with('{') { rest.rsplit_once('}')?.1 } else { rest };
    let value = rest.split_whitespace().next()?.parse::<f64>().ok()?;
    (value.is_finite() && value >= 0.0).then_some((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_engine_is_read_under_its_own_names() {
        for (page, expected) in [
            (
                "# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_running{engine=\"0\",model_name=\"m\"} 8.0\n\
                 vllm:num_requests_waiting{engine=\"0\",model_name=\"a b\"} 3.0\nvllm:num_requests_waiting{engine=\"1\",model_name=\"m\"} 1\n\
                 vllm:num_requests_waiting_by_reason{reason=\"capacity\"} 4\nvllm:kv_cache_usage_perc{engine=\"0\"} 0.2\n\
                 vllm:kv_cache_usage_perc{engine=\"1\"} 0.75\n",
                Some(EngineQueue { waiting: 4, cache_used: Some(0.75) }),
            ),
            (
                "sglang:num_queue_reqs{model_name=\"m\"} 2.0 1712345678000\nsglang:token_usage{model_name=\"m\"} 0.5\n",
                Some(EngineQueue { waiting: 2, cache_used: Some(0.5) }),
            ),
            ("llamacpp:requests_deferred 0\n", Some(EngineQueue { waiting: 0, cache_used: None })),
            ("tgi_queue_size 7\r\n", Some(EngineQueue { waiting: 7, cache_used: None })),
            ("vllm:num_requests_waiting{engine=\"0\"} NaN\n", None),
            ("vllm:num_requests_waiting{engine=\"0\"} -1\n", None),
            ("go_goroutines 12\n", None),
            ("<html>vllm:num_requests_waiting 3</html>", None),
            ("", None),
        ] {
            assert_eq!(read(page), expected, "{page}");
        }
    }
}
