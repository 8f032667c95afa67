//! The example of an external scheduler serves every request, though KV is short and engines are lost.

use crate::external_scheduler::{Request, Scheduler, next_token, small_tenant};

fn prompt(id: u64) -> Vec<u32> {
    vec![id as u32; 20 + id as usize]
}

#[test]
fn external_scheduler_serves_all_requests_in_short_kv() {
    let (params, geometry) = small_tenant();
    let mut scheduler = Scheduler::new(params, geometry).expect("a tenant that fits");
    scheduler.loses_engine_every = 7;
    (0..16).for_each(|id| scheduler.submit(Request::new(id, prompt(id), 80)));
    scheduler.run();
    assert!(scheduler.preemptions > 0, "KV is short");
    scheduler.finished.sort_by_key(|request| request.id.0);
    let expected = (0..16).map(|id| {
        let mut tokens = prompt(id);
        (0..80).for_each(|_| tokens.push(next_token(&tokens)));
        tokens
    });
    let finished: Vec<_> = scheduler.finished.into_iter().map(|request| request.tokens).collect();
    assert_eq!(finished, expected.collect::<Vec<_>>());
}
