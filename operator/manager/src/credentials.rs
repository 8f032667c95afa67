//! Certificates of sidecars and of the operator: a certificate authority in a Secret of the operator's namespace, and
//! a Secret for each slot.
//!
//! | piece | what it is |
//! |---|---|
//! | [`issue`] | certificates made and read |
//! | [`ca`] | the authority that signs, its successor and its predecessor, and when each takes over |
//! | [`renewal`] | whether a slot's Secret needs an update |
//! | [`CertificateManager`] | the only piece that uses the API server: Secrets by name, never lists of them |
//!
//! **Rotation.** A new authority is announced: every Secret gets it into its bundle while the old one still signs.
//! After [`ca::ROTATION_OVERLAP_SECONDS`] the new one signs, and every certificate is issued again; after the same
//! time the old authority is removed from the bundles. A sidecar reads its files every ten seconds and a kubelet
//! syncs them within two minutes, so at any time two peers have an authority in common, even if one of them is late.

pub mod ca;
mod certificate_manager;
pub mod issue;
pub mod renewal;

pub use self::certificate_manager::{CertificateManager, CredentialError, SlotSecret};
