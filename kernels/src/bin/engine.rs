//! `sluice-engine`: see [`sluice_kernels::engine`].

use std::process::ExitCode;

fn main() -> ExitCode {
    sluice_kernels::engine::main()
}
