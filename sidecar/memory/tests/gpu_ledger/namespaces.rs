//! Pods have their own process ids: the ledger must not depend on them.

use std::process::Command;

use super::env::{CAPACITY, LedgerEnv, LedgerProcess};

/// Starts a process that is number 1 of its own namespace and has joined; `None` where the kernel forbids
/// that.
fn spawn_in_pid_namespace(env: &LedgerEnv, name: &str) -> Option<LedgerProcess> {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--pid", "--fork", "--kill-child=KILL"]);
    command.arg(std::env::current_exe().unwrap());
    let mut actor = env.spawn(command).ok()?;
    assert_eq!(actor.request("pid")?.unwrap(), "1");
    actor.ok("open");
    actor.join(name, CAPACITY / 2);
    Some(actor)
}

#[test]
fn participants_with_process_ids_of_their_own_share_a_ledger() {
    let env = LedgerEnv::new();
    let (Some(mut a), Some(mut b)) = (spawn_in_pid_namespace(&env, "a"), spawn_in_pid_namespace(&env, "b"))
    else {
        println!("skipped: this machine lets no process make user and process id namespaces (unshare)");
        return;
    };
    let watch = env.open();
    a.ok("reserve 600");
    b.ok("reserve 400");
    assert!(b.request("reserve 1").unwrap().unwrap_err().starts_with("OutOfMemory"));
    a.ok(&format!("earmark {} {} 100 0 7", b.peer.index, b.peer.instance));
    b.ok(&format!("accept {} {} 7 100", a.peer.index, a.peer.instance));
    a.ok("request");
    a.ok("take_turn");
    b.ok("request");
    b.send("take_turn");
    a.kill();
    // The kernel ends the namespace with its first process, but only after `unshare` has exited.
    assert!(b.answer().unwrap().unwrap().starts_with("Some"));
    assert_eq!(watch.audit().unwrap().counted_bytes, 500);
    b.ok("reserve 500");
}
