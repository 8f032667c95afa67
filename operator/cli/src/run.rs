//! `sluice run`: serves models by their names. It downloads missing files, plans the memory, serves on one port,
//! and
//! chats.
//!
//! The models are tenants of one GPU made of host memory, as in `sluice up`: `--print-yaml` prints the file.

mod args;
mod chat;
mod download;
pub(crate) mod machine;
mod manifest;
mod memory;
mod model_ref;
mod port;
mod prepare;
mod router;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use sluice_types::load;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::{mpsc, oneshot};

use crate::manifests::{self, SourceObject};
use crate::up::output::{eprint_hint, eprint_note, print_line};
use crate::up::plan::UpOptions;
use crate::up::ready::{ReadyEvent, ReadySink};
use crate::up::{Fleet, Signals, WAITING_FOR_STREAMS};
use crate::{print, sibling_binaries};
pub use args::RunArgs;
use chat::{Chat, ChatModel, Recommended};
use manifest::RunModel;
use prepare::Prepared;
use router::Routes;
use sluice_page::text::formatting::bytes;

/// Time to flush answers after the models have ended.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Runs until a signal stops it, or the chat ends.
///
/// # Errors
/// A MODEL is invalid or unavailable, memory or disk space is too small, a port is taken, or a model cannot
/// be served.
pub async fn run(args: RunArgs) -> anyhow::Result<()> {
    let mut signals = Signals::new()?;
    // Before the download, so that a taken port is reported at once.
    let listener = if args.print_yaml { None } else { Some(port::listen(args.host, args.port).await?) };
    let prepared = tokio::select! {
        prepared = prepare::prepare(&args) => prepared?,
        which = signals.next() => {
            eprint_note(format_args!("{which}; the files downloaded so far are kept"));
            return Ok(());
        }
    };
    match listener {
        Some(listener) => serve(&args, &prepared, listener, signals).await,
        None => print(prepared.yaml.trim_end()),
    }
}

async fn serve(
    args: &RunArgs,
    prepared: &Prepared,
    listener: TcpListener,
    signals: Signals,
) -> anyhow::Result<()> {
    let Prepared { models, plan, .. } = prepared;
    let objects = load::load_located_str(&prepared.yaml, manifest::MANIFEST_NAME)
        .map_err(|errors| manifests::to_misconfigured(&errors))?;
    let placed = |located| SourceObject { located, folder: PathBuf::from("/") };
    let objects: Vec<_> = objects.into_iter().map(placed).collect();
    let (ready_sender, ready) = mpsc::unbounded_channel();
    let fleet = Fleet::claim(
        &objects,
        &up_options(args)?,
        args.runtime_dir.as_deref(),
        &ReadySink::Channel(ready_sender),
        true,
    )
    .await?;
    let names: Vec<_> = models.iter().map(|model| model.served_name.as_str()).collect();
    let (gpu, total) = (bytes(plan.gpu_bytes), bytes(plan.total_bytes));
    let mut context: Vec<_> = plan.context_tokens.iter().map(ToString::to_string).collect();
    // Shows one figure if all models have the same.
    context.dedup();
    eprint_note(format_args!(
        "loading {}: GPU memory {gpu}, {total} of this machine's memory in total; context {} tokens",
        names.join(", "),
        context.join(", ")
    ));
    let routes = Routes::new(models.iter().map(|model| model.served_name.clone()))?;
    let address = listener.local_addr()?;
    let (stop, stopped) = oneshot::channel::<()>();
    // The router ends when `stop` is sent or dropped.
    let server = tokio::spawn(routes.clone().serve(listener, async { drop(stopped.await) }));
    let interrupt = signal(SignalKind::interrupt())?;
    let mut signals = if args.chat { signals.without_interrupt() } else { signals };
    let front = Frontend { chat: args.chat, address, prepared, routes };
    let ended = fleet.run(&mut signals, WAITING_FOR_STREAMS, front.run(ready, interrupt)).await;
    drop(stop);
    // A client that does not read its answer does not hold this process up.
    let _ = tokio::time::timeout(FLUSH_TIMEOUT, server).await;
    ended
}

/// Builds the options of `sluice up`. Clients reach the sidecars only through the one port.
fn up_options(args: &RunArgs) -> anyhow::Result<UpOptions> {
    Ok(UpOptions {
        host: IpAddr::from([127, 0, 0, 1]),
        port: 0,
        threads: args.threads,
        journal: None,
        force_remap: None,
        poison: false,
        engine: sibling_binaries::find("sluice-engine")?,
    })
}

/// Work in the foreground while the models run.
struct Frontend<'a> {
    chat: bool,
    address: SocketAddr,
    prepared: &'a Prepared,
    routes: Routes,
}

impl Frontend<'_> {
    /// Records the addresses of the models, announces them when all are ready, and chats.
    async fn run(
        self,
        mut ready: UnboundedReceiver<ReadyEvent>,
        mut interrupt: Signal,
    ) -> anyhow::Result<()> {
        while !self.routes.all_ready() {
            tokio::select! {
                one = ready.recv() => self.record(one).await,
                _ = interrupt.recv(), if self.chat => return Ok(()),
            }
        }
        self.announce();
        let follow = async {
            loop {
                self.record(ready.recv().await).await;
            }
        };
        if !self.chat {
            return follow.await;
        }
        let chat = Chat::new(self.address, self.chat_models())?;
        tokio::select! {
            ended = chat.run(interrupt) => ended,
            never = follow => never,
        }
    }

    async fn record(&self, ready: Option<ReadyEvent>) {
        // All senders are dropped once all tenants have ended, which also ends this future.
        let Some(ready) = ready else { return std::future::pending().await };
        let tenant = ready.title.split_once('/').map_or("", |(_, tenant)| tenant);
        if let Some(model) = self.prepared.models.iter().find(|model| model.tenant == tenant) {
            self.routes.set(&model.served_name, ready.serve_addr);
        }
    }

    fn chat_models(&self) -> Vec<ChatModel> {
        let models = self.prepared.models.iter().zip(&self.prepared.plan.context_tokens);
        let model = |(model, context_tokens): (&RunModel, &u32)| ChatModel {
            name: model.served_name.clone(),
            has_template: chat::has_template(&model.folder),
            context_tokens: *context_tokens,
            recommended: Recommended::from_folder(&model.folder),
        };
        models.map(model).collect()
    }

    /// Prints to standard error in a chat, where standard output is for answers.
    fn announce(&self) {
        let text = announcement(self.address, &self.chat_models(), self.chat);
        if self.chat { eprint_hint(text) } else { print_line(text) }
    }
}

/// Describes the served models, and how to send requests and stop the program.
fn announcement(address: SocketAddr, models: &[ChatModel], chat: bool) -> String {
    let url = format!("http://{}", chat::reachable(address));
    let names: Vec<_> = models.iter().map(|model| model.name.as_str()).collect();
    let (path, mut body) = if models[0].has_template {
        ("chat/completions", serde_json::json!({"messages": [{"role": "user", "content": "Hello!"}]}))
    } else {
        ("completions", serde_json::json!({"prompt": "Once upon a time", "max_tokens": 64}))
    };
    body["model"] = models[0].name.as_str().into();
    // The document is inside single quotes of a shell.
    let body = body.to_string().replace('\'', "'\\''");
    let title = if models.len() == 1 { "model " } else { "models" };
    let stop = if chat { "" } else { "\nstop    Ctrl-C" };
    format!(
        "ready   {url}/v1\n{title}  {}\ntry     curl {url}/v1/{path} -H 'content-type: application/json' -d '{body}'{stop}",
        names.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(name: &str, has_template: bool) -> ChatModel {
        ChatModel {
            name: name.into(),
            has_template,
            context_tokens: 512,
            recommended: Recommended::default(),
        }
    }

    #[test]
    fn the_announcement_has_a_line_that_works_when_pasted() {
        let address = "0.0.0.0:8001".parse().unwrap();
        let text = announcement(address, &[model("it's", true), model("b", false)], false);
        let expected = "\
ready   http://127.0.0.1:8001/v1
models  it's, b
try     curl http://127.0.0.1:8001/v1/chat/completions -H 'content-type: application/json' -d \
'{\"messages\":[{\"content\":\"Hello!\",\"role\":\"user\"}],\"model\":\"it'\\''s\"}'
stop    Ctrl-C";
        assert_eq!(text, expected);
        let text = announcement(address, &[model("b", false)], true);
        assert!(
            text.contains("/v1/completions -H") && text.contains("\"prompt\":\"Once upon a time\""),
            "{text}"
        );
    }
}
