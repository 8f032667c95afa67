//! The same as a plugin of kubectl: `kubectl sluice`.
fn main() -> std::process::ExitCode {
    sluice_cli::command::main(sluice_cli::command::KUBECTL_PLUGIN)
}
