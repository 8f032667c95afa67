//! `sluice-sidecar fetch`: downloads a model into a folder before the sidecar starts.
//!
//! Files that the folder already contains, whole or partial, are reused. Every file is checked against the size and the
//! digest from its source before it gets its final name; a partial file ends in `.part`. A complete folder is left
//! unchanged without a request to its source. Of several downloads into one folder, only one runs.

pub mod bucket;
mod completion_marker;
mod digest;
mod error;
mod fetch_text;
pub mod hub;
mod lock;
mod model_file;
mod partial_file;
mod progress;
mod retry;
mod source;

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use reqwest::{Client, StatusCode, header};

pub use self::bucket::Bucket;
pub use self::error::DownloadError;
pub(crate) use self::error::error_chain;
pub use self::hub::Hub;
use self::lock::FolderLock;
pub use self::model_file::{ExpectedDigest, ModelFile};
use self::partial_file::PartialFile;
use self::progress::ByteProgress;
pub use self::progress::ProgressOutput;
use self::retry::RetryState;
pub(crate) use self::retry::with_retries;
pub use self::retry::{RetryArgs, RetryPolicy};
pub use self::source::Source;
use crate::run::failure::Failure;

/// Concurrent downloads, because one connection seldom fills a link.
const CONCURRENT_DOWNLOADS: usize = 4;
/// Longest time to connect, including the name lookup.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest time without a received byte.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Where the model comes from, and where it goes, on the command line.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum SourceArgs {
    /// A repository of a Hugging Face hub. The variable HF_TOKEN holds a token, if one is needed.
    HuggingFace {
        /// The repository.
        #[command(flatten)]
        hub: HubArgs,
        /// Folder for the files; created if absent.
        #[arg(long, value_name = "FOLDER")]
        to: PathBuf,
    },
    /// Objects of a bucket. The variables AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY hold credentials, if they are
    /// needed.
    S3 {
        /// The objects.
        #[command(flatten)]
        objects: BucketArgs,
        /// Folder for the files; created if absent.
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
    /// Returns the repository, with the token from the environment.
    ///
    /// # Errors
    /// The endpoint is not a valid URL.
    pub fn source(&self) -> Result<Source, DownloadError> {
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
    /// Returns the objects, with the credentials from the environment.
    ///
    /// # Errors
    /// The endpoint is not a valid URL, or the bucket's name is invalid.
    pub fn source(&self) -> Result<Source, DownloadError> {
        let credentials = rusty_s3::Credentials::from_env();
        let endpoint = self.endpoint.as_deref();
        let bucket = Bucket::new(endpoint, &self.region, &self.bucket, &self.prefix, credentials)?;
        Ok(Source::Bucket(bucket))
    }
}

impl SourceArgs {
    fn source(&self) -> Result<(Source, &Path), DownloadError> {
        match self {
            SourceArgs::HuggingFace { hub, to } => Ok((hub.source()?, to)),
            SourceArgs::S3 { objects, to } => Ok((objects.source()?, to)),
        }
    }
}

/// Runs the subcommand until all files are present or the download fails.
///
/// # Errors
/// The download failed; [`Failure::Config`] if a retry cannot help.
pub fn run(from: &SourceArgs, progress: bool, retry: &RetryArgs) -> Result<(), Failure> {
    let report = ProgressOutput::new(progress);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::Other(error.into()))?;
    let fetched = from.source().and_then(|(source, to)| {
        tracing::info!(%source, to = %to.display(), "downloading a model");
        runtime.block_on(download_model(&source, to, retry.policy(), report))
    });
    // Does not wait for a name lookup that may still run.
    runtime.shutdown_background();
    fetched.map_err(|error| match error.is_final() {
        true => Failure::Config(error.into()),
        false => Failure::Other(error.into()),
    })
}

/// Downloads all files of `source` into `to`. A complete and unchanged folder needs no request, even if the branch has
/// moved since.
///
/// # Errors
/// The first file that failed, or why the list of files is unknown.
pub async fn download_model(
    source: &Source,
    to: &Path,
    policy: RetryPolicy,
    report: ProgressOutput,
) -> Result<(), DownloadError> {
    // First without the lock, so that processes which find a complete folder check it concurrently.
    if is_present(source, to)? {
        return Ok(());
    }
    let (client, asked) = (build_client()?, source);
    let source = &with_retries(policy, report, async || source.pin_revision(&client).await).await?;
    let items = with_retries(policy, report, async || source.list(&client).await).await?;
    check_model_files(source, &items)?;
    std::fs::create_dir_all(to).map_err(DownloadError::file(to))?;
    let _lock = FolderLock::acquire(to).await?;
    if is_present(asked, to)? {
        return Ok(());
    }
    let progress = ByteProgress::new(items.iter().map(|item| item.bytes).sum());
    let files = stream::iter(&items).map(|item| {
        let job = FileDownload {
            client: &client,
            source,
            file: item,
            path: to.join(&item.name),
            progress: &progress,
        };
        async move { job.download_file(RetryState::new(policy, report)).await }
    });
    let all = files.buffer_unordered(CONCURRENT_DOWNLOADS).try_collect::<Vec<()>>();
    tokio::select! {
        brought = all => brought.map(drop)?,
        () = progress.report(report) => unreachable!("reports never end"),
    }
    progress.report_finished(report);
    completion_marker::write(to, asked, &items)
}

fn is_present(source: &Source, to: &Path) -> Result<bool, DownloadError> {
    let whole = completion_marker::is_complete(to, source)?;
    if whole {
        tracing::info!(%source, "the model is already downloaded");
    }
    Ok(whole)
}

pub(crate) fn build_client() -> Result<Client, DownloadError> {
    // Fails only if a provider is already installed, which works as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let agent = concat!("sluice/", env!("CARGO_PKG_VERSION"));
    let client =
        Client::builder().user_agent(agent).connect_timeout(CONNECT_TIMEOUT).read_timeout(READ_TIMEOUT);
    client.build().map_err(DownloadError::Client)
}

/// Fails before any download if the source has no weights or no configuration, because then its name is a mistake.
pub(crate) fn check_model_files(source: &Source, items: &[ModelFile]) -> Result<(), DownloadError> {
    let has = |wanted: &dyn Fn(&str) -> bool| items.iter().any(|item| wanted(&item.name));
    let lacks = if !has(&|name| name == "config.json") {
        "config.json"
    } else if !has(&|name| name.ends_with(".safetensors")) {
        "a file that ends in .safetensors"
    } else {
        return Ok(());
    };
    Err(DownloadError::NotAModel { place: source.to_string(), lacks })
}

/// Download of one file.
struct FileDownload<'a> {
    client: &'a Client,
    source: &'a Source,
    file: &'a ModelFile,
    path: PathBuf,
    progress: &'a ByteProgress,
}

impl FileDownload<'_> {
    async fn download_file(&self, mut retries: RetryState) -> Result<(), DownloadError> {
        if self.is_present()? {
            tracing::info!(file = %self.file.name, "the file is already downloaded");
            self.progress.add(self.file.bytes);
            return Ok(());
        }
        let mut part = PartialFile::open(&self.path)?;
        self.progress.add(part.bytes());
        loop {
            let before = part.bytes();
            match self.attempt(&mut part).await {
                Ok(()) => break,
                Err(error) if error.is_final() => return Err(error),
                Err(error) => {
                    if part.bytes() > before {
                        retries.reset();
                    }
                    retries.wait_after(error).await?;
                }
            }
        }
        tracing::info!(file = %self.file.name, bytes = part.bytes(), "downloaded a file");
        part.commit()
    }

    /// Whether the file is present under its final name and valid. An invalid file is downloaded again.
    fn is_present(&self) -> Result<bool, DownloadError> {
        let found = PartialFile::digest_file(&self.path)?;
        Ok(found.is_some_and(|digest| digest.check(self.file).is_ok()))
    }

    /// Downloads the missing bytes and checks the file. A wrong digest of a resumed file may come from the earlier
    /// part, so the file is downloaded once more from the start; after that the source is at fault.
    async fn attempt(&self, part: &mut PartialFile) -> Result<(), DownloadError> {
        let resumed = part.bytes() > 0;
        match self.download_and_check(part).await {
            Err(DownloadError::Digest { .. }) if resumed => self.download_and_check(part).await,
            taken => taken,
        }
    }

    async fn download_and_check(&self, part: &mut PartialFile) -> Result<(), DownloadError> {
        if part.bytes() < self.file.bytes {
            self.download(part).await?;
        }
        let checked = part.digest().check(self.file);
        if checked.is_err() && part.bytes() >= self.file.bytes {
            // Wrong bytes are of no use for a retry.
            self.discard_partial(part)?;
        }
        checked
    }

    fn discard_partial(&self, part: &mut PartialFile) -> Result<(), DownloadError> {
        self.progress.subtract(part.bytes());
        part.restart()
    }

    async fn download(&self, part: &mut PartialFile) -> Result<(), DownloadError> {
        let (url, mut request) = self.source.get_request(self.client, self.file);
        if part.bytes() > 0 {
            request = request.header(header::RANGE, format!("bytes={}-", part.bytes()));
        }
        let mut response = request.send().await.map_err(DownloadError::http(&url))?;
        match response.status() {
            StatusCode::PARTIAL_CONTENT => {}
            // A server without range support sends the whole file.
            StatusCode::OK => self.discard_partial(part)?,
            // The partial file is longer than the source's.
            StatusCode::RANGE_NOT_SATISFIABLE => return self.discard_partial(part),
            status => return Err(DownloadError::status(&url, status)),
        }
        while let Some(bytes) = response.chunk().await.map_err(DownloadError::http(&url))? {
            // Blocks this thread, which has no other work.
            part.write(&bytes)?;
            self.progress.add(bytes.len() as u64);
            // More bytes than announced are wrong, and the response may have no end.
            if part.bytes() > self.file.bytes {
                break;
            }
        }
        Ok(())
    }
}
