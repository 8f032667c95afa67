//! Tests of the gateway and the admin port over real sockets. The tests take the scheduler's place.

mod admin {
    mod certificates;
    mod directive;
    mod gpu;
    mod grants;
    pub mod harness;
    mod names;
    mod roles;
    mod sleep;
    mod start;
    mod store;
    mod tls;
}

mod fetch {
    mod downloads;
    pub mod server;
}

mod fuzz {
    mod corpus;
}

mod inspect {
    mod sources;
}

mod owned {
    mod engine_process;
    mod memory;
}

mod peers {
    mod clock;
    mod frozen_peer;
    mod grant_client;
    mod ledger_watch;
    mod pending_replies;
    mod quota;
    mod time_slice;
}

mod gateway {
    pub mod client;
    mod disconnects;
    pub mod harness;
    mod hostile;
    mod limits;
    mod listeners;
    mod metrics;
    mod pacing;
    mod params;
    mod prompts;
    mod response_shapes;
    mod text_output;
    mod tiny;
    pub mod tokenizers;
    mod value_errors;
}

mod proxy {
    pub mod engine;
    mod engine_loss;
    mod harness;
    mod keys;
    mod responses;
    mod sleep;
}

mod text {
    mod detok;
    pub mod folders;
    mod settings;
    mod template;
    mod tokens;
}
