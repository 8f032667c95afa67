//! Integration tests of the policy, one binary.

#[path = "../examples/external_scheduler.rs"]
#[expect(dead_code, reason = "the example's main")]
mod external_scheduler;

/// Tests of the memory manager against a device that tracks the contents of every chunk.
mod memory_manager {
    mod admission;
    mod async_swap_in;
    mod borrow_search;
    mod cases;
    mod copy_deadlines;
    mod deferred_unmap;
    mod device;
    mod elastic;
    mod external_scheduler;
    mod faults;
    mod kv_copies;
    mod kv_placement;
    mod layouts;
    mod lend;
    mod loans;
    mod multi_tenant;
    mod negative;
    mod quota;
    mod random;
    mod reclaim_cost;
    mod shares;
    mod sleep;
    mod whole_prompt_prefill;
    mod world;
}

/// Tests of the pure functions that the memory manager calls.
mod leaves {
    mod closed_form;
    mod copy_priority;
    mod ellm;
    mod ewma;
    mod geometry;
    mod golden;
    mod oneiros;
    mod ownership;
    mod reason;
    mod remap;
    mod revert;
    mod step_model;
    mod ticks;
    mod token_deposit;
    mod tunables;
}

/// Tests of the decisions between tenants of one GPU.
mod peers {
    mod loans;
    mod loans_random;
    mod next_use;
    mod time_slice;
    mod victim;
    mod world;
}

/// Tests of Pie's controller.
mod pie {
    mod expansion;
}

/// Tests of the planner, with oracles.
mod placement_planner {
    mod batch;
    mod deadline;
    mod many;
    mod oracles;
    mod orbitflow;
    mod pause;
    mod step_time;
}
