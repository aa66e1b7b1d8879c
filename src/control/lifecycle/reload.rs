//! The configuration read again while the router runs: on SIGHUP and `POST /admin/reload`. What may
//! change reaches the shards with the next fleet; what is wrong with the file, or needs a restart,
//! is logged and answered. Reads small files on the control plane's thread; shards do not wait
//! for it.

use super::super::fleet::Fleet;
use super::super::tls::ServerTls;
use forebay_admin::{ReloadRefused, Reloaded};
use forebay_config::{Changes, Config, Finding, ReloadError, Reloader, Severity, read_token};
use forebay_keys::KeyRing;
use forebay_text::ImageKey;
use std::sync::Arc;
use tracing::{error, info, warn};

/// Its file is read again at each reload.
const IMAGE_KEY: &str = "image_key_file";

/// Reads again and puts what may change into `config` and the fleet, which then has to be
/// published.
pub(in crate::control) fn reload(
    reloader: Option<&mut Reloader>,
    config: &mut Arc<Config>,
    fleet: &mut Fleet,
    tls: Option<&mut ServerTls>,
) -> Result<Reloaded, ReloadRefused> {
    let Some(reloader) = reloader else { return Err(ReloadRefused::NoSource) };
    let (mut changes, warnings) = match reloader.reload() {
        Ok(done) => done,
        Err(refused) => {
            match &refused {
                ReloadError::Unreadable(reason) => {
                    error!(reason, "not reloaded: the configuration stays as it was");
                }
                ReloadError::Faulty(findings) => {
                    findings.iter().for_each(log);
                    error!("not reloaded: the configuration stays as it was");
                }
            }
            return Err(ReloadRefused::Faulty(refused));
        }
    };
    warnings.iter().for_each(log);
    let running = reloader.running();
    let keys = keys_of(running, fleet, &mut changes);
    if take_image_key(running, fleet) {
        changes.also_applied(IMAGE_KEY);
    }
    info!(applied = ?changes.applied, needs_restart = ?changes.restart, "configuration reloaded");
    *config = Arc::new(reloader.running_as(config));
    fleet.set_config(Arc::clone(config), keys);
    if let (Some(tls), Some(files)) = (tls, config.accept_files()) {
        tls.read_again(&files);
        fleet.set_acceptor(Some(tls.acceptor()));
    }
    Ok(Reloaded { changes, warnings })
}

/// The keys that count from now on. The check has read the same file a moment ago; should it be
/// faulty by now, the keys of before stay.
fn keys_of(running: &Config, fleet: &Fleet, changes: &mut Changes) -> Option<Arc<KeyRing>> {
    let path = running.api_keys.as_deref()?;
    let before = fleet.keys();
    let keys = match forebay_keys::read(path) {
        Ok(keys) if keys.keys().is_empty() && !keys.is_emptied() && before.is_some() => {
            warn!(
                "`api_keys` {}: there is no key in it, as if it was about to be written; the keys \
                 stay as they were. To lock all clients out, write `key = []`",
                path.display()
            );
            return before.map(Arc::clone);
        }
        Ok(keys) => Arc::new(keys),
        Err(error) => {
            error!("`api_keys` {}: {error}; the keys stay as they were", path.display());
            // Without any before, none is better than a router that is open to all.
            return Some(before.map(Arc::clone).unwrap_or_default());
        }
    };
    if before.is_none_or(|before| **before != *keys) {
        changes.also_applied("api_keys");
    }
    info!(keys = keys.keys().len(), "API keys read");
    Some(keys)
}

/// The secret by which images get names from now on; true if it is another one. The check has read
/// the same file a moment ago; should it be faulty by now, images get the names of before.
pub(in crate::control) fn take_image_key(config: &Config, fleet: &mut Fleet) -> bool {
    match config.image_key_file.as_deref().map(read_token).transpose() {
        Ok(secret) => fleet.set_image_key(secret.map(|secret| ImageKey::new(&secret))),
        Err(error) => {
            error!("`{IMAGE_KEY}` {error}; the secret stays as it was: mend the file and reload");
            false
        }
    }
}

fn log(finding: &Finding) {
    match finding.severity {
        Severity::Error => error!("{finding}"),
        Severity::Warning => warn!("{finding}"),
    }
}
