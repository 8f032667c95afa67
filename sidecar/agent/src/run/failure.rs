//! Reasons why a sidecar ended, and how it reports them to its supervisor.

use std::path::Path;
use std::process::ExitCode;

use sluice_wire::config_rejection::ConfigRejection;

use crate::engine_loop::LoadError;

/// Exit status for a configuration that no restart can fix (`EX_CONFIG` of sysexits.h).
const EXIT_CONFIG: u8 = 78;

/// Reason why a sidecar ended.
#[derive(Debug)]
pub enum Failure {
    /// The configuration or the model folder is invalid.
    Config(anyhow::Error),
    /// Like `Config`, about one field of the configuration that the error does not name.
    Field(&'static str, anyhow::Error),
    /// Any other reason.
    Other(anyhow::Error),
    /// The configuration cannot be used. The runtime folder holds the reason, and the supervisor prints it.
    Reported,
}

impl Failure {
    /// Returns the exit status for the supervisor.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Failure::Config(_) | Failure::Field(..) | Failure::Reported => ExitCode::from(EXIT_CONFIG),
            Failure::Other(_) => ExitCode::FAILURE,
        }
    }

    /// Writes the reason into the runtime folder if a restart cannot help. Returns whether it was written.
    pub(super) fn write_refusal(&self, folder: &Path) -> bool {
        let Some(refusal) = self.refusal() else { return false };
        let file = folder.join(ConfigRejection::FILE);
        let json = serde_json::to_vec(&refusal).expect("a refusal serialises");
        let written = std::fs::write(&file, json);
        if let Err(error) = &written {
            tracing::warn!(%error, file = %file.display(), "could not write the reason of the failure");
        }
        written.is_ok()
    }

    fn refusal(&self) -> Option<ConfigRejection> {
        let (fields, problem) = match self {
            Failure::Other(_) | Failure::Reported => return None,
            Failure::Field(field, error) => (*field, error_chain(error)),
            Failure::Config(error) => error
                .downcast_ref()
                .and_then(LoadError::field_and_problem)
                .unwrap_or_else(|| ("", error_chain(error))),
        };
        Some(ConfigRejection::new(fields, problem))
    }
}

/// Returns the error and its causes.
fn error_chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        // Many errors already end with their cause.
        if !text.ends_with(&cause) {
            text = if text.is_empty() { cause } else { format!("{text}: {cause}") };
        }
    }
    text
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Config(error) | Failure::Other(error) => f.write_str(&error_chain(error)),
            Failure::Field(field, error) => write!(f, "{field}: {}", error_chain(error)),
            Failure::Reported => write!(f, "the reason is in {}", ConfigRejection::FILE),
        }
    }
}

pub(super) fn config_error(error: impl Into<anyhow::Error>) -> Failure {
    Failure::Config(error.into())
}

pub(super) fn other_error(error: impl Into<anyhow::Error>) -> Failure {
    Failure::Other(error.into())
}

#[cfg(test)]
mod tests {
    use sluice_policy::config_error::ConfigError;

    use super::*;

    fn written_refusal(failure: &Failure) -> Option<ConfigRejection> {
        let folder = tempfile::tempdir().unwrap();
        let left = failure.write_refusal(folder.path());
        let json = std::fs::read(folder.path().join(ConfigRejection::FILE)).ok();
        assert_eq!(left, json.is_some());
        let json = json?;
        Some(serde_json::from_slice(&json).unwrap())
    }

    #[test]
    fn refusal_names_fields_and_problem() {
        let refused = LoadError::Unsatisfiable(ConfigError::FloorExceedsCapacity {
            floor_bytes: (2 << 20) + 1,
            capacity_bytes: 3 << 19,
        });
        let refusal = written_refusal(&Failure::Config(refused.into())).unwrap();
        assert_eq!(refusal.fields[..2], ["gpu.memory_bytes", "max_model_len"]);
        assert_eq!(refusal.fields[2..], ["memory.guaranteed_kv_bytes", "memory.max_remapped_percent"]);
        assert_eq!(
            refusal.problem,
            "the tenant needs at least 3 MiB (2097153 bytes) and may hold 1 MiB (1572864 bytes)"
        );
        let wrong = LoadError::Config { field: "policy", problem: "`X` is not built".into() };
        let refusal = written_refusal(&Failure::Config(wrong.into())).unwrap();
        assert_eq!((refusal.fields[0].as_str(), refusal.problem.as_str()), ("policy", "`X` is not built"));
        let refusal = written_refusal(&Failure::Field("listen.serve", anyhow::anyhow!("taken"))).unwrap();
        assert_eq!((refusal.fields[0].as_str(), refusal.problem.as_str()), ("listen.serve", "taken"));
    }

    #[test]
    fn retryable_failure_writes_no_refusal() {
        assert_eq!(written_refusal(&Failure::Other(anyhow::anyhow!("no memory"))), None);
        let unnamed = written_refusal(&Failure::Config(anyhow::anyhow!("no such binary"))).unwrap();
        assert_eq!((unnamed.fields.len(), unnamed.problem.as_str()), (0, "no such binary"));
    }
}
