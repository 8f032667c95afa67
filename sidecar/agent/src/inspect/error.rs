//! Why an inspection fails.

use sluice_wire::geometry::{GeometryError, GeometryErrorKind};

use crate::download::{DownloadError, error_chain};
use crate::model::ModelError;

/// Reason why a model has no geometry.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    /// The files cannot be fetched.
    #[error(transparent)]
    Fetch(#[from] DownloadError),
    /// The files are not a supported model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A file that must be read whole is too long.
    #[error("{file} has {bytes} bytes, and the limit is {most}")]
    TooLong {
        /// Name of the file.
        file: String,
        /// Length of the file in bytes.
        bytes: u64,
        /// Maximum length in bytes.
        most: u64,
    },
}

impl InspectError {
    pub(super) fn unsupported_reason(&self) -> GeometryErrorKind {
        match self {
            InspectError::Fetch(error) if error.is_final() => GeometryErrorKind::Unreadable,
            InspectError::Fetch(_) => GeometryErrorKind::Unavailable,
            InspectError::Model(ModelError::Io { .. } | ModelError::Absent { .. }) => {
                GeometryErrorKind::Unreadable
            }
            InspectError::Model(_) | InspectError::TooLong { .. } => GeometryErrorKind::Unsupported,
        }
    }

    pub(super) fn geometry_error(&self) -> GeometryError {
        GeometryError { reason: self.unsupported_reason(), message: error_chain(self) }
    }
}
