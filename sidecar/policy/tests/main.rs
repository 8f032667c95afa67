//! Integration tests of the policy, one binary.

/// Tests of the memory manager against a device that knows what every chunk holds.
mod memory_manager {
    mod cases;
    mod coming;
    mod crowds;
    mod deadlines;
    mod device;
    mod elastic;
    mod faults;
    mod hibernate;
    mod kv_copies;
    mod layouts;
    mod lender;
    mod losses;
    mod negative;
    mod overlap;
    mod placed;
    mod quota;
    mod random;
    mod search;
    mod shares;
    mod traded;
    mod traders;
    mod whole;
    mod world;
}

/// Tests of the pure functions that the memory manager calls.
mod leaves {
    mod arbiter;
    mod closed_form;
    mod deposit;
    mod ellm;
    mod ewma;
    mod geometry;
    mod golden;
    mod holdings;
    mod reason;
    mod remap;
    mod revert;
    mod step_model;
    mod ticks;
    mod tunables;
}

/// Tests of what tenants of one GPU decide about each other.
mod neighbours {
    mod grants;
    mod grants_random;
    mod next_use;
    mod splitmix;
    mod turn;
    mod victim;
    mod world;
}

/// Tests of Pie's swapping, its worked example and its controller.
mod pie {
    mod clock;
    mod expansion;
    mod golden;
    mod mapping;
}

/// Tests of the planner, with oracles.
mod planner {
    mod batch;
    mod deadline;
    mod many;
    mod oracles;
    mod orbitflow;
    mod pausing;
}
