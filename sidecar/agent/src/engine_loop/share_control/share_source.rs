//! The terms of a tenant's share: from the directive in force, else from the configuration.

use sluice_policy::reclaim::PolicyName;
use sluice_wire::config::SidecarConfig;
use sluice_wire::directive::Directive;
use tokio::sync::watch;

use crate::directive::{ActiveDirective, DirectiveStore};
use crate::engine_loop::load::error::LoadError;
use crate::engine_loop::load::policy_name::parse_policy;

/// Terms on which a tenant is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareTarget {
    /// Name of the policy.
    pub policy: PolicyName,
    /// Chunks that the tenant may hold without a loan.
    pub share_chunks: u32,
    /// Part of its layers that may be remapped, permille.
    pub remap_cap_permille: u32,
}

/// Reads the terms from the directive and the configuration.
#[derive(Debug)]
pub struct ShareSource {
    directives: Option<watch::Receiver<Option<ActiveDirective>>>,
    chunk_bytes: u64,
    configured: ShareTarget,
    target: ShareTarget,
}

impl ShareSource {
    /// Creates the source from `config` and the last directive in the runtime folder.
    ///
    /// # Errors
    /// [`LoadError::Config`]: there is no such policy.
    pub fn new(
        config: &SidecarConfig,
        directives: Option<&DirectiveStore>,
    ) -> Result<ShareSource, LoadError> {
        let chunk_bytes = config.gpu.chunk_bytes.max(1);
        let share = config.gpu_ledger.as_ref().map(|place| chunks(place.share_bytes, chunk_bytes));
        let configured = ShareTarget {
            policy: parse_policy(&config.policy)?,
            share_chunks: share.unwrap_or(u32::MAX),
            remap_cap_permille: permille(config.memory.max_remapped_percent),
        };
        let directives = directives.map(DirectiveStore::watch);
        let mut rule = ShareSource { directives, chunk_bytes, configured, target: configured };
        rule.apply_directive();
        Ok(rule)
    }

    /// Returns the terms as of the last refresh.
    pub fn target(&self) -> ShareTarget {
        self.target
    }

    /// Returns the terms of the configuration.
    pub fn configured(&self) -> ShareTarget {
        self.configured
    }

    /// Reads a changed directive. Returns true if the terms have changed. Cheap if no directive has arrived.
    pub fn refresh(&mut self) -> bool {
        let new = self.directives.as_ref().is_some_and(|watch| watch.has_changed().unwrap_or(false));
        let before = self.target;
        if new {
            self.apply_directive();
        }
        before != self.target
    }

    fn apply_directive(&mut self) {
        let Some(watch) = &mut self.directives else { return };
        let in_force = watch.borrow_and_update().as_ref().map(|in_force| in_force.directive.clone());
        if let Some(directive) = in_force {
            self.target = target_of(self.target, &directive, self.chunk_bytes);
        }
    }
}

/// Returns the terms of a directive. If it names no share, the previous share stays.
fn target_of(before: ShareTarget, directive: &Directive, chunk_bytes: u64) -> ShareTarget {
    let rule = &directive.tenant;
    ShareTarget {
        // The validator rejects directives with an unknown policy.
        policy: parse_policy(&directive.policy).unwrap_or(before.policy),
        share_chunks: rule.share_bytes.map_or(before.share_chunks, |bytes| chunks(bytes, chunk_bytes)),
        remap_cap_permille: permille(rule.max_remapped_percent),
    }
}

fn chunks(bytes: u64, chunk_bytes: u64) -> u32 {
    u32::try_from(bytes / chunk_bytes).unwrap_or(u32::MAX)
}

fn permille(percent: u32) -> u32 {
    percent.min(100) * 10
}
