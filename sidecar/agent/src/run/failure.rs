//! Why a sidecar ended, and how its supervisor is told.

use std::path::Path;
use std::process::ExitCode;

use sluice_wire::refusal::Refusal;

use crate::room::LoadError;

/// Exit status of a configuration that no restart can help (`EX_CONFIG` of sysexits.h).
const EXIT_CONFIG: u8 = 78;

/// Why a sidecar ended.
#[derive(Debug)]
pub enum Failure {
    /// Its configuration or its model folder is wrong.
    Config(anyhow::Error),
    /// The same about one field of the configuration that the error does not name.
    Field(&'static str, anyhow::Error),
    /// Anything else.
    Other(anyhow::Error),
    /// A configuration that cannot be used. The runtime folder has the reason, and the supervisor prints it.
    Left,
}

impl Failure {
    /// What the supervisor is told.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Failure::Config(_) | Failure::Field(..) | Failure::Left => ExitCode::from(EXIT_CONFIG),
            Failure::Other(_) => ExitCode::FAILURE,
        }
    }

    /// Writes into the runtime folder why another start cannot help, where that is so. Says whether the reason is there now.
    pub(super) fn leave_word(&self, folder: &Path) -> bool {
        let Some(refusal) = self.refusal() else { return false };
        let file = folder.join(Refusal::FILE);
        let json = serde_json::to_vec(&refusal).expect("a refusal serialises");
        let written = std::fs::write(&file, json);
        if let Err(error) = &written {
            tracing::warn!(%error, file = %file.display(), "the reason could not be left behind");
        }
        written.is_ok()
    }

    fn refusal(&self) -> Option<Refusal> {
        let (fields, problem) = match self {
            Failure::Other(_) | Failure::Left => return None,
            Failure::Field(field, error) => (*field, words(error)),
            Failure::Config(error) => {
                error.downcast_ref().and_then(LoadError::about).unwrap_or_else(|| ("", words(error)))
            }
        };
        Some(Refusal::new(fields, problem))
    }
}

/// An error and its causes.
fn words(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        // Many an error ends with its cause already.
        if !text.ends_with(&cause) {
            text = if text.is_empty() { cause } else { format!("{text}: {cause}") };
        }
    }
    text
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Config(error) | Failure::Other(error) => f.write_str(&words(error)),
            Failure::Field(field, error) => write!(f, "{field}: {}", words(error)),
            Failure::Left => write!(f, "{} has the reason", Refusal::FILE),
        }
    }
}

#[cfg(test)]
mod tests {
    use sluice_policy::config_error::ConfigError;

    use super::*;

    fn left(failure: &Failure) -> Option<Refusal> {
        let folder = tempfile::tempdir().unwrap();
        let left = failure.leave_word(folder.path());
        let json = std::fs::read(folder.path().join(Refusal::FILE)).ok();
        assert_eq!(left, json.is_some());
        let json = json?;
        Some(serde_json::from_slice(&json).unwrap())
    }

    #[test]
    fn a_refusal_names_the_fields_beside_the_problem() {
        let refused = LoadError::Refused(ConfigError::FloorExceedsCapacity {
            floor_bytes: (2 << 20) + 1,
            capacity_bytes: 3 << 19,
        });
        let refusal = left(&Failure::Config(refused.into())).unwrap();
        assert_eq!(refusal.fields[..2], ["gpu.memory_bytes", "max_model_len"]);
        assert_eq!(refusal.fields[2..], ["memory.guaranteed_kv_bytes", "memory.max_remapped_percent"]);
        assert_eq!(
            refusal.problem,
            "the tenant needs at least 3 MiB (2097153 bytes) and may hold 1 MiB (1572864 bytes)"
        );
        let wrong = LoadError::Config { field: "policy", problem: "`X` is not built".into() };
        let refusal = left(&Failure::Config(wrong.into())).unwrap();
        assert_eq!((refusal.fields[0].as_str(), refusal.problem.as_str()), ("policy", "`X` is not built"));
        let refusal = left(&Failure::Field("listen.serve", anyhow::anyhow!("taken"))).unwrap();
        assert_eq!((refusal.fields[0].as_str(), refusal.problem.as_str()), ("listen.serve", "taken"));
    }

    #[test]
    fn what_another_start_may_help_leaves_no_refusal() {
        assert_eq!(left(&Failure::Other(anyhow::anyhow!("no memory"))), None);
        let unnamed = left(&Failure::Config(anyhow::anyhow!("no such binary"))).unwrap();
        assert_eq!((unnamed.fields.len(), unnamed.problem.as_str()), (0, "no such binary"));
    }
}
