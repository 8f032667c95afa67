//! What whoever places tenants lets this one have: as the directive in force says, else as the configuration does.

use sluice_policy::params::PolicyName;
use sluice_wire::config::SidecarConfig;
use sluice_wire::directive::Directive;
use tokio::sync::watch;

use crate::directive::{Directives, InForce};
use crate::room::load::{LoadError, policy_of};

/// What a tenant is to be served with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Named policy.
    pub policy: PolicyName,
    /// What it may hold without asking anybody.
    pub share_chunks: u32,
    /// Share of its layers that may be remapped, permille.
    pub remap_cap_permille: u32,
}

/// Says on which terms.
#[derive(Debug)]
pub struct Rule {
    directives: Option<watch::Receiver<Option<InForce>>>,
    chunk_bytes: u64,
    configured: Terms,
    terms: Terms,
}

impl Rule {
    /// That of the tenant in `config`, and of what its runtime folder has as its last directive.
    ///
    /// # Errors
    /// [`LoadError::Config`]: there is no such policy.
    pub fn new(config: &SidecarConfig, directives: Option<&Directives>) -> Result<Rule, LoadError> {
        let chunk_bytes = config.gpu.chunk_bytes.max(1);
        let share = config.neighbourhood.as_ref().map(|place| chunks(place.share_bytes, chunk_bytes));
        let configured = Terms {
            policy: policy_of(&config.policy)?,
            share_chunks: share.unwrap_or(u32::MAX),
            remap_cap_permille: permille(config.memory.max_remapped_percent),
        };
        let directives = directives.map(Directives::watch);
        let mut rule = Rule { directives, chunk_bytes, configured, terms: configured };
        rule.hear();
        Ok(rule)
    }

    /// Those of the last look.
    pub fn terms(&self) -> Terms {
        self.terms
    }

    /// Those of the configuration.
    pub fn configured(&self) -> Terms {
        self.configured
    }

    /// Looks whether there is another directive; true if it says something else. Cheap when there is none.
    pub fn look(&mut self) -> bool {
        let new = self.directives.as_ref().is_some_and(|watch| watch.has_changed().unwrap_or(false));
        let before = self.terms;
        if new {
            self.hear();
        }
        before != self.terms
    }

    fn hear(&mut self) {
        let Some(watch) = &mut self.directives else { return };
        let in_force = watch.borrow_and_update().as_ref().map(|in_force| in_force.directive.clone());
        if let Some(directive) = in_force {
            self.terms = told(self.terms, &directive, self.chunk_bytes);
        }
    }
}

/// The terms of a directive. Where it names no share, that of before stays.
fn told(before: Terms, directive: &Directive, chunk_bytes: u64) -> Terms {
    let rule = &directive.tenant;
    Terms {
        // A directive that names no policy was refused.
        policy: policy_of(&directive.policy).unwrap_or(before.policy),
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
