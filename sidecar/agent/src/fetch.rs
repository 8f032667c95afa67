//! `sluice-sidecar fetch`: the model comes into a folder before the sidecar starts.
//!
//! Whatever is in the folder already, whole or in part, is used; every file is held to the size and the digest that its
//! source told before it gets its name. A part ends in `.part`. A folder that is whole is left as it is, and nobody is asked.
//! Of several that download into one folder, one does.

pub mod bucket;
mod digest;
mod error;
pub mod hub;
mod lock;
mod part;
mod progress;
mod receipt;
mod retry;
mod source;

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use reqwest::{Client, StatusCode, header};

pub use self::bucket::Bucket;
pub use self::digest::Expected;
pub use self::error::FetchError;
pub(crate) use self::error::with_causes;
pub use self::hub::Hub;
use self::lock::Lock;
use self::part::Part;
use self::progress::Progress;
pub use self::progress::ProgressReport;
use self::retry::Retries;
pub(crate) use self::retry::again;
pub use self::retry::{RetryArgs, RetryPolicy};
pub use self::source::{Item, Source};
use crate::run::Failure;

/// Files that come at the same time: one connection seldom fills a link.
const AT_ONCE: usize = 4;
/// A connection has to stand within this time, the search for the address of its host included.
const CONNECT: Duration = Duration::from_secs(5);
/// Bytes have to come within this time.
const SILENCE: Duration = Duration::from_secs(30);

/// Where the model comes from, and where it goes, on the command line.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum From {
    /// A repository of a Hugging Face hub. The variable HF_TOKEN holds a token, if one is needed.
    HuggingFace {
        /// The repository.
        #[command(flatten)]
        hub: HubArgs,
        /// Folder for the files; made if absent.
        #[arg(long, value_name = "FOLDER")]
        to: PathBuf,
    },
    /// Objects of a bucket. The variables AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY hold credentials, if they are needed.
    S3 {
        /// The objects.
        #[command(flatten)]
        objects: BucketArgs,
        /// Folder for the files; made if absent.
        #[arg(long, value_name = "FOLDER")]
        to: PathBuf,
    },
}

/// A repository, on the command line.
#[derive(Clone, Debug, clap::Args)]
pub struct HubArgs {
    /// The repository, as OWNER/NAME.
    #[arg(long)]
    repo: String,
    /// Branch, tag or commit.
    #[arg(long, default_value = "main")]
    revision: String,
    /// Address of the hub.
    #[arg(long, default_value = "https://huggingface.co")]
    endpoint: String,
}

impl HubArgs {
    /// The repository, with the token of this process's environment.
    ///
    /// # Errors
    /// The endpoint is no address.
    pub fn source(&self) -> Result<Source, FetchError> {
        let token = std::env::var("HF_TOKEN").ok().filter(|token| !token.is_empty());
        Ok(Source::Hub(Hub::new(&self.endpoint, &self.repo, &self.revision, token)?))
    }
}

/// Objects of a bucket, on the command line.
#[derive(Clone, Debug, clap::Args)]
pub struct BucketArgs {
    /// The bucket.
    #[arg(long)]
    bucket: String,
    /// Prefix of the model's objects.
    #[arg(long, default_value = "")]
    prefix: String,
    /// Its region.
    #[arg(long, default_value = "us-east-1")]
    region: String,
    /// Address of the service. Default: AWS in the region.
    #[arg(long)]
    endpoint: Option<String>,
}

impl BucketArgs {
    /// The objects, with the credentials of this process's environment.
    ///
    /// # Errors
    /// The endpoint is no address, or the bucket's name none of a bucket.
    pub fn source(&self) -> Result<Source, FetchError> {
        let credentials = rusty_s3::Credentials::from_env();
        let endpoint = self.endpoint.as_deref();
        let bucket = Bucket::new(endpoint, &self.region, &self.bucket, &self.prefix, credentials)?;
        Ok(Source::Bucket(bucket))
    }
}

impl From {
    fn source(&self) -> Result<(Source, &Path), FetchError> {
        match self {
            From::HuggingFace { hub, to } => Ok((hub.source()?, to)),
            From::S3 { objects, to } => Ok((objects.source()?, to)),
        }
    }
}

/// The subcommand: until all is there, or cannot be had.
///
/// # Errors
/// What could not be had; as a configuration that no restart can help, where trying again cannot.
pub fn run(from: &From, progress: bool, retry: &RetryArgs) -> Result<(), Failure> {
    let report = ProgressReport::new(progress);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::Other(error.into()))?;
    let fetched = from.source().and_then(|(source, to)| {
        tracing::info!(%source, to = %to.display(), "fetching a model");
        runtime.block_on(fetch(&source, to, retry.policy(), report))
    });
    // A search for an address may still run, and its end is not waited for.
    runtime.shutdown_background();
    fetched.map_err(|error| match error.is_final() {
        true => Failure::Config(error.into()),
        false => Failure::Other(error.into()),
    })
}

/// Brings all files of `source` into `to`. Where they came before and are as they were then, nobody is asked: a branch that has
/// moved since changes nothing.
///
/// # Errors
/// The first file that could not be had, or why nobody can say what the files are.
pub async fn fetch(
    source: &Source,
    to: &Path,
    policy: RetryPolicy,
    report: ProgressReport,
) -> Result<(), FetchError> {
    // First without the lock: those who find it whole need not check it one after another.
    if is_there(source, to)? {
        return Ok(());
    }
    let (client, asked) = (client()?, source);
    let source = &again(policy, report, async || source.resolved(&client).await).await?;
    let items = again(policy, report, async || source.list(&client).await).await?;
    complete(source, &items)?;
    std::fs::create_dir_all(to).map_err(FetchError::file(to))?;
    let _alone = Lock::take(to).await?;
    if is_there(asked, to)? {
        return Ok(());
    }
    let progress = Progress::new(items.iter().map(|item| item.bytes).sum());
    let files = stream::iter(&items).map(|item| {
        let job = Job { client: &client, source, item, path: to.join(&item.name), progress: &progress };
        async move { job.bring(Retries::new(policy, report)).await }
    });
    let all = files.buffer_unordered(AT_ONCE).try_collect::<Vec<()>>();
    tokio::select! {
        brought = all => brought.map(drop)?,
        () = progress.report(report) => unreachable!("reports never end"),
    }
    progress.report_end(report);
    receipt::write(to, asked, &items)
}

fn is_there(source: &Source, to: &Path) -> Result<bool, FetchError> {
    let whole = receipt::is_whole(to, source)?;
    if whole {
        tracing::info!(%source, "is there already");
    }
    Ok(whole)
}

pub(crate) fn client() -> Result<Client, FetchError> {
    // Fails only when there is one already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let agent = concat!("sluice/", env!("CARGO_PKG_VERSION"));
    let client = Client::builder().user_agent(agent).connect_timeout(CONNECT).read_timeout(SILENCE);
    client.build().map_err(FetchError::Client)
}

/// A model without weights or configuration is a mistake in the source's name, told before anything is downloaded.
pub(crate) fn complete(source: &Source, items: &[Item]) -> Result<(), FetchError> {
    let has = |wanted: &dyn Fn(&str) -> bool| items.iter().any(|item| wanted(&item.name));
    let lacks = if !has(&|name| name == "config.json") {
        "config.json"
    } else if !has(&|name| name.ends_with(".safetensors")) {
        "a file that ends in .safetensors"
    } else {
        return Ok(());
    };
    Err(FetchError::NoModel { place: source.to_string(), lacks })
}

/// One file on its way.
struct Job<'a> {
    client: &'a Client,
    source: &'a Source,
    item: &'a Item,
    path: PathBuf,
    progress: &'a Progress,
}

impl Job<'_> {
    async fn bring(&self, mut retries: Retries) -> Result<(), FetchError> {
        if self.is_there()? {
            tracing::info!(file = %self.item.name, "is there already");
            self.progress.add(self.item.bytes);
            return Ok(());
        }
        let mut part = Part::open(&self.path)?;
        self.progress.add(part.bytes());
        loop {
            let before = part.bytes();
            match self.attempt(&mut part).await {
                Ok(()) => break,
                Err(error) if error.is_final() => return Err(error),
                Err(error) => {
                    if part.bytes() > before {
                        retries.restart();
                    }
                    retries.after(error).await?;
                }
            }
        }
        tracing::info!(file = %self.item.name, bytes = part.bytes(), "has come");
        part.settle()
    }

    /// Whether the file is there under its name, and is what it should be. One that is not is downloaded anew.
    fn is_there(&self) -> Result<bool, FetchError> {
        let found = Part::read(&self.path)?;
        Ok(found.is_some_and(|digest| digest.check(self.item).is_ok()))
    }

    /// Asks for what is missing and takes what comes; then the whole has to be right. Of a digest that is wrong the rest of an
    /// earlier start may be the reason, so it is asked for once more from the beginning; then it is the source's.
    async fn attempt(&self, part: &mut Part) -> Result<(), FetchError> {
        let resumed = part.bytes() > 0;
        match self.take(part).await {
            Err(FetchError::Digest { .. }) if resumed => self.take(part).await,
            taken => taken,
        }
    }

    async fn take(&self, part: &mut Part) -> Result<(), FetchError> {
        if part.bytes() < self.item.bytes {
            self.download(part).await?;
        }
        let checked = part.digest().check(self.item);
        if checked.is_err() && part.bytes() >= self.item.bytes {
            // What is wrong stays wrong.
            self.forget(part)?;
        }
        checked
    }

    fn forget(&self, part: &mut Part) -> Result<(), FetchError> {
        self.progress.take(part.bytes());
        part.restart()
    }

    async fn download(&self, part: &mut Part) -> Result<(), FetchError> {
        let (url, mut request) = self.source.get(self.client, self.item);
        if part.bytes() > 0 {
            request = request.header(header::RANGE, format!("bytes={}-", part.bytes()));
        }
        let mut response = request.send().await.map_err(FetchError::http(&url))?;
        match response.status() {
            StatusCode::PARTIAL_CONTENT => {}
            // A server that knows no ranges sends all of it.
            StatusCode::OK => self.forget(part)?,
            // What is here is longer than the file.
            StatusCode::RANGE_NOT_SATISFIABLE => return self.forget(part),
            status => return Err(FetchError::status(&url, status)),
        }
        while let Some(bytes) = response.chunk().await.map_err(FetchError::http(&url))? {
            // Blocks this thread, which has nothing else to do.
            part.write(&bytes)?;
            self.progress.add(bytes.len() as u64);
            // More than was promised is wrong already, and may have no end.
            if part.bytes() > self.item.bytes {
                break;
            }
        }
        Ok(())
    }
}
