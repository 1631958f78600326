//! Adapter of the engine kind `external`.

use crate::EngineAdapter;
use crate::host::HostFacts;
use crate::model::ModelFacts;
use crate::sizing::SizingError;
use crate::spec::{Capabilities, EngineKind, EngineSpec, Health, LaunchInput, LaunchPlan, Resolved, SpecError};

/// The adapter.
#[derive(Debug, Clone, Copy)]
pub struct External;

impl EngineAdapter for External {
    fn kind(&self) -> EngineKind {
        EngineKind::External
    }
    fn capabilities(&self) -> Capabilities {
        todo!()
    }
    fn validate(&self, _spec: &EngineSpec, _open_arguments: bool) -> Result<(), SpecError> {
        todo!()
    }
    fn resolve(&self, _spec: &EngineSpec, _model: Option<&ModelFacts>, _host: &HostFacts) -> Result<Resolved, SizingError> {
        todo!()
    }
    fn launch(&self, _input: &LaunchInput<'_>) -> LaunchPlan {
        todo!()
    }
    fn read_health(&self, _status: u16, _body: &[u8]) -> Health {
        todo!()
    }
    fn read_load_progress(&self, _line: &str) -> Option<f32> {
        None
    }
}
