//! `docs/commands.md`: every command with its options, as the command line defines them.
//!
//! `SLUICE_WRITE_PAGES=1 cargo test -p sluice-cli --test main page` writes the page; without the variable the test
//! compares it.

use std::fmt::Write;

use clap::{Arg, Command, CommandFactory};
use sluice_cli::command::Cli;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/commands.md");

const HEAD: &str = "\
<!-- Generated from operator/cli; do not edit. -->
# Commands and options

This page lists every command of `sluice` with all of its options. [The command line](cli.md) says what they are for.
";

fn page() -> String {
    let mut page = HEAD.to_owned();
    let mut cli = Cli::command();
    cli.build();
    for command in
        cli.get_subcommands().filter(|command| !command.is_hide_set() && command.get_name() != "help")
    {
        describe(&mut page, &format!("sluice {}", command.get_name()), command);
    }
    page
}

fn describe(page: &mut String, name: &str, command: &Command) {
    let about = command.get_about().expect("every command says what it does").to_string();
    writeln!(page, "\n## {name}\n\n{}.\n", about.trim_end_matches('.')).unwrap();
    page.push_str("| option | default | meaning |\n|---|---|---|\n");
    let arguments = command.get_arguments().filter(|argument| !argument.is_hide_set());
    for argument in arguments.filter(|argument| !["help", "version"].contains(&argument.get_id().as_str())) {
        writeln!(page, "| `{}` | {} | {} |", written(argument), default(argument), meaning(argument))
            .unwrap();
    }
    for command in command.get_subcommands().filter(|command| command.get_name() != "help") {
        describe(page, &format!("{name} {}", command.get_name()), command);
    }
}

/// An argument as people type it.
fn written(argument: &Arg) -> String {
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

fn default(argument: &Arg) -> String {
    let values: Vec<_> = argument.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    let environment = argument.get_env().map(|name| format!("`${}`", name.to_string_lossy()));
    let shown = argument.get_action().takes_values() && !values.is_empty();
    let own = if argument.is_required_set() {
        Some("**required**".to_owned())
    } else {
        shown.then(|| format!("`{}`", values.join(" ")))
    };
    environment.into_iter().chain(own).collect::<Vec<_>>().join(", else ")
}

/// What it means, in one line that fits a cell.
fn meaning(argument: &Arg) -> String {
    let text = argument.get_long_help().or(argument.get_help()).map(ToString::to_string).unwrap_or_default();
    let choices: Vec<_> =
        argument.get_possible_values().iter().map(|value| format!("`{}`", value.get_name())).collect();
    let choices = if argument.get_action().takes_values() && !choices.is_empty() {
        format!(" One of {}.", choices.join(", "))
    } else {
        String::new()
    };
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    format!("{}.{choices}", words.trim_end_matches('.')).replace('|', "\\|")
}

#[test]
fn the_page_of_commands_is_what_the_command_line_defines() {
    let wanted = page();
    if std::env::var_os("SLUICE_WRITE_PAGES").is_some() {
        std::fs::write(PAGE, &wanted).unwrap();
    }
    let there = std::fs::read_to_string(PAGE).unwrap_or_default();
    assert_eq!(there, wanted, "run SLUICE_WRITE_PAGES=1 cargo test -p sluice-cli --test main page");
}

#[test]
fn the_page_of_commands_has_commands_options_defaults_and_no_hidden_command() {
    let page = page();
    for text in [
        "\n## sluice up\n",
        "\n## sluice models rm\n",
        "| `-f, --file FILE` | **required** | ",
        "| `--port PORT` | `8000` | ",
        "`$OPENAI_API_KEY`",
    ] {
        assert!(page.contains(text), "{text}\n{page}");
    }
    assert!(!page.contains("## sluice man"), "{page}");
}
