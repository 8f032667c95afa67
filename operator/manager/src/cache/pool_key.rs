//! [`PoolKey`].

/// The unit of reconciliation: a pool and the tenants that refer to it, even if the pool does not exist.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolKey {
    pub namespace: String,
    pub pool: String,
}
