//! Check 3: the cost of physical handles and of contexts.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use sluice_memory::cuda::{Chunk, Range};

use super::check::Check;
use crate::Error;
use crate::bench::Bench;
use crate::child_process::ChildProcess;
use crate::report::Answer;
use crate::results::{EventSink, Findings};
use crate::statistics::{Figure, timed};

mod chunks;
pub mod context;
mod cublas;
pub mod exporter;

use chunks::{CHUNK, CHUNKS, chunk_offsets, handles, remap_all, unmap_all};

/// Check 3.
pub const CHECK: Check = Check {
    id: 3,
    name: "handles",
    text: "Does growing by 100 x 2 MiB from a pool of handles stay within 10 ms? What do handles, a peer's memory and \
           contexts cost?",
    mib: 704,
    quick_mib: 448,
    limit: Duration::from_secs(75),
    ask,
};

/// Time budget for growing, in microseconds.
const BUDGET_US: f64 = 10_000.0;

fn ask(bench: &Bench, findings: &mut Findings<'_>) -> Result<Answer, Error> {
    for mib in bench.setup.pick(&[2_u64, 64][..], &[2, 16, 64, 256]) {
        findings.figures.extend(one_size(bench, *mib)?);
    }
    let grown = grow(bench, &mut findings.figures)?;
    import_from_peer(bench, &mut findings.figures)?;
    if let Err(error) = context::cost(bench, findings) {
        findings.notes.push(format!("the memory of contexts was not measured: {error}"));
    }
    Ok(Answer::of(grown <= BUDGET_US, || format!("it takes {:.1} ms", grown / 1000.0)))
}

/// Measures each call on a handle of this size.
fn one_size(bench: &Bench, mib: u64) -> Result<Vec<Figure>, Error> {
    let bytes = mib << 20;
    let mut range = Range::reserve(&bench.context, bytes)?;
    let mut us: [Vec<f64>; 6] = Default::default();
    for _ in 0..bench.setup.pick(4, 20) {
        let [create, export, map, allow, unmap, release] = &mut us;
        let handle = timed(create, || Chunk::create(&bench.context, bytes))?;
        drop(timed(export, || handle.export())?);
        timed(map, || range.map(0, &handle))?;
        timed(allow, || range.set_access(0, bytes))?;
        timed(unmap, || range.unmap(0))?;
        timed(release, || handle.release())?;
    }
    let names = ["create", "export", "map", "set access", "unmap", "release"];
    let figures = names.iter().zip(&us).map(|(name, us)| Figure::of(format!("{name}, {mib} MiB"), "us", us));
    Ok(figures.collect())
}

/// Maps 100 handles of a pool. Returns the median time in microseconds with one call that sets access for all.
fn grow(bench: &Bench, figures: &mut EventSink<'_, Figure>) -> Result<f64, Error> {
    let pool = handles(bench)?;
    let mut range = Range::reserve(&bench.context, CHUNKS * CHUNK)?;
    let (mut once, mut each, mut shrink) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.setup.pick(3, 15) {
        timed(&mut once, || remap_all(&mut range, &pool))?;
        timed(&mut shrink, || unmap_all(&mut range))?;
        timed(&mut each, || {
            chunk_offsets().zip(&pool).try_for_each(|(at, handle)| range.map_with_access(at, handle))
        })?;
        unmap_all(&mut range)?;
    }
    figures.push(Figure::of("grow by 100 x 2 MiB, access set once", "us", &once));
    figures.push(Figure::of("grow by 100 x 2 MiB, access set for each", "us", &each));
    figures.push(Figure::of("shrink by 100 x 2 MiB", "us", &shrink));
    Ok(crate::statistics::median_of(&once))
}

/// Obtains the same 100 chunks from a peer in two ways: the peer releases them and this process creates new ones, or
/// the peer passes descriptors.
fn import_from_peer(bench: &Bench, figures: &mut EventSink<'_, Figure>) -> Result<(), Error> {
    let mut peer = ChildProcess::start(bench.setup, exporter::ROLE.0)?;
    let mut range = Range::reserve(&bench.context, CHUNKS * CHUNK)?;
    let (mut created, mut handed) = (Vec::new(), Vec::new());
    for _ in 0..bench.setup.pick(2, 10) {
        order(&mut peer, exporter::ExporterCommand::Fill)?;
        let got = timed(&mut created, || {
            order(&mut peer, exporter::ExporterCommand::Release)?;
            let got = handles(bench)?;
            remap_all(&mut range, &got)?;
            Ok::<_, Error>(got)
        })?;
        unmap_all(&mut range)?;
        drop(got);
        order(&mut peer, exporter::ExporterCommand::Fill)?;
        let got = timed(&mut handed, || {
            let fds = order(&mut peer, exporter::ExporterCommand::HandOver)?;
            let import = |fd: &OwnedFd| Chunk::import(&bench.context, fd.as_fd(), CHUNK);
            let got = fds.iter().map(import).collect::<Result<Vec<_>, _>>()?;
            remap_all(&mut range, &got)?;
            Ok::<_, Error>(got)
        })?;
        unmap_all(&mut range)?;
        drop(got);
    }
    figures.push(Figure::of("peer: 100 x 2 MiB released, created here", "us", &created));
    figures.push(Figure::of("peer: 100 x 2 MiB handed over as fds", "us", &handed));
    peer.stop()
}

fn order(peer: &mut ChildProcess, order: exporter::ExporterCommand) -> Result<Vec<OwnedFd>, Error> {
    peer.send(&order, &[])?;
    let ((), fds) = peer.recv()?;
    Ok(fds)
}
