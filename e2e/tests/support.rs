//! Shared helpers of the tests: an environment for the tenants of one test, clients, models, and `/proc`.

pub mod answer;
pub mod env;
pub mod gpu;
pub mod http;
pub mod load;
pub mod model;
pub mod processes;
pub mod share_driver;
pub mod sidecar;
pub mod slow;
pub mod soak;
pub mod tenant;
pub mod three_tenants;
pub mod wait;
pub mod yaml;

pub use self::answer::Answer;
pub use self::env::{Outcome, TestEnv, Up};
pub use self::http::Stream;
pub use self::sidecar::Sidecar;
pub use self::tenant::Tenant;
pub use self::wait::{WAIT_LIMIT, eventually};
pub use self::yaml::Yaml;
