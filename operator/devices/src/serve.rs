//! Connects the parts of the driver and runs it until it has to stop.

use std::future::Future;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use kube::Client;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;

use crate::args::PluginArgs;
use crate::driver::{Driver, RegistrationInfo};
use crate::h2_authority::with_fixed_authority;
use crate::health::{self, DriverMetrics, Health};
use crate::proto::dra::dra_plugin_server::DraPluginServer;
use crate::proto::pluginregistration::registration_server::RegistrationServer;
use crate::slice::Publisher;
use crate::store::Store;

/// Time limit for running calls when the driver stops.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs the driver until `ended` completes.
///
/// # Errors
/// The driver cannot start because a folder, a socket or an address is not available, or its sockets cannot be
/// removed.
pub async fn serve(args: &PluginArgs, client: Client, ended: impl Future<Output = ()>) -> anyhow::Result<()> {
    let offer = args.offer()?;
    let metrics = Arc::new(DriverMetrics::default());
    let store = Store::open(args.node_dirs())?;
    let driver = Arc::new(Driver::new(client.clone(), offer.clone(), store, Arc::clone(&metrics)));
    let introduction = Arc::new(RegistrationInfo::new(args.dra_socket()));
    let publisher = Publisher::new(client, offer);
    let registered = introduction.subscribe();
    let health = Health {
        sockets: [args.registration_socket(), args.dra_socket()],
        ready: [introduction.subscribe(), publisher.subscribe()],
        metrics,
    };
    let (stop, stopped) = watch::channel(false);
    // The kubelet calls as soon as it finds the registration socket, so this socket is created last and removed
    // first.
    let dra = Server::builder().add_service(DraPluginServer::from_arc(Arc::clone(&driver)));
    let (dra, dra_socket) = listen(&args.dra_socket(), dra, stopped.clone())?;
    let registration = Server::builder().add_service(RegistrationServer::from_arc(introduction));
    let (registration, registration_socket) = listen(&args.registration_socket(), registration, stopped)?;
    let http = TcpListener::bind(args.http).await.with_context(|| args.http.to_string())?;
    tracing::info!(node = args.node_name, http = %http.local_addr()?, "started");
    let work = async {
        tokio::join!(
            publisher.run(registered),
            driver.remove_stale_files(),
            garbage_collect_loop(&driver, args),
            async { axum::serve(http, health::router(health)).await }
        )
    };
    tokio::select! {
        biased;
        () = ended => {}
        _ = work => unreachable!("each part of the work goes on for ever"),
    }
    registration_socket.remove()?;
    stop.send_replace(true);
    // Running calls finish. A client that keeps its connection open delays the stop at most by this timeout.
    let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, async { (registration.await, dra.await) }).await;
    dra_socket.remove()?;
    Ok(())
}

async fn garbage_collect_loop(driver: &Driver, args: &PluginArgs) {
    // The first sweep waits for one interval: after a reboot the kubelet restores its pods first.
    let mut every = tokio::time::interval_at(Instant::now() + args.sweep_interval(), args.sweep_interval());
    loop {
        every.tick().await;
        driver.garbage_collect().await;
    }
}

type Serving = tokio::task::JoinHandle<Result<(), tonic::transport::Error>>;

/// A socket of this driver. The next driver of the DaemonSet may replace it while this one stops.
struct Socket {
    path: PathBuf,
    inode: u64,
}

impl Socket {
    /// Removes the socket unless another driver has replaced it.
    fn remove(&self) -> io::Result<()> {
        match std::fs::metadata(&self.path) {
            Ok(found) if found.ino() == self.inode => remove(&self.path),
            _ => Ok(()),
        }
    }
}

fn listen(
    path: &Path,
    router: tonic::transport::server::Router,
    mut stopped: watch::Receiver<bool>,
) -> anyhow::Result<(Serving, Socket)> {
    let shown = || path.display().to_string();
    let folder = path.parent().expect("a socket has a folder");
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    // The old socket belongs to a driver that was killed or is stopping: this driver takes over.
    remove(path).with_context(shown)?;
    let incoming = UnixListenerStream::new(UnixListener::bind(path).with_context(shown)?);
    let incoming = incoming.map(|socket| socket.map(with_fixed_authority));
    let inode = std::fs::metadata(path).with_context(shown)?.ino();
    let ended = async move {
        // An error means that the sender was dropped, which stops the service too.
        let _ = stopped.wait_for(|stopped| *stopped).await;
    };
    let serving = tokio::spawn(router.serve_with_incoming_shutdown(incoming, ended));
    Ok((serving, Socket { path: path.to_owned(), inode }))
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
