//! Reads the operator's requests from the audit log.

use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;

use sluice_e2e::cluster::{Api, audit};

/// The operator's requests in the audit log; each record is returned once.
pub struct AuditCounts {
    log: PathBuf,
    user: String,
    read: u64,
    refused: Vec<String>,
}

impl AuditCounts {
    /// Counts the requests of `user`.
    pub fn of(server: &Api, user: &str) -> AuditCounts {
        let log = server.audit_log_path().expect("the server is ours");
        AuditCounts { log, user: user.to_owned(), read: 0, refused: Vec::new() }
    }

    /// Returns the writes since the last call, without those of the Lease: verb, resource, namespace and name.
    pub fn writes(&mut self) -> Vec<String> {
        let records: Vec<audit::Record> = self.new_records();
        let own = records.into_iter().filter(|record| record.stage == "ResponseComplete");
        let own: Vec<_> = own.filter(|record| record.user.username == self.user).collect();
        self.refused.extend(own.iter().filter(|record| record.answer.code == 403).map(summary));
        let changes = own.iter().filter(|record| !["get", "list", "watch"].contains(&record.verb.as_str()));
        let lease = |record: &&audit::Record| {
            record.object.as_ref().is_some_and(|object| object.resource == "leases")
        };
        changes.filter(|record| !lease(record)).map(summary).collect()
    }

    /// Requests that the API server denied so far.
    pub fn refused(&self) -> &[String] {
        &self.refused
    }

    /// Returns new records of the log that concern the operator.
    fn new_records(&mut self) -> Vec<audit::Record> {
        let mut file = std::fs::File::open(&self.log).expect("the log is there");
        file.seek(SeekFrom::Start(self.read)).expect("it only grows");
        let mut text = String::new();
        file.read_to_string(&mut text).expect("the log is text");
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        self.read += whole as u64;
        let own = text[..whole].lines().filter(|line| line.contains(&self.user));
        own.map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"))).collect()
    }
}

fn summary(record: &audit::Record) -> String {
    let object = record.object.clone().unwrap_or_default();
    let slash = if object.subresource.is_empty() { "" } else { "/" };
    let (verb, kind, sub) = (&record.verb, &object.resource, &object.subresource);
    format!("{verb}:{kind}{slash}{sub} {}/{} -> {}", object.namespace, object.name, record.answer.code)
}
