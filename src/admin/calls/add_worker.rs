//! A worker that is added while the router runs, as `POST /workers` asks.

use axum::http::StatusCode;
use forebay_base::limits::{WORKER_API_KEY_BYTES_MAX, WORKER_NAME_BYTES_MAX};
use forebay_config::{Word, WorkerConfig, WorkerRole, WorkerUrl, parse_duration, shown_url};
use forebay_tls::ConnectFault;
use serde::Deserialize;
use std::time::Duration;

/// Longest time in which a call waits for a worker.
pub(crate) const WAIT_MAX: Duration = Duration::from_mins(10);
pub(crate) const HOW_TO_ASK: &str =
    r#"give {"url": "http://host:port"} or https://, with "name", "role" and "api_key" if wanted"#;

/// A parsed `POST /workers` body.
#[derive(Debug)]
pub struct AddWorkerRequest {
    worker: Box<WorkerConfig>,
    /// Time in which the worker must serve; the call is answered once it does.
    pub(crate) wait: Option<Duration>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct AddBody {
    url: String,
    name: Option<String>,
    role: Option<String>,
    api_key: Option<String>,
    wait: Option<String>,
}

/// Why a worker was not added.
#[derive(Clone, Debug, PartialEq)]
pub enum AddRefusal {
    /// A worker with this URL exists.
    UrlTaken,
    /// The named worker is the same engine under another spelling of its address.
    EngineTaken(String),
    /// The TLS configuration for the worker is invalid.
    Tls(ConnectFault),
    /// A worker with this name exists.
    NameTaken,
    /// The router has no worker index left.
    Full,
}

impl AddWorkerRequest {
    /// Parses a request body.
    ///
    /// # Errors
    /// Describes the fault in the body.
    pub(crate) fn from_body(body: &[u8]) -> Result<Self, String> {
        let body: AddBody =
            serde_json::from_slice(body).map_err(|error| format!("{error}; {HOW_TO_ASK}"))?;
        Self::new(body)
    }

    /// For a worker that has only a URL.
    ///
    /// # Errors
    /// Describes the fault in the URL.
    pub(crate) fn from_url(url: &str) -> Result<Self, String> {
        Self::new(AddBody { url: url.to_owned(), ..AddBody::default() })
    }

    /// For a worker with these properties, without a wait.
    ///
    /// # Errors
    /// Describes the first fault.
    pub fn of_worker(
        url: String,
        name: Option<String>,
        role: Option<String>,
        api_key: Option<String>,
    ) -> Result<Self, String> {
        Self::new(AddBody { url, name, role, api_key, wait: None })
    }

    fn new(body: AddBody) -> Result<Self, String> {
        let bytes = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        if body.url.len().max(bytes(&body.name)) > WORKER_NAME_BYTES_MAX {
            return Err(format!("`url` and `name` have at most {WORKER_NAME_BYTES_MAX} bytes"));
        }
        let url = WorkerUrl::parse(&body.url)
            .map_err(|error| format!("`url` {:?}: {error}; {HOW_TO_ASK}", shown_url(&body.url)))?;
        let printable = |name: &str| name.bytes().all(|byte| (0x21..0x7f).contains(&byte));
        if body.name.as_deref().is_some_and(|name| name.is_empty() || !printable(name)) {
            return Err("`name` has to be visible ASCII without spaces".to_owned());
        }
        if bytes(&body.api_key) > WORKER_API_KEY_BYTES_MAX {
            return Err(format!("`api_key` has at most {WORKER_API_KEY_BYTES_MAX} bytes"));
        }
        if body.api_key.as_deref().is_some_and(|key| key.is_empty() || !printable(key)) {
            return Err("`api_key` has to be visible ASCII without spaces".to_owned());
        }
        let role = body.role.as_deref().map_or(Ok(WorkerRole::Auto), role_of)?;
        let wait = body.wait.as_deref().map(parse_duration).transpose();
        let wait = wait.map_err(|fault| format!("`wait`: {fault}"))?;
        if wait.is_some_and(|wait| wait > WAIT_MAX) {
            return Err(format!("`wait` is at most {} s", WAIT_MAX.as_secs()));
        }
        let AddBody { name, api_key, .. } = body;
        let url = url.text();
        let worker = WorkerConfig { url, name, role, api_key, ..WorkerConfig::default() };
        Ok(Self { worker: Box::new(worker), wait })
    }

    /// The worker as a `[[worker]]` table would describe it.
    #[must_use]
    pub fn worker(&self) -> &WorkerConfig {
        &self.worker
    }
}

fn role_of(word: &str) -> Result<WorkerRole, String> {
    let found = WorkerRole::WORDS.iter().find(|(name, ..)| *name == word);
    let words: Vec<&str> = WorkerRole::WORDS.iter().map(|(name, ..)| *name).collect();
    found.map(|(_, role, _)| *role).ok_or_else(|| format!("`role` is one of {}", words.join(", ")))
}

impl AddRefusal {
    pub(crate) const fn status(&self) -> StatusCode {
        match self {
            Self::Tls(_) => StatusCode::BAD_REQUEST,
            Self::UrlTaken | Self::EngineTaken(_) | Self::NameTaken => StatusCode::CONFLICT,
            Self::Full => StatusCode::INSUFFICIENT_STORAGE,
        }
    }

    pub(crate) fn message(&self) -> String {
        let text = match self {
            Self::UrlTaken => {
                "a worker of that address is there, or was there over TLS: GET /workers lists them"
            }
            Self::EngineTaken(name) => {
                return format!(
                    "the worker {name:?} is that engine already, by another spelling of its \
                     address: remove that one first"
                );
            }
            Self::Tls(fault @ ConnectFault::Name(_)) => return format!("TLS to it: {fault}"),
            Self::Tls(fault) => {
                return format!(
                    "TLS to it: {fault}; mend `upstream_tls` in the configuration, reload, and \
                     call again"
                );
            }
            Self::NameTaken => "a worker of that name is there: GET /workers lists them",
            Self::Full => {
                "this process has had as many addresses of workers as it can have: \
                 `forebay upgrade` begins anew"
            }
        };
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_name_a_worker_or_are_refused_in_words() {
        let read = |body: &str| AddWorkerRequest::from_body(body.as_bytes());
        let asked = read(r#"{"url":"http://a:1","name":"w","role":"prefill"}"#).unwrap();
        let worker = asked.worker();
        assert_eq!((&*worker.url, worker.name.as_deref()), ("http://a:1", Some("w")));
        assert_eq!(worker.role, WorkerRole::Prefill);
        for (body, word) in [
            ("", "http://host:port"),
            ("{}", "url"),
            (r#"{"url":"a:1"}"#, "http://"),
            (r#"{"url":"http://a:1/v1"}"#, "path"),
            (r#"{"url":"http://a:1","name":"a b"}"#, "visible"),
            (r#"{"url":"http://a:1","api_key":""}"#, "`api_key`"),
            (r#"{"url":"http://a:1","api_key":"a\r\nb: c"}"#, "`api_key`"),
            (r#"{"url":"http://a:1","role":"cook"}"#, "prefill"),
            (r#"{"url":"http://a:1","size":1}"#, "unknown field"),
            (r#"{"url":"http://a:1","wait":"soon"}"#, "`wait`"),
            (r#"{"url":"http://a:1","wait":"1h"}"#, "at most"),
        ] {
            let fault = read(body).unwrap_err();
            assert!(fault.contains(word), "{body}: {fault}");
        }
    }
}
