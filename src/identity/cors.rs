//! CORS (Fetch standard): pages of which sites may read responses, the fields for that, and
//! responses to preflight requests.

use std::rc::Rc;

/// A header field of an answer: its name and its value.
pub type AnswerField<'a> = (&'static str, &'a [u8]);

/// Longest list of requested fields that a preflight response mirrors.
const MIRRORED_BYTES_MAX: usize = 1_024;
/// Fields of responses that pages may read if a list is needed: with credentials, `*` is literal.
const EXPOSED: &str = "x-request-id, x-forebay-worker, x-forebay-prefill-worker, \
    x-forebay-overlap-tokens, x-forebay-reason, retry-after, retry-after-ms, x-should-retry, \
    x-ratelimit-limit-requests, x-ratelimit-limit-tokens, x-ratelimit-remaining-requests, \
    x-ratelimit-remaining-tokens, x-ratelimit-reset-requests, x-ratelimit-reset-tokens";
const VARY: &str = "origin";
const VARY_PREFLIGHT: &str =
    "origin, access-control-request-method, access-control-request-headers";

/// CORS settings of the operator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CorsPolicy {
    /// Origins of pages that may read responses; `*`: all origins.
    pub origins: Vec<String>,
    /// Methods that pages may use.
    pub methods: Vec<String>,
    /// Fields that pages may send; empty: all requested fields.
    pub headers: Vec<String>,
    /// Seconds that a browser may cache a preflight response.
    pub max_age_s: u64,
    /// Pages may send cookies and client certificates.
    pub credentials: bool,
}

/// CORS state of a shard.
#[derive(Debug, Default)]
pub struct Cors {
    policy: CorsPolicy,
    origins: Vec<Rc<CorsFields>>,
    stranger: Rc<CorsFields>,
    methods: String,
    headers: String,
    max_age: String,
}

/// Response fields for an origin.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct CorsFields {
    allow_origin: String,
    credentials: &'static str,
    expose: &'static str,
    vary: &'static str,
}

/// A preflight request of a browser.
#[derive(Clone, Copy, Debug)]
pub struct Preflight<'a> {
    /// The origin of the page.
    pub origin: &'a [u8],
    /// Names of the fields that the page wants to send.
    pub headers: &'a [u8],
}

impl Cors {
    /// From the operator's settings. Without origins the router adds no fields.
    #[must_use]
    pub fn new(policy: CorsPolicy) -> Self {
        let is_for_all = policy.origins.iter().any(|origin| origin == "*");
        let fields = |origin: &String| {
            Rc::new(CorsFields {
                allow_origin: if is_for_all { "*".to_owned() } else { origin.clone() },
                credentials: if policy.credentials { "true" } else { "" },
                expose: if policy.credentials { EXPOSED } else { "*" },
                vary: if is_for_all { "" } else { VARY },
            })
        };
        Self {
            origins: policy.origins.iter().map(fields).collect(),
            stranger: Rc::new(CorsFields { vary: VARY, ..CorsFields::default() }),
            methods: policy.methods.join(", "),
            headers: policy.headers.join(", "),
            max_age: policy.max_age_s.to_string(),
            policy,
        }
    }

    /// True if CORS is off: the router adds no fields, and workers' fields are forwarded.
    #[must_use]
    pub const fn is_off(&self) -> bool {
        self.origins.is_empty()
    }

    /// Response fields for this origin; `None` if CORS is off.
    #[must_use]
    pub fn of(&self, origin: Option<&[u8]>) -> Option<Rc<CorsFields>> {
        let listed = self.listed(origin.unwrap_or_default());
        (!self.is_off()).then(|| Rc::clone(listed.unwrap_or(&self.stranger)))
    }

    /// True if pages of this origin may read responses.
    #[must_use]
    pub fn lists(&self, origin: &[u8]) -> bool {
        self.listed(origin).is_some()
    }

    fn listed(&self, origin: &[u8]) -> Option<&Rc<CorsFields>> {
        let is_it = |listed: &String| listed == "*" || listed.as_bytes() == origin;
        let position = self.policy.origins.iter().position(is_it)?;
        self.origins.get(position)
    }

    /// Fields of a preflight response; `None`: pages of this origin may send nothing. Fields
    /// without a value are not sent.
    #[must_use]
    pub fn permits<'a>(&'a self, asked: Preflight<'a>) -> Option<[AnswerField<'a>; 6]> {
        let fields = self.listed(asked.origin)?;
        let headers = match self.headers.as_bytes() {
            [] if is_list(asked.headers) => asked.headers,
            listed => listed,
        };
        let vary = if fields.vary.is_empty() { "" } else { VARY_PREFLIGHT };
        Some([
            ("access-control-allow-origin", fields.allow_origin.as_bytes()),
            ("access-control-allow-credentials", fields.credentials.as_bytes()),
            ("access-control-allow-methods", self.methods.as_bytes()),
            ("access-control-allow-headers", headers),
            ("access-control-max-age", self.max_age.as_bytes()),
            ("vary", vary.as_bytes()),
        ])
    }
}

impl CorsFields {
    /// All fields; fields without a value are not sent, and remove the worker's fields of the same
    /// name.
    #[must_use]
    pub fn fields(&self) -> [AnswerField<'_>; 4] {
        [
            ("access-control-allow-origin", self.allow_origin.as_bytes()),
            ("access-control-allow-credentials", self.credentials.as_bytes()),
            ("access-control-expose-headers", self.expose.as_bytes()),
            ("vary", self.vary.as_bytes()),
        ]
    }
}

/// True if it is short and has only bytes of field names, commas and blanks.
fn is_list(names: &[u8]) -> bool {
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~, ".contains(byte);
    names.len() <= MIRRORED_BYTES_MAX && names.iter().all(is_name)
}

/// The fault of a configured origin, as text.
#[must_use]
pub fn origin_fault(origin: &str) -> Option<String> {
    if origin == "*" {
        return None;
    }
    let written = format!("{origin:?} is no origin; write https://host or http://host:port");
    let Some((scheme, host)) = origin.split_once("://") else { return Some(written) };
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"/?#@\\,;\"'".contains(&byte);
    let of_scheme =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"+-.".contains(&byte);
    let is_scheme = scheme.starts_with(|first: char| first.is_ascii_lowercase())
        && scheme.bytes().all(of_scheme);
    if !is_scheme || host.is_empty() || !host.bytes().all(is_plain) {
        return Some(written);
    }
    if host.contains('*') {
        return Some(format!("{origin:?}: `*` stands alone, for all origins"));
    }
    if host.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Some(format!("{origin:?}: browsers send {:?}", origin.to_ascii_lowercase()));
    }
    let usual = [("https", ":443"), ("http", ":80")];
    let is_usual = usual.iter().any(|(known, port)| scheme == *known && host.ends_with(port));
    is_usual.then(|| format!("{origin:?}: browsers leave the usual port out"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cors(origins: &[&str], credentials: bool) -> Cors {
        Cors::new(CorsPolicy {
            origins: origins.iter().map(|origin| (*origin).to_owned()).collect(),
            methods: vec!["GET".into(), "POST".into()],
            headers: Vec::new(),
            max_age_s: 600,
            credentials,
        })
    }

    fn shown<const N: usize>(fields: [AnswerField<'_>; N]) -> Vec<String> {
        let sent = fields.into_iter().filter(|(_, value)| !value.is_empty());
        sent.map(|(name, value)| format!("{name}: {}", String::from_utf8_lossy(value))).collect()
    }

    #[test]
    fn answers_name_the_origin_that_is_listed_and_no_other() {
        let off = Cors::default();
        assert!(off.is_off() && off.of(Some(b"https://a.example")).is_none());
        let two = cors(&["https://a.example", "http://b.example:8000"], false);
        let of = |origin: Option<&[u8]>| shown(two.of(origin).unwrap().fields());
        assert_eq!(
            of(Some(b"http://b.example:8000")),
            [
                "access-control-allow-origin: http://b.example:8000",
                "access-control-expose-headers: *",
                "vary: origin"
            ]
        );
        for other in [
            None,
            Some(&b"https://c.example"[..]),
            Some(b"null"),
            Some(b""),
            Some(b"https://a.exampl"),
        ] {
            assert_eq!(of(other), ["vary: origin"], "{other:?}");
        }
    }

    #[test]
    fn all_origins_are_one_answer_and_credentials_are_another() {
        let all = cors(&["*"], false);
        for origin in [None, Some(&b"https://c.example"[..]), Some(b"null")] {
            assert_eq!(
                shown(all.of(origin).unwrap().fields()),
                ["access-control-allow-origin: *", "access-control-expose-headers: *"]
            );
        }
        let trusting = cors(&["https://a.example"], true);
        let fields = shown(trusting.of(Some(b"https://a.example")).unwrap().fields());
        assert_eq!(fields[1], "access-control-allow-credentials: true");
        assert!(fields[2].contains("retry-after") && !fields[2].contains('*'), "{fields:?}");
    }

    #[test]
    fn a_browser_that_asks_first_hears_what_it_may_send() {
        let mut policy = cors(&["https://a.example"], false).policy;
        let asked = |origin: &'static str, headers: &'static str| Preflight {
            origin: origin.as_bytes(),
            headers: headers.as_bytes(),
        };
        let mirror = Cors::new(policy.clone());
        let wanted = "authorization,content-type,x-stainless-os";
        let permitted = mirror.permits(asked("https://a.example", wanted)).unwrap();
        assert_eq!(
            shown(permitted),
            [
                "access-control-allow-origin: https://a.example",
                "access-control-allow-methods: GET, POST",
                "access-control-allow-headers: authorization,content-type,x-stainless-os",
                "access-control-max-age: 600",
                "vary: origin, access-control-request-method, access-control-request-headers"
            ]
        );
        assert!(mirror.permits(asked("https://b.example", wanted)).is_none());
        assert!(mirror.permits(asked("", wanted)).is_none());
        let odd = mirror.permits(asked("https://a.example", "x: y")).unwrap();
        assert!(!shown(odd).iter().any(|field| field.contains("allow-headers")));
        policy.headers = vec!["content-type".into(), "authorization".into()];
        let listed = Cors::new(policy);
        let permitted = shown(listed.permits(asked("https://a.example", wanted)).unwrap());
        assert_eq!(permitted[2], "access-control-allow-headers: content-type, authorization");
    }

    #[test]
    fn origins_are_written_as_browsers_send_them() {
        for good in [
            "*",
            "https://a.example",
            "http://localhost:3000",
            "http://[::1]:8000",
            "tauri://localhost",
            "chrome-extension://abcdefgh",
        ] {
            assert_eq!(origin_fault(good), None);
        }
        for bad in [
            "",
            "a.example",
            "https://",
            "https://a.example/",
            "https://a.example/x",
            "https://A.example",
            "https://a.example:443",
            "http://a.example:80",
            "https://*.example",
            "null",
            "https://a.example https://b.example",
            "https://u@a.example",
        ] {
            assert!(origin_fault(bad).is_some(), "{bad}");
        }
    }
}
