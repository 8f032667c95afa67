//! What whoever places tenants lets this one have: as the directive in force says, else as the configuration does.

use sluice_policy::reclaim::PolicyName;
use sluice_wire::config::SidecarConfig;
use sluice_wire::directive::Directive;
use tokio::sync::watch;

use crate::directive::{ActiveDirective, DirectiveStore};
use crate::engine_loop::load::{LoadError, parse_policy};

/// What a tenant is to be served with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareTarget {
    /// Named policy.
    pub policy: PolicyName,
    /// What it may hold without asking anybody.
    pub share_chunks: u32,
    /// Share of its layers that may be remapped, permille.
    pub remap_cap_permille: u32,
}

/// Says on which terms.
#[derive(Debug)]
pub struct ShareSource {
    directives: Option<watch::Receiver<Option<ActiveDirective>>>,
    chunk_bytes: u64,
    configured: ShareTarget,
    target: ShareTarget,
}

impl ShareSource {
    /// That of the tenant in `config`, and of what its runtime folder has as its last directive.
    ///
    /// # Errors
    /// [`LoadError::Config`]: there is no such policy.
    pub fn new(
        config: &SidecarConfig,
        directives: Option<&DirectiveStore>,
    ) -> Result<ShareSource, LoadError> {
        let chunk_bytes = config.gpu.chunk_bytes.max(1);
        let share = config.neighbourhood.as_ref().map(|place| chunks(place.share_bytes, chunk_bytes));
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

    /// Those of the last look.
    pub fn target(&self) -> ShareTarget {
        self.target
    }

    /// Those of the configuration.
    pub fn configured(&self) -> ShareTarget {
        self.configured
    }

    /// Looks whether there is another directive; true if it says something else. Cheap when there is none.
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

/// The terms of a directive. Where it names no share, that of before stays.
fn target_of(before: ShareTarget, directive: &Directive, chunk_bytes: u64) -> ShareTarget {
    let rule = &directive.tenant;
    ShareTarget {
        // A directive that names no policy was refused.
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
