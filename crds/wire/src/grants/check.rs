//! What must hold within a message about grants, and between a request and its answer.

use super::{GrantAnswer, GrantRequest, Participant};
use crate::directive;
use crate::message::Invalid;

/// Longest time to live, milliseconds: ten minutes.
pub const MAX_TTL_MS: u64 = 600_000;
/// Most grants in one message.
pub const MAX_NONCES: usize = 256;

impl GrantRequest {
    /// Checks everything that can be checked without the ledger.
    ///
    /// # Errors
    /// The first field that is not as it must be.
    pub fn check(&self, chunk_bytes: u64) -> Result<(), Invalid> {
        match self {
            GrantRequest::Ask { borrower, nonce, bytes, ttl_ms } => {
                check_participant("request.Ask.borrower", borrower)?;
                check_not_zero("request.Ask.nonce", *nonce)?;
                check_whole_chunks("request.Ask.bytes", *bytes, chunk_bytes)?;
                check_ttl("request.Ask.ttl_ms", *ttl_ms)
            }
            GrantRequest::Renew { borrower, nonces: names, ttl_ms } => {
                check_participant("request.Renew.borrower", borrower)?;
                check_nonces("request.Renew.nonces", names, 1)?;
                check_ttl("request.Renew.ttl_ms", *ttl_ms)
            }
            GrantRequest::Revoke { lender, nonce, bytes, why: _ } => {
                check_participant("request.Revoke.lender", lender)?;
                check_not_zero("request.Revoke.nonce", *nonce)?;
                check_whole_chunks("request.Revoke.bytes", *bytes, chunk_bytes)
            }
            GrantRequest::Cancel { borrower, nonce } => {
                check_participant("request.Cancel.borrower", borrower)?;
                check_not_zero("request.Cancel.nonce", *nonce)
            }
        }
    }
}

impl GrantAnswer {
    /// Checks that this answers `request`.
    ///
    /// # Errors
    /// The first field that is not as it must be.
    pub fn check(&self, request: &GrantRequest, chunk_bytes: u64) -> Result<(), Invalid> {
        use GrantAnswer::{Cancelled, Granted, Refused, Renewed, Returned, Returning};
        match (self, request) {
            (Refused { after_ms, .. }, _) => {
                after_ms.map_or(Ok(()), |ms| check_ttl("answer.Refused.after_ms", ms))
            }
            (
                Granted { nonce, bytes, ttl_ms, lender },
                GrantRequest::Ask { nonce: asked, bytes: most, .. },
            ) => {
                check_nonce("answer.Granted.nonce", *nonce, *asked)?;
                check_partial("answer.Granted.bytes", *bytes, *most, chunk_bytes)?;
                check_ttl("answer.Granted.ttl_ms", *ttl_ms)?;
                check_participant("answer.Granted.lender", lender)
            }
            (Renewed { nonces: names, ttl_ms }, GrantRequest::Renew { nonces: asked, .. }) => {
                check_nonces("answer.Renewed.nonces", names, 0)?;
                if let Some(other) = names.iter().find(|nonce| !asked.contains(nonce)) {
                    return Err(Invalid::new("answer.Renewed.nonces", format!("{other} was not requested")));
                }
                check_ttl("answer.Renewed.ttl_ms", *ttl_ms)
            }
            (
                Returning { nonce, bytes, within_ms },
                GrantRequest::Revoke { nonce: asked, bytes: most, .. },
            ) => {
                check_nonce("answer.Returning.nonce", *nonce, *asked)?;
                check_partial("answer.Returning.bytes", *bytes, *most, chunk_bytes)?;
                check_ttl("answer.Returning.within_ms", *within_ms)
            }
            (Returned { nonce, bytes }, GrantRequest::Revoke { nonce: asked, bytes: most, .. }) => {
                check_nonce("answer.Returned.nonce", *nonce, *asked)?;
                check_partial("answer.Returned.bytes", *bytes, *most, chunk_bytes)
            }
            (Cancelled { nonce }, GrantRequest::Cancel { nonce: asked, .. }) => {
                check_nonce("answer.Cancelled.nonce", *nonce, *asked)
            }
            _ => Err(Invalid::new("answer", "does not match the request")),
        }
    }
}

fn check_participant(field: &str, participant: &Participant) -> Result<(), Invalid> {
    directive::check_name(&format!("{field}.namespace"), &participant.namespace)?;
    directive::check_name(&format!("{field}.name"), &participant.name)?;
    check_not_zero(&format!("{field}.instance"), participant.instance)
}

fn check_not_zero(field: &str, value: u64) -> Result<(), Invalid> {
    if value == 0 { Err(Invalid::new(field, "must not be 0")) } else { Ok(()) }
}

fn check_nonce(field: &str, nonce: u64, asked: u64) -> Result<(), Invalid> {
    if nonce == asked {
        Ok(())
    } else {
        Err(Invalid::new(field, format!("{nonce} does not match the request, {asked}")))
    }
}

fn check_whole_chunks(field: &str, bytes: u64, chunk_bytes: u64) -> Result<(), Invalid> {
    if bytes > 0 && bytes.is_multiple_of(chunk_bytes) {
        return Ok(());
    }
    Err(Invalid::new(
        field,
        format!("{bytes} bytes are not a multiple of the chunk size, {chunk_bytes} bytes"),
    ))
}

fn check_partial(field: &str, bytes: u64, most: u64, chunk_bytes: u64) -> Result<(), Invalid> {
    check_whole_chunks(field, bytes, chunk_bytes)?;
    if bytes <= most {
        return Ok(());
    }
    Err(Invalid::new(field, format!("{bytes} bytes exceed the requested {most} bytes")))
}

fn check_nonces(field: &str, nonces: &[u64], least: usize) -> Result<(), Invalid> {
    if !(least..=MAX_NONCES).contains(&nonces.len()) {
        return Err(Invalid::new(
            field,
            format!("{} entries, but {least} to {MAX_NONCES} are allowed", nonces.len()),
        ));
    }
    nonces.iter().try_for_each(|nonce| check_not_zero(field, *nonce))
}

fn check_ttl(field: &str, ms: u64) -> Result<(), Invalid> {
    if (1..=MAX_TTL_MS).contains(&ms) {
        return Ok(());
    }
    Err(Invalid::new(field, format!("{ms} ms, but 1 to {MAX_TTL_MS} ms are allowed")))
}
