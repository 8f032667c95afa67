//! A revoked API key is refused within a minute, and no pod is replaced.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sluice_e2e::cluster::within;

use super::{Rows, SUMMARY};
use crate::installed::pod::uid;
use crate::installed::{COMPLETIONS, PROMPT, completion};

/// Limit from the change of the Secret to the first refusal.
const REVOKED_WITHIN: Duration = Duration::from_secs(60);

impl Rows<'_> {
    pub async fn a_revoked_key_is_refused_within_a_minute(&self) {
        let secret = |keys: &str| json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "stringData": {"keys": keys}});
        self.product.apply(&[secret("old\nother")]);
        self.access(&json!({"apiKeysSecretRef": {"name": "keys", "key": "keys"}})).await;
        let pod = uid(&self.product.pod(SUMMARY)).to_owned();
        assert_eq!(
            [self.answer("old").await, self.answer("other").await, self.answer("no").await],
            [200, 200, 401]
        );
        let begun = Instant::now();
        self.product.apply(&[secret("other")]);
        let refused = async || (self.answer("old").await == 401).then_some(());
        within(2 * REVOKED_WITHIN, "the key that was taken out is refused", refused).await;
        let took = begun.elapsed();
        eprintln!("a revoked key was refused after {took:?}");
        assert!(took <= REVOKED_WITHIN, "{took:?}");
        assert_eq!(self.answer("other").await, 200);
        // The annotation proves the operator's part: a kubelet may also sync early by chance.
        let version = self.product.get("secret", "keys")["metadata"]["resourceVersion"].clone();
        let noted = async || {
            let pod = self.product.pod(SUMMARY);
            (pod["metadata"]["annotations"]["sluice.dev/keys-version"] == version).then_some(pod)
        };
        let after = within(2 * REVOKED_WITHIN, "the kubelet is notified", noted).await;
        assert!(begun.elapsed() <= REVOKED_WITHIN, "{:?}", begun.elapsed());
        assert_eq!(*uid(&after), pod, "no pod is replaced");
        self.access(&json!({"apiKeysSecretRef": null})).await;
    }

    /// Sets the tenant's access, which replaces its pod.
    async fn access(&self, access: &Value) {
        let before = uid(&self.product.pod(SUMMARY)).to_owned();
        self.product.change("modeltenant", SUMMARY, &json!({"access": access}));
        self.product.ready_again(SUMMARY, &|pod| *uid(pod) != before).await;
    }

    /// Returns the status of a response to a request with this key.
    async fn answer(&self, key: &str) -> u16 {
        let request = self.product.post(SUMMARY, COMPLETIONS, &completion(SUMMARY, PROMPT, 2, false));
        request.bearer_auth(key).send().await.unwrap().status().as_u16()
    }
}
