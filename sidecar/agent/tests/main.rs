//! The gateway and the admin port over real sockets. Their scheduler is the test.

mod admin {
    mod certificates;
    mod directive;
    mod gpu;
    mod grants;
    mod names;
    mod roles;
    mod sleep;
    mod start;
    mod store;
    mod tls;
    pub mod world;
}

mod fetch {
    mod downloads;
    pub mod server;
}

mod inspect {
    mod sources;
}

mod neighbours {
    mod clock;
    mod desk;
    mod frozen;
    mod office;
    mod quota;
    mod turns;
    mod watch;
}

mod gateway {
    pub mod client;
    mod doors;
    mod hostile;
    mod leaving;
    mod limits;
    mod metrics;
    mod pacing;
    mod params;
    mod prompts;
    mod shapes;
    mod texts;
    mod tiny;
    pub mod tokenizers;
    mod words;
    pub mod world;
}

mod proxy {
    mod answers;
    pub mod engine;
    mod keys;
    mod losses;
    mod rest;
    mod world;
}

mod text {
    mod detok;
    pub mod folders;
    mod settings;
    mod template;
    mod tokens;
}
