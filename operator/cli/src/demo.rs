//! `sluice demo`: three tenants on one GPU made of host memory, with bursts that rotate among them, first with lending
//! and then with fixed
//! partitions.
//!
//! It needs no source tree, no GPU and no model. The tenants run as under `sluice up --page`, so the page shows
//! them.

mod comparison;
mod config;
mod machine;
mod model;
mod run_stats;
mod screen;
mod workload;

use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use sluice_page::text::formatting::bytes;
use sluice_types::load;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::admin::AdminClient;
use crate::manifests::{self, SourceObject};
use crate::run::machine::available_memory_bytes;
use crate::up::output::{eprint_note, print_line};
use crate::up::plan::UpOptions;
use crate::up::ready::{ReadyEvent, ReadySink};
use crate::up::{DEFAULT_PAGE, DashboardServer, Fleet, Signals};
use crate::{Misconfigured, sibling_binaries};
use config::{DemoConfig, LatencySlo, NAMESPACE, RequestLengths, SharingPolicy, TENANTS};
use machine::MachineSpeed;
use model::DemoModel;
use run_stats::RunStats;
use screen::LiveOutput;
use workload::{RunningTenants, WorkloadLength};

/// Port of the first tenant; the others use the next ports. Applies only if all are free.
const DEFAULT_PORT: u16 = 8000;
/// Longest sequence under `--keep`, tokens, where the model allows it.
const KEEP_CONTEXT_TOKENS: u32 = 1024;
/// Name of the manifest in the loader's messages.
const MANIFEST_NAME: &str = "the demo's tenants";
/// The note of a signal: the tenants give open streams no more than a second.
const ENDING: &str = "ending all tenants";

/// Options of `sluice demo`.
#[derive(Clone, Debug, clap::Args)]
pub struct DemoArgs {
    /// A model folder in Hugging Face layout for all three tenants. Default: a small one with random weights, made
    /// once
    /// in the user's cache folder.
    #[arg(long, value_name = "DIR")]
    pub model: Option<PathBuf>,
    /// Keep the tenants running at the end, until Ctrl-C.
    #[arg(long)]
    pub keep: bool,
    /// Only two short rounds under each rule, to check that the demo works.
    #[arg(long, conflicts_with = "seconds")]
    pub quick: bool,
    /// Duration of the run with lending. The run with fixed partitions gets the same number of requests.
    #[arg(long, value_name = "N", default_value_t = 90, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub seconds: u64,
    /// Port of the first tenant's API; the others take the next ones. 0 = free ports. Default: 8000, or free ports
    /// where 8000 to 8002 are taken.
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
    fn day_length(&self) -> WorkloadLength {
        if self.quick {
            WorkloadLength::Rounds(workload::MIN_ROUNDS)
        } else {
            WorkloadLength::Time(Duration::from_secs(self.seconds))
        }
    }
}

/// Runs the day under both rules and prints the difference.
///
/// # Errors
/// No model, too little memory, a tenant that cannot be served, a request that failed, an interruption before the
/// end,
/// or an answer that differs between the rules.
pub async fn run(args: DemoArgs) -> anyhow::Result<()> {
    let mut signals = Signals::new()?;
    let prepared = async {
        let model = DemoModel::find(args.model.as_deref()).await?;
        let machine = tokio::task::spawn_blocking(MachineSpeed::measure).await?;
        anyhow::Ok((model, machine))
    };
    let (model, machine) = tokio::select! {
        prepared = prepared => prepared?,
        which = signals.next() => bail!("{which} while the first model was loading"),
    };
    let setting = DemoConfig::new(
        &machine,
        &model.geometry,
        if args.quick { RequestLengths::QUICK } else { RequestLengths::SHOW },
    );
    check_memory(&setting)?;
    let mut stage =
        DemoRun { port: args.port.unwrap_or_else(free_ports), args, model, setting, signals, page: None };
    let promise = stage.warm_up(&machine).await?;
    let [lending, fixed] = stage.compare(promise).await?;
    print_line(format_args!("\n{}\n", comparison::table(&lending, &fixed)));
    print_line(comparison::summary(&lending, &fixed, &stage.setting));
    print_line(format_args!("\n{}", next_steps(&sibling_binaries::own_command())));
    if stage.args.keep {
        stage.serve_until_signal(promise).await?;
    }
    if !comparison::has_identical_outputs(&lending, &fixed) {
        bail!("answers differed between the rules");
    }
    Ok(())
}

fn check_memory(setting: &DemoConfig) -> anyhow::Result<()> {
    let available = available_memory_bytes()?;
    if setting.total_bytes > available {
        let (needed, available) = (bytes(setting.total_bytes), bytes(available));
        let problem = format!(
            "not enough memory: three tenants of this model take {needed}, and {available} are available on this machine"
        );
        return Err(Misconfigured(format!("{problem}; use a smaller model, or end other programs")).into());
    }
    Ok(())
}

/// Returns the port of the first tenant; 0 = a usual port is taken, so that each tenant uses any free one.
fn free_ports() -> u16 {
    let ports = DEFAULT_PORT..DEFAULT_PORT + TENANTS.len() as u16;
    let all_free = ports.clone().all(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok());
    if all_free { ports.start } else { 0 }
}

/// State that all runs of the demo share.
struct DemoRun {
    args: DemoArgs,
    model: DemoModel,
    setting: DemoConfig,
    signals: Signals,
    /// Serves from the first run to the last, so that an open page stays connected.
    page: Option<DashboardServer>,
    port: u16,
}

impl DemoRun {
    async fn warm_up(&mut self, machine: &MachineSpeed) -> anyhow::Result<LatencySlo> {
        let setting = self.setting;
        let work = async |tenants: &RunningTenants| {
            print_setup(machine, &setting);
            tenants.warm_up(&setting).await
        };
        let promise = self.serve(SharingPolicy::Lending, LatencySlo::UNKNOWN, work).await?;
        let LatencySlo { ttft_ms, tbt_ms } = promise;
        print_line(format_args!("promise   first token within {ttft_ms} ms, then one every {tbt_ms} ms"));
        Ok(promise)
    }

    /// Runs lending, then fixed partitions. If runs were disturbed, repeats the noisiest one once.
    async fn compare(&mut self, promise: LatencySlo) -> anyhow::Result<[RunStats; 2]> {
        let lending = self.run_day(SharingPolicy::Lending, promise, self.args.day_length()).await?;
        let length = WorkloadLength::Rounds(lending.rounds.len());
        let fixed = self.run_day(SharingPolicy::Fixed, promise, length).await?;
        let (rules, mut runs) = ([SharingPolicy::Lending, SharingPolicy::Fixed], [lending, fixed]);
        rules.iter().zip(&runs).for_each(|(rule, run)| report_disturbance(rule.title(), run));
        if let Some(at) = comparison::most_disturbed(&runs).filter(|_| !self.args.quick) {
            let title = rules[at].title();
            print_line(format_args!("\nthis run is repeated once: {title}"));
            let again = self.run_day(rules[at], promise, length).await?;
            if again.texts != runs[at].texts {
                bail!("{title}: the same requests gave other tokens when repeated");
            }
            report_disturbance(&format!("{title}, repeated"), &again);
            if comparison::is_less_noisy(&again, &runs[at]) {
                runs[at] = again;
            }
        }
        Ok(runs)
    }

    async fn run_day(
        &mut self,
        rule: SharingPolicy,
        promise: LatencySlo,
        length: WorkloadLength,
    ) -> anyhow::Result<RunStats> {
        print_line(format_args!("\n{}", rule.title()));
        let (setting, is_random) = (self.setting, self.args.model.is_none());
        let mut screen = LiveOutput::new(setting.memory_bytes);
        // The work owns the screen, so that a signal, which drops the work, also clears the line of the tenants.
        let work = async move |tenants: &RunningTenants| {
            print_line(format_args!("  ask a tenant: {}", curl_command(&tenants.urls[0])));
            if is_random {
                print_line("  (the weights of this model are random: its answer is not language)");
            }
            tenants.run(&setting, promise, length, &mut screen).await
        };
        self.serve(rule, promise, work).await
    }

    /// Serves under lending until a signal ends it.
    async fn serve_until_signal(&mut self, promise: LatencySlo) -> anyhow::Result<()> {
        self.setting = self.setting.for_context(&self.model.geometry, KEEP_CONTEXT_TOKENS);
        let work = async |tenants: &RunningTenants| {
            print_line("\nserving until Ctrl-C:");
            tenants
                .urls
                .iter()
                .zip(TENANTS)
                .for_each(|(url, name)| print_line(format_args!("  {name:<8} {url}")));
            print_line(format_args!("  try      {}", curl_command(&tenants.urls[0])));
            std::future::pending::<anyhow::Result<()>>().await
        };
        match self.serve(SharingPolicy::Lending, promise, work).await {
            Err(error) if error.is::<Interrupted>() => Ok(()),
            ended => ended,
        }
    }

    /// Starts the tenants, runs the work once all are ready, and stops them.
    async fn serve<T>(
        &mut self,
        rule: SharingPolicy,
        promise: LatencySlo,
        work: impl AsyncFnOnce(&RunningTenants) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let (sender, mut ready) = unbounded_channel();
        let fleet = self.claim_fleet(rule, promise, ReadySink::Channel(sender)).await?;
        let admin = AdminClient::new()?;
        match &mut self.page {
            Some(page) => page.set_tenants(&fleet.configs()),
            None if self.args.no_page => {}
            None => {
                self.page =
                    Some(DashboardServer::start(DEFAULT_PAGE, &fleet.configs(), &admin, "sluice demo").await?)
            }
        }
        let folders = fleet.configs().iter().map(|config| config.runtime_dir.clone()).collect();
        let mut done = None;
        let foreground = async {
            let tenants = RunningTenants { urls: wait_for_urls(&mut ready).await, folders, admin };
            done = Some(work(&tenants).await?);
            Ok(())
        };
        fleet.run(&mut self.signals, ENDING, foreground).await?;
        done.context(Interrupted)
    }

    async fn claim_fleet(
        &self,
        rule: SharingPolicy,
        promise: LatencySlo,
        ready_sink: ReadySink,
    ) -> anyhow::Result<Fleet> {
        let text = self.setting.manifest(rule, promise, self.model.folder_str()?);
        let objects = load::load_located_str(&text, MANIFEST_NAME)
            .map_err(|errors| manifests::to_misconfigured(&errors))?;
        let placed = |located| SourceObject { located, folder: PathBuf::from("/") };
        let objects: Vec<_> = objects.into_iter().map(placed).collect();
        let options = UpOptions {
            host: IpAddr::from(Ipv4Addr::LOCALHOST),
            port: self.port,
            threads: self.setting.threads,
            journal: None,
            force_remap: None,
            poison: false,
            engine: sibling_binaries::find("sluice-engine")?,
        };
        Fleet::claim(&objects, &options, self.args.runtime_dir.as_deref(), &ready_sink, true).await
    }
}

/// A signal ended a run before its work was done.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("ended by a signal before the demo was complete; all its processes have ended")]
struct Interrupted;

/// Waits until every tenant serves. Returns the base URLs in the order of [`TENANTS`].
async fn wait_for_urls(ready: &mut UnboundedReceiver<ReadyEvent>) -> Vec<String> {
    let mut urls = vec![None; TENANTS.len()];
    while urls.contains(&None) {
        // All senders are dropped once all tenants have ended, which also ends this future.
        let Some(one) = ready.recv().await else { return std::future::pending().await };
        let at = TENANTS.iter().position(|name| one.title == format!("{NAMESPACE}/{name}"));
        if let Some(at) = at {
            urls[at] = Some(format!("http://{}", one.serve_addr));
        }
    }
    urls.into_iter().flatten().collect()
}

fn curl_command(url: &str) -> String {
    format!(
        "curl {url}/v1/completions -H 'content-type: application/json' -d '{{\"prompt\":\"Once\",\"max_tokens\":16}}'"
    )
}

/// Returns suggestions for what to do after the demo. `sluice` is the command that runs this program.
fn next_steps(sluice: &str) -> String {
    format!(
        "next      {sluice} run MODEL --chat\n          \
         chats with a model: a folder, or a name of a Hugging Face hub such as HuggingFaceTB/SmolLM2-135M-Instruct"
    )
}

fn report_disturbance(title: &str, run: &RunStats) {
    if let Some(why) = comparison::disturbance(run) {
        print_line(format_args!("\nnoisy: {title}: {why}"));
    }
}

/// Prints the measurements of the machine and the resulting configuration.
fn print_setup(machine: &MachineSpeed, setting: &DemoConfig) {
    let others = machine.other_cpu_permille.map_or("an unknown part".into(), |all| format!("{} %", all / 10));
    let speed = |bytes: u64| format!("{:.1} GB/s", bytes as f64 / 1e9);
    let DemoConfig { threads, link_bytes_per_s, memory_bytes, requests, lengths, .. } = setting;
    let (copies, link, memory) =
        (speed(machine.copy_bytes_per_s), speed(*link_bytes_per_s), bytes(*memory_bytes));
    print_line(format_args!(
        "machine   cores: {}; one core copies {copies}; other programs use {others} of the processor",
        machine.cores
    ));
    print_line(format_args!(
        "setting   threads of each engine: {threads}; link: {link}; GPU: {memory}, a third for each tenant"
    ));
    print_line(format_args!(
        "load      bursts of {requests} requests, {} tokens in and {} out; a third has KV for two of them",
        lengths.prompt, lengths.output
    ));
    if machine.other_cpu_permille.is_some_and(|permille| permille > comparison::MAX_OTHER_CPU_PERMILLE) {
        eprint_note("other programs use the processor: expect noisy figures");
    }
}
