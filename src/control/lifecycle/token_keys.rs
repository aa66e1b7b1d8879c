//! Source of token keys: a file that is read again when it changes, or a URL that is fetched
//! periodically. After a failure the earlier keys stay.

use super::super::error::ControlError;
use forebay_config::{Config, JwksUrl, JwtConfig};
use forebay_discovery::JwksFetch;
use forebay_keys::{TokenKeys, TokenRules, TokenVerifier, read_token_keys};
use forebay_tls::Connector;
use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, SystemTime};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::sleep;
use tracing::{info, warn};

/// Shortest time between two fetches, and the wait after a failure.
const FETCH_PAUSE: Duration = Duration::from_secs(5);
/// Longest wait for an answer.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
/// Time between two checks of the file.
const FILE_PERIOD: Duration = Duration::from_secs(1);

/// The source of the keys in `jwt.jwks`.
#[derive(Debug)]
pub(super) struct TokenKeysSource {
    rules: TokenRules,
    news: Rc<KeyNews>,
    /// TLS to the server of the URL.
    connector: Option<Connector>,
    /// Nothing was read yet.
    is_waiting: bool,
    reading: AbortHandle,
}

impl Drop for TokenKeysSource {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

/// Keys from the task that reads, for the control plane.
#[derive(Debug, Default)]
struct KeyNews {
    fresh: RefCell<Option<TokenKeys>>,
    /// The first attempt has ended.
    has_tried: Cell<bool>,
    wanted: Notify,
}

impl TokenKeysSource {
    /// Begins to read. `None` where no tokens are configured.
    ///
    /// # Errors
    /// No connection to the server of the URL can ever be made.
    pub(super) fn start(config: &Config) -> Result<Option<Self>, ControlError> {
        let Some(place) = &config.jwt.jwks else { return Ok(None) };
        let news = Rc::new(KeyNews::default());
        let of_task = Rc::clone(&news);
        let mut connector = None;
        let reading = if let Some(Ok(url)) = JwksUrl::parse(place) {
            connector = config.jwks_connector(&url).map_err(ControlError::Jwks)?;
            let fetch = JwksFetch::new(&config.timeouts, &url, connector.as_ref(), FETCH_TIMEOUT);
            let fetch = fetch.map_err(ControlError::Client)?;
            tokio::task::spawn_local(follow_url(fetch, config.jwt.refresh, of_task))
        } else {
            let mut file = WatchedFile { path: PathBuf::from(place), seen: None };
            file.look(&news);
            tokio::task::spawn_local(follow_file(file, of_task))
        };
        let rules = rules(&config.jwt);
        let reading = reading.abort_handle();
        Ok(Some(Self { rules, news, connector, is_waiting: true, reading }))
    }

    /// True if the certificate authorities for the URL's server have changed.
    pub(super) fn is_outdated(&self, config: &Config) -> bool {
        let Some(Ok(url)) = config.jwt.jwks.as_deref().and_then(JwksUrl::parse) else {
            return false;
        };
        let now = config.jwks_connector(&url).ok().flatten();
        now.zip(self.connector.as_ref()).is_some_and(|(now, before)| !now.is_like(before))
    }

    /// Checks tokens by these keys.
    pub(super) fn verifier(&self, keys: TokenKeys) -> TokenVerifier {
        TokenVerifier::new(self.rules.clone(), keys)
    }

    /// Keys that were read since the last call.
    pub(super) fn take(&self) -> Option<TokenKeys> {
        self.news.fresh.take()
    }

    /// Rules that tokens have to meet.
    pub(super) fn rules(&self) -> TokenRules {
        self.rules.clone()
    }

    /// Requests another fetch of the URL.
    pub(super) fn ask(&self) {
        self.news.wanted.notify_one();
    }

    /// Does the first fleet have to wait? Valid tokens would be refused.
    pub(super) const fn is_waiting(&self) -> bool {
        self.is_waiting
    }

    /// True if the wait ends now: the first attempt has ended, or it takes too long.
    pub(super) fn stop_waiting(&mut self, is_late: bool) -> bool {
        let ends = self.is_waiting && (is_late || self.news.has_tried.get());
        self.is_waiting &= !ends;
        ends
    }
}

fn rules(jwt: &JwtConfig) -> TokenRules {
    TokenRules {
        issuer: jwt.issuer.clone(),
        audience: jwt.audience.clone(),
        tenant_claim: jwt.tenant_claim.clone(),
        models_claim: jwt.models_claim.clone(),
        class_claim: jwt.class_claim.clone(),
        leeway_s: jwt.leeway.as_secs(),
    }
}

impl KeyNews {
    fn put(&self, keys: TokenKeys) {
        for why in keys.left_out() {
            warn!("`jwt.jwks`: a key does not count: {why}");
        }
        info!(keys = keys.count(), "keys of tokens read");
        self.fresh.replace(Some(keys));
    }
}

async fn follow_url(fetch: JwksFetch, refresh: Duration, news: Rc<KeyNews>) {
    let mut last = String::new();
    let mut has_failed = false;
    loop {
        let fetched = fetch.get().await;
        let read = fetched.and_then(|text| {
            if text != last {
                news.put(TokenKeys::parse(text.as_bytes())?);
                last = text;
            }
            Ok(())
        });
        news.has_tried.set(true);
        sleep(FETCH_PAUSE).await;
        let had_failed = std::mem::replace(&mut has_failed, read.is_err());
        if let Err(what) = read {
            warn!("`jwt.jwks`: {what}; the keys stay as they were");
            continue;
        }
        if had_failed {
            info!("`jwt.jwks` can be read again");
        }
        let rest = refresh.saturating_sub(FETCH_PAUSE);
        let _ = tokio::time::timeout(rest, news.wanted.notified()).await;
    }
}

async fn follow_file(mut file: WatchedFile, news: Rc<KeyNews>) {
    loop {
        sleep(FILE_PERIOD).await;
        file.look(&news);
    }
}

struct WatchedFile {
    path: PathBuf,
    /// Modification time and length of the file when last read.
    seen: Option<(SystemTime, u64)>,
}

impl WatchedFile {
    fn look(&mut self, news: &KeyNews) {
        news.has_tried.set(true);
        let seen = state_of(&self.path);
        if seen == self.seen && seen.is_some() {
            return;
        }
        let was_there = self.seen.is_some();
        self.seen = seen;
        match read_token_keys(&self.path) {
            Ok(keys) => news.put(keys),
            Err(what) if seen.is_some() || was_there => {
                warn!("`jwt.jwks`: {what}; the keys stay as they were");
            }
            Err(_) => {}
        }
    }
}

fn state_of(path: &Path) -> Option<(SystemTime, u64)> {
    let about = std::fs::metadata(path).ok()?;
    Some((about.modified().ok()?, about.len()))
}
