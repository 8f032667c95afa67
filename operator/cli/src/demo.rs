//! `sluice demo`: three tenants on one GPU made of host memory, bursts that go round, with lending and with fixed partitions.
//!
//! It needs no source tree, no GPU and no model. The tenants run as under `sluice up --page`, so the page shows them.

mod day;
mod machine;
mod model;
mod outcome;
mod screen;
mod setting;
mod verdict;

use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use sluice_page::words::figures::bytes;
use sluice_types::load;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::admin::Admin;
use crate::run::machine::available_memory_bytes;
use crate::up::plan::{Options, Placed};
use crate::up::ready::{Ready, ReadySink};
use crate::up::speak::{note, tell};
use crate::up::{DEFAULT_PAGE, Fleet, Page, Signals};
use crate::{Misconfigured, files, siblings};
use day::{Length, Tenants};
use machine::Machine;
use model::Model;
use outcome::Outcome;
use screen::Screen;
use setting::{Lengths, NAMESPACE, Promise, Rule, Setting, TENANTS};

/// Ports of the tenants, where these are free: the first tenant's, the others above it.
const PORT: u16 = 8000;
/// Longest sequence under `--keep`, tokens, where the model allows it.
const KEPT_CONTEXT: u32 = 1024;
/// What the loader names as the file.
const FILE: &str = "the demo's tenants";

/// Options of `sluice demo`.
#[derive(Clone, Debug, clap::Args)]
pub struct DemoArgs {
    /// A model folder in Hugging Face layout for all three tenants. Default: a small one with random weights, made once in the
    /// user's cache folder.
    #[arg(long, value_name = "DIR")]
    pub model: Option<PathBuf>,
    /// Leave the tenants serving at the end, until Ctrl-C.
    #[arg(long)]
    pub keep: bool,
    /// Two short rounds under each rule: shows that everything works, and no more.
    #[arg(long, conflicts_with = "seconds")]
    pub quick: bool,
    /// Length of the day. As many requests are then sent to fixed partitions.
    #[arg(long, value_name = "N", default_value_t = 90, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub seconds: u64,
    /// Port of the first tenant's API; the others take the next ones. 0 = free ports. Default: 8000, or free ports where 8000 to
    /// 8002 are taken.
    #[arg(long)]
    pub port: Option<u16>,
    /// Serve no page.
    #[arg(long)]
    pub no_page: bool,
    /// Runtime folder instead of the user's own.
    #[arg(long, env = "SLUICE_RUNTIME_DIR")]
    pub runtime_dir: Option<PathBuf>,
}

impl DemoArgs {
    fn length(&self) -> Length {
        if self.quick {
            Length::Rounds(day::FEWEST_ROUNDS)
        } else {
            Length::Time(Duration::from_secs(self.seconds))
        }
    }
}

/// Plays the day under both rules and says how they differ.
///
/// # Errors
/// No model, too little memory, a tenant that cannot be served, a request that failed, an interruption before the end, or an
/// answer that differs between the rules.
pub async fn run(args: DemoArgs) -> anyhow::Result<()> {
    let mut signals = Signals::new()?;
    let prepared = async {
        let model = Model::find(args.model.as_deref()).await?;
        let machine = tokio::task::spawn_blocking(Machine::measure).await?;
        anyhow::Ok((model, machine))
    };
    let (model, machine) = tokio::select! {
        prepared = prepared => prepared?,
        which = signals.next() => bail!("{which} before the first model was loaded"),
    };
    let setting =
        Setting::new(&machine, &model.geometry, if args.quick { Lengths::QUICK } else { Lengths::SHOW });
    check_memory(&setting)?;
    let mut stage =
        Stage { port: args.port.unwrap_or_else(free_ports), args, model, setting, signals, page: None };
    let promise = stage.warm_up(&machine).await?;
    let [lending, fixed] = stage.compare(promise).await?;
    tell(format_args!("\n{}\n", verdict::table(&lending, &fixed)));
    tell(verdict::sentences(&lending, &fixed, &stage.setting));
    tell(format_args!("\n{}", next_step(&siblings::own_command())));
    if stage.args.keep {
        stage.keep(promise).await?;
    }
    if !verdict::identical(&lending, &fixed) {
        bail!("answers differed between the rules");
    }
    Ok(())
}

fn check_memory(setting: &Setting) -> anyhow::Result<()> {
    let available = available_memory_bytes()?;
    if setting.total_bytes > available {
        let (needed, available) = (bytes(setting.total_bytes), bytes(available));
        let problem = format!(
            "not enough memory: three tenants of this model take {needed}, and {available} are available on this machine"
        );
        return Err(Misconfigured(format!("{problem}; take a smaller model, or end other programs")).into());
    }
    Ok(())
}

/// The first of the tenants' ports; 0 = the usual ones are taken, so that each tenant takes a free one.
fn free_ports() -> u16 {
    let ports = PORT..PORT + TENANTS.len() as u16;
    let all_free = ports.clone().all(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok());
    if all_free { ports.start } else { 0 }
}

/// What all runs of the demo have in common.
struct Stage {
    args: DemoArgs,
    model: Model,
    setting: Setting,
    signals: Signals,
    /// From the first run to the last: a page that is open stays so.
    page: Option<Page>,
    port: u16,
}

impl Stage {
    async fn warm_up(&mut self, machine: &Machine) -> anyhow::Result<Promise> {
        let setting = self.setting;
        let work = async |tenants: &Tenants| {
            describe(machine, &setting);
            tenants.warm_up(&setting).await
        };
        let promise = self.serve(Rule::Lending, Promise::UNKNOWN, work).await?;
        let Promise { ttft_ms, tbt_ms } = promise;
        tell(format_args!("promise   first token within {ttft_ms} ms, then one every {tbt_ms} ms"));
        Ok(promise)
    }

    /// Lending, then fixed partitions. Of the runs that were disturbed, the one with more noise is repeated once.
    async fn compare(&mut self, promise: Promise) -> anyhow::Result<[Outcome; 2]> {
        let lending = self.day(Rule::Lending, promise, self.args.length()).await?;
        let length = Length::Rounds(lending.rounds.len());
        let fixed = self.day(Rule::Fixed, promise, length).await?;
        let (rules, mut runs) = ([Rule::Lending, Rule::Fixed], [lending, fixed]);
        rules.iter().zip(&runs).for_each(|(rule, run)| tell_disturbance(rule.title(), run));
        if let Some(at) = verdict::most_disturbed(&runs).filter(|_| !self.args.quick) {
            let title = rules[at].title();
            tell(format_args!("\nthis run is repeated once: {title}"));
            let again = self.day(rules[at], promise, length).await?;
            if again.texts != runs[at].texts {
                bail!("{title}: the same requests were answered with other tokens when repeated");
            }
            tell_disturbance(&format!("{title}, repeated"), &again);
            if verdict::is_calmer(&again, &runs[at]) {
                runs[at] = again;
            }
        }
        Ok(runs)
    }

    async fn day(&mut self, rule: Rule, promise: Promise, length: Length) -> anyhow::Result<Outcome> {
        tell(format_args!("\n{}", rule.title()));
        let (setting, is_random) = (self.setting, self.args.model.is_none());
        let mut screen = Screen::new(setting.memory_bytes);
        let work = async |tenants: &Tenants| {
            tell(format_args!("  ask a tenant: {}", curl(&tenants.urls[0])));
            if is_random {
                tell("  (the weights of this model are random: its answer is not language)");
            }
            tenants.play(&setting, promise, length, &mut screen).await
        };
        self.serve(rule, promise, work).await
    }

    /// Serves under lending until a signal ends it.
    async fn keep(&mut self, promise: Promise) -> anyhow::Result<()> {
        self.setting = self.setting.for_context(&self.model.geometry, KEPT_CONTEXT);
        let work = async |tenants: &Tenants| {
            tell("\nserving until Ctrl-C:");
            tenants.urls.iter().zip(TENANTS).for_each(|(url, name)| tell(format_args!("  {name:<8} {url}")));
            tell(format_args!("  try      {}", curl(&tenants.urls[0])));
            std::future::pending::<anyhow::Result<()>>().await
        };
        match self.serve(Rule::Lending, promise, work).await {
            Err(error) if error.is::<Interrupted>() => Ok(()),
            ended => ended,
        }
    }

    /// Starts the tenants, works with them once all are ready, and ends them.
    async fn serve<T>(
        &mut self,
        rule: Rule,
        promise: Promise,
        work: impl AsyncFnOnce(&Tenants) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let (sender, mut ready) = unbounded_channel();
        let fleet = self.claim(rule, promise, ReadySink::Channel(sender))?;
        let admin = Admin::new()?;
        match &mut self.page {
            Some(page) => page.show(&fleet.configs()),
            None if self.args.no_page => {}
            None => {
                self.page = Some(Page::start(DEFAULT_PAGE, &fleet.configs(), &admin, "sluice demo").await?)
            }
        }
        let folders = fleet.configs().iter().map(|config| config.runtime_dir.clone()).collect();
        let mut done = None;
        let foreground = async {
            let tenants = Tenants { urls: urls(&mut ready).await, folders, admin };
            done = Some(work(&tenants).await?);
            Ok(())
        };
        fleet.run(&mut self.signals, foreground).await?;
        done.context(Interrupted)
    }

    fn claim(&self, rule: Rule, promise: Promise, ready_sink: ReadySink) -> anyhow::Result<Fleet> {
        let text = self.setting.manifest(rule, promise, self.model.text()?);
        let objects = load::load_located_str(&text, FILE).map_err(|errors| files::refused(&errors))?;
        let placed = |located| Placed { located, folder: PathBuf::from("/") };
        let objects: Vec<_> = objects.into_iter().map(placed).collect();
        let options = Options {
            host: IpAddr::from(Ipv4Addr::LOCALHOST),
            port: self.port,
            threads: self.setting.threads,
            journal: None,
            force_remap: None,
            poison: false,
            engine: siblings::find("sluice-engine")?,
        };
        Fleet::claim(&objects, &options, self.args.runtime_dir.as_deref(), &ready_sink, true)
    }
}

/// A signal ended a run before its work was done.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("ended by a signal before the demo was over; nothing of it is left running")]
struct Interrupted;

/// Waits until every tenant serves; base URLs in the order of [`TENANTS`].
async fn urls(ready: &mut UnboundedReceiver<Ready>) -> Vec<String> {
    let mut urls = vec![None; TENANTS.len()];
    while urls.contains(&None) {
        // No sender is left once all tenants have ended, which ends this future too.
        let Some(one) = ready.recv().await else { return std::future::pending().await };
        let at = TENANTS.iter().position(|name| one.title == format!("{NAMESPACE}/{name}"));
        if let Some(at) = at {
            urls[at] = Some(format!("http://{}", one.serve));
        }
    }
    urls.into_iter().flatten().collect()
}

fn curl(url: &str) -> String {
    format!(
        "curl {url}/v1/completions -H 'content-type: application/json' -d '{{\"prompt\":\"Once\",\"max_tokens\":16}}'"
    )
}

/// What to do after the demo; `sluice` is the command that runs this program.
fn next_step(sluice: &str) -> String {
    format!(
        "next      {sluice} run MODEL --chat\n          \
         chats with a model: a folder, or a name of a Hugging Face hub such as HuggingFaceTB/SmolLM2-135M-Instruct"
    )
}

fn tell_disturbance(title: &str, run: &Outcome) {
    if let Some(why) = verdict::disturbance(run) {
        tell(format_args!("\ndisturbed: {title}: {why}"));
    }
}

/// What was measured, and what follows from it.
fn describe(machine: &Machine, setting: &Setting) {
    let others = machine.others_permille.map_or("an unknown part".into(), |all| format!("{} %", all / 10));
    let speed = |bytes: u64| format!("{:.1} GB/s", bytes as f64 / 1e9);
    let Setting { threads, link_bytes_per_s, memory_bytes, requests, lengths, .. } = setting;
    let (copies, link, memory) =
        (speed(machine.copy_bytes_per_s), speed(*link_bytes_per_s), bytes(*memory_bytes));
    tell(format_args!(
        "machine   cores: {}; one copies {copies}; other programs take {others} of the processor",
        machine.cores
    ));
    tell(format_args!(
        "setting   threads of each engine: {threads}; link: {link}; GPU: {memory}, a third for each tenant"
    ));
    tell(format_args!(
        "load      bursts of {requests} requests, {} tokens in and {} out; a third has KV for two of them",
        lengths.prompt, lengths.output
    ));
    if machine.others_permille.is_some_and(|permille| permille > verdict::CALM_PERMILLE) {
        note("other programs are busy: figures will be disturbed");
    }
}
