//! Commands to all tenants of a run.

use tokio::sync::watch;

/// Commands to all tenants, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProcessCommand {
    /// Serve, and restart after an exit.
    Serve,
    /// Let open streams finish, then end.
    Drain,
    /// End at once.
    End,
}

/// Waits for `order`, or a later one.
pub async fn wait_for_command(orders: &mut watch::Receiver<ProcessCommand>, order: ProcessCommand) {
    // A closed channel means the same.
    let _ = orders.wait_for(|now| *now >= order).await;
}
