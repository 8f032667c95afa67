//! Where a tenant's model comes from.

use sluice_types::ModelTenantSpec;
use sluice_types::tenant::SourceType;

/// Whether the pod downloads the model at its start.
pub fn fetches(spec: &ModelTenantSpec) -> bool {
    matches!(spec.model.source.kind, SourceType::HuggingFace | SourceType::S3)
}
