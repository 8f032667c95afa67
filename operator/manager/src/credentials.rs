//! Certificates of sidecars and of the operator itself: an authority in a Secret of the operator's namespace, and a Secret
//! for each slot.
//!
//! | piece | what it is |
//! |---|---|
//! | [`issue`] | certificates made and read |
//! | [`ca`] | the authority that signs, its successor and its predecessor: when each takes over |
//! | [`due`] | whether a slot's Secret is as it must be |
//! | [`CertificateManager`] | the only piece that talks to the API server: Secrets by name, never lists of them |
//!
//! **Rotation.** A successor of the authority is announced: every Secret gets it into its bundle while the old one still signs.
//! After [`ca::ROTATION_OVERLAP_SECONDS`] it signs, and every certificate is made anew; after another one the old authority leaves the
//! bundles. A sidecar reads its files every ten seconds and a kubelet brings them within two minutes, so at any time two
//! neighbours have an authority in common, whichever of them is late.

pub mod ca;
mod certificate_manager;
pub mod issue;
pub mod renewal;

pub use self::certificate_manager::{CertificateManager, CredentialError, SlotSecret};
