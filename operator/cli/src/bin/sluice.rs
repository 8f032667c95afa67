//! The binary `sluice`.
fn main() -> std::process::ExitCode {
    sluice_cli::command::main("sluice")
}
