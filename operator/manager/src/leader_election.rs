//! One of the replicas leads: whoever holds the Lease.
//!
//! Whether a holder is gone is judged by this machine's own clock, from the moment at which it saw the Lease change last,
//! as Kubernetes' own controllers do: clocks of two machines are never compared. A leader that cannot renew gives up before
//! another may take over, and whoever gives up ends its process.
//! (The crate `kube-lease-manager` does neither: it compares clocks, and a leader cut off from the API server is never told.)

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, PostParams};
use tokio::time::Instant;

/// A replica's hold, or its wish for it.
#[derive(Debug)]
pub struct LeaderElection {
    api: Api<Lease>,
    name: String,
    identity: String,
    /// A holder that does not renew for so long is replaced.
    duration: Duration,
    /// What was seen last, and when it last changed.
    observed_renewal: Option<(String, Instant)>,
}

/// Why a round was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum LeaderElectionError {
    /// The API server said no, or nothing.
    #[error("Lease {name}: {error}")]
    Api {
        /// The Lease.
        name: String,
        /// What went wrong.
        error: Box<kube::Error>,
    },
    /// Somebody else holds it now.
    #[error("the Lease {name} is held by {holder}")]
    Lost {
        /// The Lease.
        name: String,
        /// Who has it.
        holder: String,
    },
    /// It could not be renewed in time.
    #[error("the Lease {name} could not be renewed for {seconds} s: {error}")]
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
    /// A replica `identity` that wants the Lease `name`, for `seconds` after each renewal.
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

    /// Waits for the Lease. Answers its number of holders so far, which rises with every leader; `None` = `stop` came before.
    /// An attempt that is under way then ends first: one that was cut off might still get the Lease, and nobody would know.
    pub async fn acquire(&mut self, stop: impl Future<Output = ()>) -> Option<u64> {
        let mut stop = std::pin::pin!(stop);
        loop {
            match tokio::time::timeout(self.duration, self.try_acquire()).await {
                Ok(Ok(Some(epoch))) => return Some(epoch),
                Ok(Ok(None)) => {}
                Ok(Err(error)) => tracing::warn!(%error, "the Lease cannot be had"),
                Err(_) => tracing::warn!("the API server does not answer"),
            }
            tokio::select! {
                () = tokio::time::sleep(self.retry_period()) => {}
                () = &mut stop => return None,
            }
        }
    }

    /// Renews the Lease for as long as that goes.
    pub async fn renew_until_lost(&self) -> LeaderElectionError {
        let mut renewed = Instant::now();
        // A third of the time is left to whoever is still writing when this gives up.
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
                    tracing::warn!(%error, "the Lease was not renewed")
                }
                Ok(Err(lost)) => return lost,
                Err(_) if renewed.elapsed() >= deadline => return self.stale_error(renewed),
                Err(_) => tracing::warn!("the API server does not answer"),
            }
        }
    }

    fn stale_error(&self, renewed: Instant) -> LeaderElectionError {
        let error = Box::new(kube::Error::Service("no answer".into()));
        LeaderElectionError::Stale { name: self.name.clone(), seconds: renewed.elapsed().as_secs(), error }
    }

    /// Gives the Lease back, so that another need not wait until it runs out.
    pub async fn release(&self) -> Result<(), LeaderElectionError> {
        let mut lease = self.get().await?.unwrap_or_default();
        if holder(&lease) == Some(&self.identity) {
            let spec = lease.spec.get_or_insert_default();
            (spec.holder_identity, spec.lease_duration_seconds) = (Some(String::new()), Some(1));
            self.replace(&lease).await?;
        }
        Ok(())
    }

    /// Sees to it that the next leader's epoch is higher than this one. Whoever does not hold the Lease leaves it alone. Answers
    /// whether it was held.
    ///
    /// # Errors
    /// The Lease could not be read or written.
    pub async fn raise_epoch(&self, epoch: u64) -> Result<bool, LeaderElectionError> {
        // Its own renewal may come in between, once in a while.
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

    /// Takes the Lease if it is free or its holder is gone. Answers its number of holders, if it was taken.
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

    /// Whether nobody holds the Lease, or who does has not renewed it for as long as it promised to.
    fn is_free(&mut self, lease: &Lease) -> bool {
        // An own life before this one: nobody else has this name.
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
                let holder = other.cloned().unwrap_or_else(|| "nobody".to_owned());
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

    /// Its version is sent along: of two that try, one is told of a conflict.
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
