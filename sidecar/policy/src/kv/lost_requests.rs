//! The requests whose KV was lost in a failed copy, until the scheduler takes them.

use alloc::vec::Vec;

use crate::ids::RequestId;

/// Requests that must be closed and recomputed.
#[derive(Clone, Debug, Default)]
pub struct LostRequests(Vec<RequestId>);

impl LostRequests {
    /// Adds requests.
    pub fn add(&mut self, requests: Vec<RequestId>) {
        self.0.extend(requests);
    }

    /// Adds each request once, however many copies failed. Returns the number of those that were not lost before.
    pub fn add_new(&mut self, requests: Vec<RequestId>) -> u32 {
        let before = self.0.len();
        for request in requests {
            if !self.contains(request) {
                self.0.push(request);
            }
        }
        (self.0.len() - before) as u32
    }

    /// Whether the request is lost and was not taken yet.
    pub fn contains(&self, request: RequestId) -> bool {
        self.0.contains(&request)
    }

    /// Takes all requests.
    pub fn take(&mut self) -> Vec<RequestId> {
        core::mem::take(&mut self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_is_lost_once_until_it_is_taken() {
        let mut lost = LostRequests::default();
        assert_eq!(lost.add_new([1, 2, 1].map(RequestId).to_vec()), 2);
        assert_eq!(lost.add_new([2, 3].map(RequestId).to_vec()), 1);
        assert!(lost.contains(RequestId(3)) && !lost.contains(RequestId(4)));
        assert_eq!(lost.take(), [1, 2, 3].map(RequestId));
        assert_eq!(lost.add_new([1].map(RequestId).to_vec()), 1, "it is lost again");
    }
}
