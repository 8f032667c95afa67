//! A page that is served on a free port of this machine.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sluice_page::hub::Hub;
use sluice_page::serve;
use tokio::runtime::Runtime;

/// The longest wait of a test.
const LIMIT: Duration = Duration::from_secs(60);

/// The server. It ends with this value.
#[derive(Debug)]
pub struct PageServer {
    /// Where it listens.
    pub address: SocketAddr,
    runtime: Runtime,
}

impl PageServer {
    /// Serves `hub` on one thread.
    pub fn new(hub: Arc<Hub>) -> PageServer {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let router = serve::local_only(serve::routes(hub));
        runtime.spawn(async move { axum::serve(listener, router).await });
        PageServer { address, runtime }
    }

    /// The same, with an update of `give` ten times a second.
    pub fn with_updates(self, hub: Arc<Hub>, give: fn(&Hub)) -> PageServer {
        self.runtime.spawn(async move {
            loop {
                give(&hub);
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
        self
    }

    /// Runs `work` on this thread, within the server's runtime. Panics when it takes longer than [`LIMIT`].
    pub fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        let done = self.runtime.block_on(async { tokio::time::timeout(LIMIT, work).await });
        done.unwrap_or_else(|_| {
            panic!("the page did not do within {} s what the test waits for", LIMIT.as_secs())
        })
    }

    /// Asks for a path.
    pub fn get(&self, path: &str) -> reqwest::RequestBuilder {
        // A second installation is refused, and the first one stays.
        let _ = rustls::crypto::ring::default_provider().install_default();
        reqwest::Client::new().get(self.url(path))
    }

    /// URL of a path.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}
