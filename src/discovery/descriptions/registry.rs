//! Polls the registry of a prefill worker until all its ranks are registered. Part of the worker's
//! probe; each query has the probe's timeout.

use super::kv_source::{Registration, Registry};
use crate::http::WorkerClient;
use crate::names::lookup::Lookup;
use std::net::IpAddr;
use tracing::{info, warn};

/// State of a registry, with its last result.
#[derive(Debug)]
pub(crate) struct Registrar {
    registry: Registry,
    asker: WorkerClient,
    /// Configured host name that is sent to decode workers.
    name: Option<Lookup>,
    worker: String,
    /// Consecutive failed queries before a registered worker is removed.
    misses_max: u32,
    reported: Option<Registration>,
    misses: u32,
}

/// A registry's response, or why it is missing.
#[derive(Debug)]
enum RegistryAnswer {
    Read(Registration),
    /// The registry reports that it is not ready.
    NotReady(String),
    /// The registry did not respond, or its name was not resolved.
    Silent(String),
}

impl Registrar {
    pub(crate) fn new(
        registry: Registry,
        asker: WorkerClient,
        worker: String,
        misses_max: u32,
    ) -> Self {
        let host = &*registry.told.0;
        let port = registry.told.1;
        let is_name = registry.host_is_configured && host.parse::<IpAddr>().is_err();
        let name = is_name.then(|| Lookup::new(host, port));
        Self { registry, asker, name, worker, misses_max, reported: None, misses: 0 }
    }

    /// True if this polls the given registry.
    pub(crate) fn is_for(&self, registry: &Registry) -> bool {
        self.registry == *registry
    }

    /// True until every rank is usable.
    pub(crate) fn waits(&self) -> bool {
        self.reported.as_ref().is_none_or(|reported| reported.lacks.is_some())
    }

    /// Queries the registry; returns a changed result. Cancel-safe: dropping the future loses
    /// nothing.
    pub(crate) async fn ask(&mut self) -> Option<Registration> {
        let answer = self.answer().await;
        self.take(answer)
    }

    async fn answer(&self) -> RegistryAnswer {
        if let Some(name) = &self.name
            && let Err(error) = name.addresses(self.asker.timeout()).await
        {
            // A failure of the resolver is no word of the registry: decode workers may still
            // know the address.
            return RegistryAnswer::Silent(error.to_string());
        }
        match self.asker.get(self.registry.question()).await {
            Ok(body) => RegistryAnswer::Read(self.registry.read(&body)),
            Err(error) if error.status().is_some() => RegistryAnswer::NotReady(error.to_string()),
            Err(error) => RegistryAnswer::Silent(error.to_string()),
        }
    }

    /// Interprets a response; logs each change once.
    fn take(&mut self, answer: RegistryAnswer) -> Option<Registration> {
        let at = |why: &str| format!("the registry at {}: {why}", self.registry.base);
        let now = match answer {
            RegistryAnswer::Read(registration) => registration,
            RegistryAnswer::NotReady(why) => Registration::lacking(&at(&why)),
            RegistryAnswer::Silent(why) => {
                self.misses = self.misses.saturating_add(1);
                if !self.waits() && self.misses < self.misses_max {
                    return None;
                }
                Registration::lacking(&at(&why))
            }
        };
        if now.lacks.is_none() {
            self.misses = 0;
        }
        if self.reported.as_ref() == Some(&now) {
            return None;
        }
        let worker = &*self.worker;
        match &now.lacks {
            None => info!(worker, registry = self.registry.base, "prefill worker is registered"),
            Some(lacks) => {
                warn!(worker, "prefill worker gets no requests: it waits for {lacks}; trying on");
            }
        }
        self.reported = Some(now.clone());
        Some(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptions::kv_source::RegistryKind;
    use forebay_kv_events::test_support::block_on_local;
    use std::time::Duration;

    fn registrar() -> Registrar {
        let registry = Registry {
            kind: RegistryKind::Sglang,
            base: "http://p:8998".to_owned(),
            told: ("p".into(), 8_998),
            host_is_configured: false,
            ranks: vec![0],
        };
        let asker =
            WorkerClient::new(reqwest::Client::new(), &registry.base, None, Duration::from_secs(1));
        Registrar::new(registry, asker, "http://p:1".to_owned(), 2)
    }

    fn whole(registrar: &Registrar) -> RegistryAnswer {
        RegistryAnswer::Read(registrar.registry.read(r#"{"dp_size":1}"#))
    }

    #[test]
    fn readiness_is_told_once_and_lost_by_word_at_once_by_silence_later() {
        let mut registrar = registrar();
        let not_ready = || RegistryAnswer::NotReady("status 503".to_owned());
        let silent = || RegistryAnswer::Silent("refused".to_owned());
        let first = registrar.take(not_ready()).unwrap();
        assert!(first.lacks.unwrap().contains("http://p:8998: status 503"));
        assert!(registrar.take(not_ready()).is_none() && registrar.waits(), "said already");
        let answer = whole(&registrar);
        assert!(registrar.take(answer).unwrap().ranks[0].is_some() && !registrar.waits());
        let answer = whole(&registrar);
        assert!(registrar.take(answer).is_none());
        assert!(registrar.take(silent()).is_none(), "one miss");
        let answer = whole(&registrar);
        assert!(registrar.take(answer).is_none(), "which is forgiven");
        assert!(registrar.take(silent()).is_none());
        assert!(registrar.take(silent()).unwrap().ranks.is_empty() && registrar.waits());
        let answer = whole(&registrar);
        assert!(registrar.take(answer).is_some());
        assert!(registrar.take(not_ready()).unwrap().lacks.is_some(), "it restarted");
    }

    /// A resolver that fails once does not take requests from a registered worker.
    #[test]
    fn a_name_that_is_not_found_counts_as_silence() {
        let mut registrar = registrar();
        let answer = whole(&registrar);
        assert!(registrar.take(answer).is_some() && !registrar.waits());
        // Names below `invalid` never resolve (RFC 6761).
        registrar.name = Some(Lookup::new("no-such-host.invalid", 1));
        block_on_local(async {
            assert!(registrar.ask().await.is_none(), "one miss");
            let lost = registrar.ask().await.unwrap();
            let says = "resolver of the system, asked for no-such-host.invalid: ";
            assert!(lost.lacks.unwrap().contains(says));
        });
        assert!(registrar.waits());
    }
}
