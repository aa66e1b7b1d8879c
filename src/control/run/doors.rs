//! What clients have to show, from the start on and as keys of tokens change.

use super::super::error::ControlError;
use super::super::fleet::Fleet;
use super::super::lifecycle;
use super::super::shown::TokenKeysSource;
use super::super::tls::TlsSetup;
use super::Control;
use forebay_config::Config;
use forebay_keys::{KeyRing, TokenKeys};
use std::sync::Arc;

impl Control {
    /// Tells the fleet what clients have to show, and where keys of tokens come from.
    pub(super) fn set_doors(
        fleet: &mut Fleet,
        config: &Arc<Config>,
        keys: Option<KeyRing>,
        tls: &TlsSetup,
    ) -> Result<Option<TokenKeysSource>, ControlError> {
        fleet.set_config(Arc::clone(config), keys.map(Arc::new));
        fleet.set_tls(tls);
        lifecycle::take_image_key(config, fleet);
        let token_keys = TokenKeysSource::start(config)?;
        if let Some(source) = &token_keys {
            // From the first request on: without keys each token is refused.
            fleet.set_tokens(source.verifier(TokenKeys::default()));
        }
        Ok(token_keys)
    }

    /// Takes what was read since, and asks for more if a client shows a token of another key.
    pub(super) fn renew_token_keys(&mut self) {
        let Some(source) = &mut self.token_keys else { return };
        if self.fleet.lacks_token_key() {
            source.ask();
        }
        let waits_no_more = source.stop_waiting(self.env.clock.now() >= self.env.first_fleet_at);
        let keys = source.take();
        let is_new = keys.is_some();
        if let Some(keys) = keys {
            self.fleet.set_tokens(source.verifier(keys));
        }
        if is_new || waits_no_more {
            self.publish();
        }
    }
}
