//! The pages that list every option of a program, as its command line defines them: `docs/commands.md` for `sluice`,
//! `docs/options.md` for the programs that other programs start.
//!
//! `SLUICE_WRITE_PAGES=1 cargo test -p sluice-cli --test main page` writes the pages; without the variable the tests
//! compare them.

use std::fmt::Write;

use clap::{Arg, Command, CommandFactory};
use sluice_cli::command::Cli;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");

const COMMANDS: &str = "\
<!-- Generated from operator/cli; do not edit. -->
# Commands and options

This page lists every command of `sluice` with all of its options. [The command line](cli.md) says what they are for.
";

const OPTIONS: &str = "\
<!-- Generated from the command lines of the programs; do not edit. -->
# Options of the other programs

`sluice` and the operator start a sidecar and an engine for each tenant. The chart starts the operator, and the device
driver on each node. This page lists all options of these programs.
";

fn commands() -> String {
    let mut page = COMMANDS.to_owned();
    let mut cli = Cli::command();
    cli.build();
    for command in
        cli.get_subcommands().filter(|command| !command.is_hide_set() && command.get_name() != "help")
    {
        describe(&mut page, &format!("sluice {}", command.get_name()), command);
    }
    page
}

fn options() -> String {
    let mut page = OPTIONS.to_owned();
    let programs = [
        sluice_agent::args::Args::command(),
        sluice_kernels::engine::command(),
        sluice_operator::Args::command(),
        sluice_devices::cli::Cli::command(),
    ];
    for mut program in programs {
        program.build();
        describe(&mut page, program.get_name(), &program);
    }
    page
}

fn describe(page: &mut String, name: &str, command: &Command) {
    let about = command.get_about().expect("every command says what it does").to_string();
    writeln!(page, "\n## {name}\n\n{}.\n", about.trim_end_matches('.')).unwrap();
    page.push_str("| option | default | meaning |\n|---|---|---|\n");
    let arguments = command.get_arguments().filter(|argument| !argument.is_hide_set());
    for argument in arguments.filter(|argument| !["help", "version"].contains(&argument.get_id().as_str())) {
        let (meaning, stated) = description(argument);
        let default = default(argument, stated);
        writeln!(page, "| `{}` | {default} | {meaning} |", argument_syntax(argument)).unwrap();
    }
    for command in command.get_subcommands().filter(|command| command.get_name() != "help") {
        describe(page, &format!("{name} {}", command.get_name()), command);
    }
}

/// An argument as people type it.
fn argument_syntax(argument: &Arg) -> String {
    let values = argument.get_value_names().unwrap_or_default();
    let value = if argument.get_action().takes_values() {
        values.iter().map(|name| format!(" {name}")).collect()
    } else {
        String::new()
    };
    let long = argument.get_long().map(|long| format!("--{long}{value}"));
    let short =
        argument.get_short().map(|short| format!("-{short}{}", if long.is_some() { "" } else { &value }));
    let flags: Vec<String> = short.into_iter().chain(long).collect();
    if flags.is_empty() { value.trim_start().to_owned() } else { flags.join(", ") }
}

/// Returns the default: the environment variable, then the value of the definition or the text of the help.
fn default(argument: &Arg, stated: Option<String>) -> String {
    let values = argument.get_default_values().iter().map(|value| value.to_string_lossy());
    let values: Vec<_> = values.filter(|value| !value.is_empty()).collect();
    let environment = argument.get_env().map(|name| format!("`${}`", name.to_string_lossy()));
    let shown = argument.get_action().takes_values() && !values.is_empty();
    let own = if argument.is_required_set() {
        Some("**required**".to_owned())
    } else {
        shown.then(|| format!("`{}`", values.join(" "))).or(stated)
    };
    environment.into_iter().chain(own).collect::<Vec<_>>().join(", else ")
}

/// Returns the meaning in one line that fits a table cell, and the content of a last sentence `Default: ...`.
fn description(argument: &Arg) -> (String, Option<String>) {
    let text = argument.get_long_help().or(argument.get_help()).map(ToString::to_string).unwrap_or_default();
    let choices: Vec<_> =
        argument.get_possible_values().iter().map(|value| format!("`{}`", value.get_name())).collect();
    let choices = if argument.get_action().takes_values() && !choices.is_empty() {
        format!(" One of {}.", choices.join(", "))
    } else {
        String::new()
    };
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|");
    let words = words.trim_end_matches('.');
    let (words, stated) = match words.rsplit_once(". Default: ") {
        Some((words, default)) => (words, Some(default.to_owned())),
        None => (words, None),
    };
    (format!("{words}.{choices}"), stated)
}

fn compare(file: &str, wanted: &str) {
    let path = format!("{FOLDER}/{file}");
    if std::env::var_os("SLUICE_WRITE_PAGES").is_some() {
        std::fs::write(&path, wanted).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        committed, wanted,
        "docs/{file} is stale: run SLUICE_WRITE_PAGES=1 cargo test -p sluice-cli --test main page"
    );
}

#[test]
fn command_reference_matches_cli_definition() {
    compare("commands.md", &commands());
}

#[test]
fn option_reference_matches_cli_definitions() {
    compare("options.md", &options());
}

#[test]
fn the_page_of_commands_has_commands_options_defaults_and_no_hidden_command() {
    let page = commands();
    for text in [
        "\n## sluice up\n",
        "\n## sluice models rm\n",
        "| `-f, --file FILE` | **required** | ",
        "| `--port PORT` | `8000` | ",
        "`$OPENAI_API_KEY`",
        "| `--context TOKENS` | that of the model, at most 8192 | Longest sequence (prompt and answer), tokens. |",
    ] {
        assert!(page.contains(text), "{text}\n{page}");
    }
    assert!(!page.contains("## sluice man"), "{page}");
}

#[test]
fn the_page_of_options_has_every_program_and_no_hidden_option() {
    let page = options();
    for text in [
        "\n## sluice-sidecar\n",
        "\n## sluice-sidecar fetch hugging-face\n",
        "\n## sluice-engine\n",
        "| `--socket PATH` | `$SLUICE_ENGINE_SOCKET`, else **required** | ",
        "\n## sluice-operator\n",
        "| `--lease-seconds LEASE_SECONDS` | `$SLUICE_LEASE_SECONDS`, else `15` | ",
        "\n## sluice-devices\n",
        "| `--host-memory BYTES` | `1Gi` | ",
    ] {
        assert!(page.contains(text), "{text}\n{page}");
    }
    assert!(!page.contains("--poll-seconds") && !page.contains("--worker"), "{page}");
}
