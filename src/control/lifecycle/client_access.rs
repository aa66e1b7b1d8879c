//! Terms on which clients get in: API keys, tokens, certificates, and the secret that names images.
//! The files are read at start and with each reload. Shards get the terms with the published fleet.

use super::super::environment::ChangedKeys;
use super::super::error::ControlError;
use super::super::tls::ServerTls;
use super::token_keys::TokenKeysSource;
use forebay_config::{Changes, Config, read_token};
use forebay_fleet::tenant::Tenants;
use forebay_fleet::worker::FleetSnapshot;
use forebay_keys::{KeyRing, TokenKeys, TokenRules, TokenVerifier};
use forebay_text::ImageKey;
use std::sync::Arc;
use tracing::{error, info, warn};

/// The file of this key is read again at each reload.
const IMAGE_KEY: &str = "image_key_file";

/// Terms of the shards' ports.
pub(crate) struct ClientAccess {
    tenants: Arc<Tenants>,
    /// Certificates for clients; `None` in plain text.
    tls: Option<ServerTls>,
    image_key: Option<ImageKey>,
    /// Source of the keys that sign tokens, if clients may send tokens.
    token_keys: Option<TokenKeysSource>,
}

impl ClientAccess {
    /// # Errors
    /// [`TokenKeysSource::start`].
    pub(crate) fn open(
        config: &Config,
        keys: Option<KeyRing>,
        tls: Option<ServerTls>,
    ) -> Result<Self, ControlError> {
        let keys = keys.map(Arc::new);
        let tenants = Tenants::new(&Tenants::default(), &config.flow.tenants, keys);
        let token_keys = TokenKeysSource::start(config)?;
        let mut access = Self { tenants: Arc::new(tenants), tls, image_key: None, token_keys };
        access.read_image_key(config);
        if let Some(source) = &access.token_keys {
            // From the first request on: without keys each token is refused.
            access.set_tokens(source.verifier(TokenKeys::default()));
        }
        Ok(access)
    }

    /// Puts the terms into a fleet that is about to be published.
    pub(crate) fn equip(&self, fleet: &mut FleetSnapshot) {
        fleet.tenants = Arc::clone(&self.tenants);
        fleet.serving.acceptor = self.tls.as_ref().map(ServerTls::acceptor);
        fleet.serving.image_key.clone_from(&self.image_key);
    }

    /// Does the first fleet have to wait for token keys?
    pub(crate) fn is_waiting(&self) -> bool {
        self.token_keys.as_ref().is_some_and(TokenKeysSource::is_waiting)
    }

    /// Takes token keys that were read since, and asks for more after a token of an unknown key.
    /// True if the shards need the fleet again. `is_late`: the first fleet waits no longer.
    pub(super) fn renew_token_keys(&mut self, is_late: bool) -> bool {
        let Some(source) = &mut self.token_keys else { return false };
        if self.tenants.tokens().is_some_and(|verifier| verifier.take_lack()) {
            source.ask();
        }
        let waits_no_more = source.stop_waiting(is_late);
        let verifier = source.take().map(|keys| source.verifier(keys));
        let is_new = verifier.is_some();
        verifier.into_iter().for_each(|verifier| self.set_tokens(verifier));
        is_new || waits_no_more
    }

    /// API keys that count from now on. The check has read the same file a moment ago; should it be
    /// faulty by now, the earlier keys stay.
    pub(super) fn read_keys(
        &self,
        running: &Config,
        changes: &mut Changes,
    ) -> Option<Arc<KeyRing>> {
        let path = running.api_keys.as_deref()?;
        let before = self.tenants.keys();
        let keys = match forebay_keys::read(path) {
            Ok(keys) if keys.keys().is_empty() && !keys.is_emptied() && before.is_some() => {
                warn!(
                    "`api_keys` {}: there is no key in it, as if it was about to be written; the \
                     keys stay as they were. To lock all clients out, write `key = []`",
                    path.display()
                );
                return before.map(Arc::clone);
            }
            Ok(keys) => Arc::new(keys),
            Err(error) => {
                error!("`api_keys` {}: {error}; the keys stay as they were", path.display());
                // Without earlier keys, no key is better than a router that is open to all.
                return Some(before.map(Arc::clone).unwrap_or_default());
            }
        };
        if before.is_none_or(|before| **before != *keys) {
            changes.also_applied("api_keys");
        }
        info!(keys = keys.keys().len(), "API keys read");
        Some(keys)
    }

    /// Reads the secret that names images; logs a changed secret as an applied key. The check has
    /// read the same file a moment ago; should it be faulty by now, the earlier secret stays.
    pub(super) fn reread_image_key(&mut self, running: &Config, changes: &mut Changes) {
        if self.read_image_key(running) {
            changes.also_applied(IMAGE_KEY);
        }
    }

    /// Takes the configuration that was read again, with its keys. Without `keys`, clients need no
    /// key.
    pub(super) fn take_config(&mut self, config: &Config, keys: Option<Arc<KeyRing>>) {
        self.tenants = Arc::new(Tenants::new(&self.tenants, &config.flow.tenants, keys));
        if let Some(tls) = &mut self.tls
            && let Some(files) = config.accept_files()
        {
            tls.read_again(&files);
        }
    }

    /// Starts the source of token keys again if its keys of the configuration or its certificate
    /// authorities have changed.
    pub(super) fn follow_token_keys(&mut self, config: &Config, changed: &ChangedKeys<'_>) {
        let is_outdated = |source: &TokenKeysSource| source.is_outdated(config);
        if !changed.any(&["jwt."]) && !self.token_keys.as_ref().is_some_and(is_outdated) {
            return;
        }
        match TokenKeysSource::start(config) {
            Ok(source) => {
                let rules = source.as_ref().map(TokenKeysSource::rules);
                self.set_token_rules(rules, !changed.any(&["jwt.jwks"]));
                self.token_keys = source;
            }
            Err(error) => error!("`jwt.jwks`: {error}; tokens are checked as before"),
        }
    }

    /// True if the secret has changed.
    fn read_image_key(&mut self, config: &Config) -> bool {
        match config.image_key_file.as_deref().map(read_token).transpose() {
            Ok(secret) => {
                let key = secret.map(|secret| ImageKey::new(&secret));
                let is_new = self.image_key != key;
                self.image_key = key;
                is_new
            }
            Err(error) => {
                error!(
                    "`{IMAGE_KEY}` {error}; the secret stays as it was: mend the file and reload"
                );
                false
            }
        }
    }

    /// Checks the tokens of clients from the next published fleet on.
    fn set_tokens(&mut self, verifier: TokenVerifier) {
        let tenants = (*self.tenants).clone().with_tokens(Arc::new(verifier));
        self.tenants = Arc::new(tenants);
    }

    /// Without rules, tokens count for nothing. Keys from the same place stay.
    fn set_token_rules(&mut self, rules: Option<TokenRules>, is_same_place: bool) {
        let before = self.tenants.tokens().filter(|_| is_same_place);
        let verifier = rules.map(|rules| match before {
            Some(before) => before.with_rules(rules),
            None => TokenVerifier::new(rules, TokenKeys::default()),
        });
        let tenants = (*self.tenants).clone();
        self.tenants = Arc::new(match verifier {
            Some(verifier) => tenants.with_tokens(Arc::new(verifier)),
            None => tenants.without_tokens(),
        });
    }
}
