//! `sluice run --chat` in a terminal and in a pipe.

use std::io::Write;
use std::process::Stdio;

use rustix::process::Signal;

use super::pty::Pty;
use super::session::command;
use crate::support::model::Stories;
use crate::support::{TestEnv, eventually, processes};

const TINY: &str = "--layers 4 --hidden 64 --intermediate 128 --vocab 300";

/// Tokens of the answer of the slow model, at temperature 0, at 5 ms each: by `usage` of the same request without a
/// stream.
const LONG: usize = 1483;

fn chat(world: &TestEnv, models: &[&str]) -> std::process::Command {
    let mut command = command(world);
    command.arg("run").args(models).args(["--chat", "--port", "0", "--threads", "1"]);
    command
}

/// The reference's answer to a prompt that begins a text.
fn answer(stories: &Stories) -> (String, String, usize) {
    let golden = stories.golden.iter().find(|golden| golden.text.starts_with("Once upon a time")).unwrap();
    let prompt = "Once upon a time";
    (prompt.to_owned(), golden.text[prompt.len()..].to_owned(), golden.greedy_ids.len())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_chats_stops_an_answer_switches_models_and_leaves() {
    let Some(stories) = Stories::find("a chat in a terminal") else { return };
    let world = TestEnv::new();
    let slow = "--seed 2 --layers 12 --hidden 256 --intermediate 512 --vocab 300 --max-positions 4096";
    let long = world.model("long", slow);
    let mut pty = Pty::start(chat(&world, &[stories.folder.to_str().unwrap(), long.to_str().unwrap()]));
    let at = pty.shows(0, "stories260k has no chat template: it completes each prompt alone").await;
    let at = pty.shows(at, ">>> ").await;
    let (prompt, text, tokens) = answer(&stories);
    pty.press(&format!("/set temperature 0\r/set max_tokens {tokens}\r"));
    let at = pty.shows(at, &format!("max_tokens is {tokens} from now on.")).await;
    pty.press(&format!("{prompt}\r"));
    // The terminal ends a line by both characters.
    let at = pty.shows(at, &text.trim_start().replace('\n', "\r\n")).await;
    let at = pty.shows(at, &format!("(The answer stopped at max_tokens, {tokens}.")).await;
    pty.press("/set\r");
    let at = pty.shows(at, "temperature  0 (set)").await;
    let at = pty.shows(at, "top_p        0.95 (default)").await;
    pty.press("/set temperature 9\r/set temperature\r");
    let at = pty.shows(at, "temperature must be a number from 0 to 2, not 9.").await;
    let at = pty.shows(at, "temperature  0 (set)").await;
    pty.press("/set max_tokens 99999\r/set temperature default\r");
    let at = pty.shows(at, "max_tokens must be a whole number from 1 to ").await;
    let at = pty.shows(at, "temperature has its default again: 0.7.").await;
    // Several lines are one prompt.
    pty.press("\"\"\"Once upon\r");
    let at = pty.shows(at, "... ").await;
    pty.press("a time\"\"\"\r");
    let at = pty.shows(at, ">>> ").await;
    pty.press("/model long\r");
    let at = pty.shows(at, ">>> ").await;
    pty.press(&format!("/set max_tokens {LONG}\r"));
    let at = pty.shows(at, ">>> ").await;
    pty.press("hello\r");
    let begun = pty.shows(at, "hello").await;
    eventually("an answer begins", async || (pty.screen().len() > begun + 20).then_some(())).await;
    pty.press("\x03");
    let at = pty.shows(begun, ">>> ").await;
    assert!(at - begun < LONG / 2, "the whole answer has {LONG} tokens:\n{}", &pty.screen()[begun..at]);
    pty.press("/model\r");
    let at = pty.shows(at, "* long").await;
    pty.press("/nonsense\r");
    let at = pty.shows(at, "`/nonsense` is not a command").await;
    // The arrow key recalls it.
    pty.press("\x1b[A");
    pty.shows(at, "/nonsense").await;
    pty.press("\x03");
    let at = pty.shows(at, "/bye or Ctrl-D ends.").await;
    pty.shows(at, ">>> ").await;
    pty.press("\x04");
    let status = pty.ended().await;
    assert_eq!(status.code(), Some(0), "{}", pty.screen());
    assert!(pty.is_cooked(), "the shell finds its terminal as it was");
    world.assert_no_leftovers().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_is_as_it_was_when_a_chat_is_terminated() {
    let world = TestEnv::new();
    let model = world.model("tiny", &format!("{TINY} --max-positions 512"));
    let mut pty = Pty::start(chat(&world, &[model.to_str().unwrap()]));
    pty.shows(0, ">>> ").await;
    eventually("lines are edited", async || (!pty.is_cooked()).then_some(())).await;
    processes::signal(pty.pid(), Signal::TERM);
    assert_eq!(pty.ended().await.code(), Some(0), "{}", pty.screen());
    assert!(pty.is_cooked());
    world.assert_no_leftovers().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_line_of_a_pipe_is_a_prompt_and_only_answers_are_written() {
    let Some(stories) = Stories::find("a chat through a pipe") else { return };
    let world = TestEnv::new();
    let mut command = chat(&world, &[stories.folder.to_str().unwrap()]);
    world.record(&mut command);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let (prompt, text, tokens) = answer(&stories);
    let lines = format!("/set temperature 0\n/set max_tokens {tokens}\n{prompt}\n\n{prompt}\n");
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let status = eventually("the chat ends with its input", async || child.try_wait().unwrap()).await;
    assert_eq!(status.code(), Some(0), "{}", world.stderr());
    assert_eq!(world.stdout(), format!("{text}\n{text}\n"));
    assert!(world.stderr().contains("ready   http://127.0.0.1:"), "{}", world.stderr());
    world.assert_no_leftovers().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipe_whose_prompt_has_no_answer_ends_with_1() {
    let world = TestEnv::new();
    let model = world.model("tiny", &format!("{TINY} --max-positions 64"));
    let mut command = chat(&world, &[model.to_str().unwrap()]);
    world.record(&mut command);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(format!("{}\n", "too long ".repeat(50)).as_bytes()).unwrap();
    let status = eventually("the chat ends with its input", async || child.try_wait().unwrap()).await;
    let stderr = world.stderr();
    assert_eq!(status.code(), Some(1), "{stderr}");
    assert!(
        stderr.contains("maximum context length is 64 tokens") && stderr.contains("1 prompts had no answer"),
        "{stderr}"
    );
    world.assert_no_leftovers().await;
}
