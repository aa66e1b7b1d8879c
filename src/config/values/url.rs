//! The forms of a worker URL: `http://host:port` and `https://host:port`.

use super::host::{HostFault, check_host};
use std::net::Ipv6Addr;
use thiserror::Error;

/// A parsed worker URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerUrl {
    /// Host name or address; IPv6 addresses without their brackets.
    pub host: String,
    /// TCP port; 80 when not written, 443 over TLS.
    pub port: u16,
    pub is_tls: bool,
    /// Value for the `Host` field: as written, without a default port added.
    pub authority: String,
}

/// URL of a JSON Web Key Set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JwksUrl {
    /// The server that serves the keys.
    pub server: WorkerUrl,
    /// Path with its leading slash.
    pub path: String,
}

impl JwksUrl {
    /// Parses a URL. `None` for a file path.
    pub fn parse(url: &str) -> Option<Result<Self, WorkerUrlError>> {
        let (scheme, rest) = url.split_once("://")?;
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let server = WorkerUrl::parse(&format!("{scheme}://{authority}"));
        let path = if path.is_empty() { "/" } else { path }.to_owned();
        Some(server.and_then(|server| {
            let is_here = ["localhost", "127.0.0.1", "::1"].contains(&&*server.host);
            let is_safe = server.is_tls || is_here;
            if is_safe { Ok(Self { server, path }) } else { Err(WorkerUrlError::ClearText) }
        }))
    }

    /// The server's URL without a path.
    #[must_use]
    pub fn base(&self) -> String {
        self.server.text()
    }
}

/// Reason for a refused URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WorkerUrlError {
    /// Neither `http://` nor `https://`.
    #[error("it does not start with http:// or https://")]
    Scheme,
    /// A list of URLs.
    #[error("several URLs in one text")]
    Several,
    /// A path, query or fragment.
    #[error("a path is not supported: the router forwards the client's own path")]
    Path,
    /// The URL contains user and password.
    #[error("credentials do not belong in a url: use `api_key`")]
    Credentials,
    /// The host is no address, and no name that DNS can hold.
    #[error(transparent)]
    Host(HostFault),
    /// An IPv6 address as it stands outside of URLs.
    #[error("an IPv6 address stands in brackets")]
    Brackets,
    /// A key set from another host without TLS.
    #[error("http:// is only for this host: whoever is on the way could put in keys of their own")]
    ClearText,
    /// The port is no number from 1 to 65535.
    #[error("the port is not a number from 1 to 65535")]
    Port,
}

impl WorkerUrlError {
    /// Advice. `form`: how the key is written.
    pub(crate) const fn help(self, form: &'static str) -> &'static str {
        match self {
            Self::Host(fault) => fault.help(form),
            _ => form,
        }
    }
}

/// A URL for messages: the part before an `@` may contain a password.
#[must_use]
pub fn shown_url(url: &str) -> String {
    let Some((before, host)) = url.rsplit_once('@') else { return url.to_owned() };
    let scheme =
        before.split_once("://").map_or(String::new(), |(scheme, _)| format!("{scheme}://"));
    format!("{scheme}…@{host}")
}

impl WorkerUrl {
    /// Parses a URL (the subset of RFC 3986 that applies here).
    pub fn parse(url: &str) -> Result<Self, WorkerUrlError> {
        let (rest, is_tls) = match (url.strip_prefix("http://"), url.strip_prefix("https://")) {
            (Some(rest), _) => (rest, false),
            (None, Some(rest)) => (rest, true),
            (None, None) => return Err(WorkerUrlError::Scheme),
        };
        if rest.contains("://") {
            return Err(WorkerUrlError::Several);
        }
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        if authority.contains(['/', '?', '#']) {
            return Err(WorkerUrlError::Path);
        }
        if authority.contains('@') {
            return Err(WorkerUrlError::Credentials);
        }
        let usual = if is_tls { 443 } else { 80 };
        let (host, port) = split_port(authority, usual)?;
        Ok(Self { host: host.to_owned(), port, is_tls, authority: authority.to_owned() })
    }

    /// The URL without a trailing slash.
    #[must_use]
    pub fn text(&self) -> String {
        format!("{}://{}", self.scheme(), self.authority)
    }

    #[must_use]
    pub const fn scheme(&self) -> &'static str {
        if self.is_tls { "https" } else { "http" }
    }
}

/// Host and port of `host:port`; the host is checked, and has no brackets.
///
/// # Errors
/// [`WorkerUrlError`] of the host or the port.
pub(crate) fn split_port(authority: &str, usual: u16) -> Result<(&str, u16), WorkerUrlError> {
    let (host, port) = split_unchecked(authority, usual)?;
    check_host(host).map_err(WorkerUrlError::Host)?;
    Ok((host, port))
}

fn split_unchecked(authority: &str, usual: u16) -> Result<(&str, u16), WorkerUrlError> {
    let number = |text: &str| match text.parse() {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(WorkerUrlError::Port),
    };
    if let Some(rest) = authority.strip_prefix('[') {
        let no_address = WorkerUrlError::Host(HostFault::Name);
        let (host, rest) = rest.split_once(']').ok_or(no_address)?;
        host.parse::<Ipv6Addr>().map_err(|_| no_address)?;
        let port = match rest.strip_prefix(':') {
            Some(port) => number(port)?,
            None if rest.is_empty() => usual,
            None => return Err(WorkerUrlError::Port),
        };
        return Ok((host, port));
    }
    match authority.split_once(':') {
        Some((_, rest)) if rest.contains(':') && is_bare_ipv6(authority) => {
            Err(WorkerUrlError::Brackets)
        }
        Some((host, port)) => Ok((host, number(port)?)),
        None => Ok((authority, usual)),
    }
}

/// Is this an IPv6 address without its brackets, with or without a port?
fn is_bare_ipv6(authority: &str) -> bool {
    let before_port = authority.rsplit_once(':').map_or("", |(host, _)| host);
    [authority, before_port].iter().any(|text| text.parse::<Ipv6Addr>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_message_shows_no_password() {
        for (url, shown) in [
            ("http://u:secret@h:1", "http://…@h:1"),
            ("u:secret@h", "…@h"),
            ("http://u:sec@ret@h/x", "http://…@h/x"),
            ("ftp://h:1/", "ftp://h:1/"),
        ] {
            assert_eq!(shown_url(url), shown);
        }
    }

    #[test]
    fn takes_urls_apart() {
        for (url, host, port, authority) in [
            ("http://127.0.0.1:8000", "127.0.0.1", 8000, "127.0.0.1:8000"),
            ("http://gpu-1.example/", "gpu-1.example", 80, "gpu-1.example"),
            ("http://[::1]:8000", "::1", 8000, "[::1]:8000"),
            ("http://[::1]", "::1", 80, "[::1]"),
            ("https://[::1]", "::1", 443, "[::1]"),
            ("https://gpu-1.example:8443", "gpu-1.example", 8443, "gpu-1.example:8443"),
        ] {
            let parsed = WorkerUrl::parse(url).unwrap();
            assert_eq!(parsed.is_tls, url.starts_with("https"));
            assert_eq!((&*parsed.host, parsed.port, &*parsed.authority), (host, port, authority));
        }
    }

    #[test]
    fn says_what_is_wrong() {
        let no_host = WorkerUrlError::Host(HostFault::Name);
        let no_address = WorkerUrlError::Host(HostFault::Ipv4);
        for (url, error) in [
            ("ftp://a", WorkerUrlError::Scheme),
            ("https://", no_host),
            ("a:8000", WorkerUrlError::Scheme),
            ("http://a/v1", WorkerUrlError::Path),
            ("http://a,http://b", WorkerUrlError::Several),
            ("http://a:1 http://b:1/v1", WorkerUrlError::Several),
            ("http://u:p@a", WorkerUrlError::Credentials),
            ("http://:8000", no_host),
            ("http://a b", no_host),
            ("http://10.0.0.256:8000", no_address),
            ("http://010.0.0.1", no_address),
            ("http://[10.0.0.1]:8000", no_host),
            ("http://[gpu1]", no_host),
            ("http://a:0", WorkerUrlError::Port),
            ("http://a:99999", WorkerUrlError::Port),
            ("http://[::1", no_host),
            ("http://::1:8000", WorkerUrlError::Brackets),
            ("http://fe80::1", WorkerUrlError::Brackets),
            ("https://2001:db8:0:0:0:0:0:1:8000", WorkerUrlError::Brackets),
            ("http://a:8000:8001", WorkerUrlError::Port),
        ] {
            assert_eq!(WorkerUrl::parse(url), Err(error), "{url}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(text in "(http://)?\\PC*") {
            let _ = WorkerUrl::parse(&text);
        }
    }
}
