//! Looks at a worker: resolves its name and queries it there.

use super::descriptions::describe::{DiscoveryError, Subject, assume, discover};
use super::descriptions::description::Description;
use super::health_counts::HealthCounts;
use super::model_text::{FoundText, ModelDirs};
use super::names::followed_name::{FollowedName, NameChange, change, tried};
use super::probe::Probe;
use super::worker_look::WorkerLook;
use forebay_config::WorkerUrl;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::time::Instant;
use tracing::{debug, info};

impl Probe {
    /// Resolves the worker's name, if that is due.
    pub(super) async fn look_up(
        &self,
        name: &mut FollowedName,
        now: Instant,
        was_well: bool,
    ) -> Vec<SocketAddr> {
        if self.subject.is_address || !name.take_due(now, was_well) {
            return Vec::new();
        }
        let found = self.name.addresses(self.health.timeout).await;
        found.unwrap_or_else(|error| {
            debug!(worker = self.worker(), %error, "its name is not looked up again");
            Vec::new()
        })
    }

    /// Follows the name to its new address; true if the worker must be described there.
    pub(super) fn follow(
        &self,
        found: &[SocketAddr],
        reached: &HealthCounts,
        is_well: bool,
    ) -> bool {
        let authority = &self.subject.url.authority;
        let change = change(self.clients.address(authority), found, reached.is_up(), is_well);
        if let NameChange::Ask(at) = change {
            self.clients.aim(authority, Some(at));
        }
        change == NameChange::Moved
    }

    /// Describes the worker at the first of its addresses that responds.
    pub(crate) async fn look(&self) -> Result<WorkerLook, String> {
        let WorkerUrl { host, authority, .. } = &self.subject.url;
        let found = self.name.addresses(self.health.timeout).await;
        let found = found.map_err(|error| error.to_string())?;
        let before = self.clients.address(authority);
        let mut fault = None;
        for address in tried(before, found) {
            self.clients.aim(authority, Some(address));
            match self.description_at(address).await {
                Ok(description) => {
                    let texts = self.texts_of(&description).await;
                    if before.is_some_and(|before| before != address) {
                        info!(worker = self.worker(), %address, "worker is at another address now");
                    }
                    return Ok(WorkerLook { address, description, texts });
                }
                Err(error) => {
                    self.clients.aim(authority, before);
                    let is_unreached = error.is_unreached();
                    fault.get_or_insert(error);
                    if !is_unreached {
                        break;
                    }
                }
            }
        }
        Err(fault.map_or_else(|| format!("{host}: no address"), |fault| fault.to_string()))
    }

    async fn description_at(&self, address: SocketAddr) -> Result<Description, DiscoveryError> {
        let subject = Subject {
            config: &self.subject.config,
            engine: self.subject.engine,
            url: &self.subject.url,
            ip: address.ip(),
            taken_ports: &self.subject.taken_ports,
        };
        if self.health.enabled {
            discover(&self.patient(), subject).await
        } else {
            Ok(assume(subject)?)
        }
    }

    async fn texts_of(&self, description: &Description) -> BTreeMap<Arc<str>, FoundText> {
        let dirs = ModelDirs {
            of_worker: self.subject.config.model_dir.as_deref(),
            of_all: self.subject.model_dir.as_deref(),
        };
        self.texts.find_all(description, dirs).await
    }
}
