//! Keys and tokens of callers, as the fleet is published with them.

use super::Fleet;
use forebay_keys::{KeyRing, TokenKeys, TokenRules, TokenVerifier};
use std::sync::Arc;

impl Fleet {
    /// Checks the tokens of clients from the next snapshot on.
    pub(in crate::control) fn set_tokens(&mut self, verifier: TokenVerifier) {
        let tenants = (*self.front.tenants).clone().with_tokens(Arc::new(verifier));
        self.front.tenants = Arc::new(tenants);
    }

    /// Tokens of clients count by these rules, or not at all. Keys that were read go on counting
    /// if they are from the same place.
    pub(in crate::control) fn set_token_rules(
        &mut self,
        rules: Option<TokenRules>,
        is_same_place: bool,
    ) {
        let before = self.front.tenants.tokens().filter(|_| is_same_place);
        let verifier = rules.map(|rules| match before {
            Some(before) => before.with_rules(rules),
            None => TokenVerifier::new(rules, TokenKeys::default()),
        });
        let tenants = (*self.front.tenants).clone();
        self.front.tenants = Arc::new(match verifier {
            Some(verifier) => tenants.with_tokens(Arc::new(verifier)),
            None => tenants.without_tokens(),
        });
    }

    /// Has a client shown a token of a key that is unknown, since the last call?
    pub(in crate::control) fn lacks_token_key(&self) -> bool {
        self.front.tenants.tokens().is_some_and(|verifier| verifier.take_lack())
    }

    /// The keys that clients may use.
    pub(in crate::control) fn keys(&self) -> Option<&Arc<KeyRing>> {
        self.front.tenants.keys()
    }
}
