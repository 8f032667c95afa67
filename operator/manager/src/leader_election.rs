//! Leader election: the replica that holds the Lease leads.
//!
//! Whether a holder is gone is decided by the local clock, from the time of the last observed change of the Lease, as
//! in Kubernetes' own controllers: clocks of two machines are never compared. A leader that cannot renew stops before
//! another may take over, and ends its process. (The crate `kube-lease-manager` does neither: it compares clocks, and
//! does not notify a leader that is cut off from the API server.)

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, PostParams};
use tokio::time::Instant;

/// A replica that holds the Lease or is a candidate for it.
#[derive(Debug)]
pub struct LeaderElection {
    api: Api<Lease>,
    name: String,
    identity: String,
    /// A holder that does not renew for this long is replaced.
    duration: Duration,
    /// The last observed version, and when it last changed.
    observed_renewal: Option<(String, Instant)>,
}

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
pub enum LeaderElectionError {
    /// The API server rejected the request, or did not answer.
    #[error("Lease {name}: {error}")]
    Api {
        /// The Lease.
        name: String,
        /// What went wrong.
        error: Box<kube::Error>,
    },
    /// Another replica holds it now.
    #[error("Lease {name} is held by {holder}")]
    Lost {
        /// The Lease.
        name: String,
        /// The holder.
        holder: String,
    },
    /// It could not be renewed in time.
    #[error("Lease {name} could not be renewed for {seconds} s: {error}")]
    Stale {
        /// The Lease.
        name: String,
        /// For how long.
        seconds: u64,
        /// The last failure.
        error: Box<kube::Error>,
    },
}

impl LeaderElection {
    /// Returns a candidate `identity` for the Lease `name`, which is valid for `seconds` after each renewal.
    pub fn new(api: Api<Lease>, name: &str, identity: &str, seconds: u32) -> LeaderElection {
        let duration = Duration::from_secs(u64::from(seconds));
        LeaderElection {
            api,
            name: name.to_owned(),
            identity: identity.to_owned(),
            duration,
            observed_renewal: None,
        }
    }

    /// Waits for the Lease. Returns its number of holders so far, which increases with every leader; `None` = `stop`
    /// completed first. A running attempt then completes, because a cancelled one might still acquire the Lease
    /// unnoticed.
    pub async fn acquire(&mut self, stop: impl Future<Output = ()>) -> Option<u64> {
        let mut stop = std::pin::pin!(stop);
        loop {
            match tokio::time::timeout(self.duration, self.try_acquire()).await {
                Ok(Ok(Some(epoch))) => return Some(epoch),
                Ok(Ok(None)) => {}
                Ok(Err(error)) => tracing::warn!(%error, "could not acquire the Lease"),
                Err(_) => tracing::warn!("the API server did not answer a request for the Lease"),
            }
            tokio::select! {
                () = tokio::time::sleep(self.retry_period()) => {}
                () = &mut stop => return None,
            }
        }
    }

    /// Renews the Lease until that fails.
    pub async fn renew_until_lost(&self) -> LeaderElectionError {
        let mut renewed = Instant::now();
        // The last third is left for writes that are still running.
        let deadline = self.duration * 2 / 3;
        loop {
            tokio::time::sleep(self.retry_period()).await;
            let left = deadline.saturating_sub(renewed.elapsed());
            let tried = tokio::time::timeout(left.max(self.retry_period()), self.renew()).await;
            match tried {
                Ok(Ok(())) => renewed = Instant::now(),
                Ok(Err(LeaderElectionError::Api { name, error })) if renewed.elapsed() >= deadline => {
                    return LeaderElectionError::Stale { name, seconds: renewed.elapsed().as_secs(), error };
                }
                Ok(Err(LeaderElectionError::Api { error, .. })) => {
                    tracing::warn!(%error, "could not renew the Lease")
                }
                Ok(Err(lost)) => return lost,
                Err(_) if renewed.elapsed() >= deadline => return self.stale_error(renewed),
                Err(_) => tracing::warn!("the API server did not answer a request for the Lease"),
            }
        }
    }

    fn stale_error(&self, renewed: Instant) -> LeaderElectionError {
        let error = Box::new(kube::Error::Service("no answer".into()));
        LeaderElectionError::Stale { name: self.name.clone(), seconds: renewed.elapsed().as_secs(), error }
    }

    /// Releases the Lease, so that the next leader need not wait until it expires.
    pub async fn release(&self) -> Result<(), LeaderElectionError> {
        let mut lease = self.get().await?.unwrap_or_default();
        if holder(&lease) == Some(&self.identity) {
            let spec = lease.spec.get_or_insert_default();
            (spec.holder_identity, spec.lease_duration_seconds) = (Some(String::new()), Some(1));
            self.replace(&lease).await?;
        }
        Ok(())
    }

    /// Ensures that the next leader's epoch is higher than `epoch`. Only the holder changes the Lease. Returns
    /// whether this replica holds it.
    ///
    /// # Errors
    /// The Lease could not be read or written.
    pub async fn raise_epoch(&self, epoch: u64) -> Result<bool, LeaderElectionError> {
        // A concurrent renewal of this replica may conflict.
        match self.try_raise_epoch(epoch).await {
            Err(LeaderElectionError::Api { error, .. }) if is_conflict(&error) => {
                self.try_raise_epoch(epoch).await
            }
            done => done,
        }
    }

    async fn try_raise_epoch(&self, epoch: u64) -> Result<bool, LeaderElectionError> {
        let Some(mut lease) = self.get().await? else { return Ok(false) };
        if holder(&lease) != Some(&self.identity) {
            return Ok(false);
        }
        let spec = lease.spec.get_or_insert_default();
        let epoch = i32::try_from(epoch).unwrap_or(i32::MAX);
        spec.lease_transitions = spec.lease_transitions.max(Some(epoch));
        self.replace(&lease).await.map(|()| true)
    }

    fn retry_period(&self) -> Duration {
        self.duration / 8
    }

    /// Acquires the Lease if it is free or its holder is gone. Returns its number of holders, if acquired.
    async fn try_acquire(&mut self) -> Result<Option<u64>, LeaderElectionError> {
        let Some(mut lease) = self.get().await? else {
            let made = self.lease_spec(1, Some(now()));
            let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
            let lease = Lease { metadata, spec: Some(made) };
            let created = self.api.create(&PostParams::default(), &lease).await;
            return created.map(|_| Some(1)).map_err(|error| self.api_error(error));
        };
        if !self.is_free(&lease) {
            return Ok(None);
        }
        let before = lease.spec.as_ref().and_then(|spec| spec.lease_transitions).unwrap_or(0);
        let epoch = before.saturating_add(1);
        lease.spec = Some(self.lease_spec(epoch, Some(now())));
        self.replace(&lease).await?;
        Ok(Some(u64::try_from(epoch).unwrap_or(0)))
    }

    /// Whether the Lease has no holder, or its holder has not renewed it for its duration.
    fn is_free(&mut self, lease: &Lease) -> bool {
        // An earlier instance of this replica: the name is unique.
        if holder(lease).is_none_or(|holder| *holder == self.identity) {
            return true;
        }
        let version = lease.metadata.resource_version.clone().unwrap_or_default();
        let promised = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds).unwrap_or(0);
        let promised = Duration::from_secs(u64::try_from(promised).unwrap_or(0));
        match &self.observed_renewal {
            Some((seen, since)) if *seen == version => since.elapsed() >= promised,
            _ => {
                self.observed_renewal = Some((version, Instant::now()));
                false
            }
        }
    }

    async fn renew(&self) -> Result<(), LeaderElectionError> {
        let mut lease = self.get().await?.unwrap_or_default();
        match holder(&lease) {
            Some(holder) if *holder == self.identity => {}
            other => {
                let holder = other.cloned().unwrap_or_else(|| "no replica".to_owned());
                return Err(LeaderElectionError::Lost { name: self.name.clone(), holder });
            }
        }
        lease.spec.get_or_insert_default().renew_time = Some(now());
        self.replace(&lease).await
    }

    fn lease_spec(&self, transitions: i32, acquired: Option<MicroTime>) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(self.duration.as_secs()).ok(),
            lease_transitions: Some(transitions),
            acquire_time: acquired.clone(),
            renew_time: acquired,
            ..LeaseSpec::default()
        }
    }

    async fn get(&self) -> Result<Option<Lease>, LeaderElectionError> {
        self.api.get_opt(&self.name).await.map_err(|error| self.api_error(error))
    }

    /// The version is sent along, so that one of two concurrent writers gets a conflict.
    async fn replace(&self, lease: &Lease) -> Result<(), LeaderElectionError> {
        let replaced = self.api.replace(&self.name, &PostParams::default(), lease).await;
        replaced.map(drop).map_err(|error| self.api_error(error))
    }

    fn api_error(&self, error: kube::Error) -> LeaderElectionError {
        LeaderElectionError::Api { name: self.name.clone(), error: Box::new(error) }
    }
}

fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_conflict())
}

fn holder(lease: &Lease) -> Option<&String> {
    lease.spec.as_ref()?.holder_identity.as_ref().filter(|holder| !holder.is_empty())
}

fn now() -> MicroTime {
    MicroTime(Timestamp::now())
}
