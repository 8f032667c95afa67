//! Open files of this process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What a test binary has open beside the connections of one test.
const OTHERS: u64 = 2_000;

/// Makes room for `connections` at once; how many there may be, where the system allows fewer.
pub fn room_for(connections: usize) -> usize {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).expect("what is allowed is given");
    let room = maximum.map_or(u64::MAX, |maximum| maximum.saturating_sub(OTHERS));
    connections.min(usize::try_from(room).unwrap_or(usize::MAX))
}
