//! The policy that a configuration or a directive names.

use sluice_policy::reclaim::PolicyName;

use super::error::{LoadError, config_error};

/// Returns the policy named `name`.
///
/// # Errors
/// [`LoadError::Config`]: there is no such policy.
pub fn parse_policy(name: &str) -> Result<PolicyName, LoadError> {
    let known = PolicyName::ALL.into_iter().find(|policy| policy.name() == name);
    known.ok_or_else(|| {
        let names = PolicyName::ALL.map(PolicyName::name).join(", ");
        config_error("policy", format!("`{name}` is not a policy; the policies are {names}"))
    })
}
