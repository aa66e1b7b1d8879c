//! Which server answered a command, by the head of its answer, and the reason of a refusal.

use super::process::plain;
use forebay_http1::header::{ADMIN, REASON};
use reqwest::Response;
use serde_json::Value;

/// Reason of a router's port for clients for a path of the admin API.
const NO_PATH: &str = "not-found";
/// Begin of the admin API's answer for an unknown path.
const PATHS: &str = "try /";
/// Longest text of an answer that a message repeats.
const QUOTED_CHARS_MAX: usize = 512;

/// Server that answered a call, by the head of its answer.
#[derive(Debug, Default)]
pub(super) struct Answerer {
    pub(super) status: u16,
    /// Value of the field `Server`.
    server: String,
    /// Reason of a router's refusal, as its port for clients has it; empty of another server.
    pub(super) reason: String,
    /// The admin API of a router: other servers have such paths and members too.
    pub(super) is_admin: bool,
}

impl Answerer {
    pub(super) fn of(answer: &Response) -> Self {
        let field = |name| {
            let value = answer.headers().get(name).and_then(|value| value.to_str().ok());
            bounded(value.unwrap_or_default())
        };
        let status = answer.status().as_u16();
        let is_admin = answer.headers().contains_key(ADMIN);
        Self { status, server: field("server"), reason: field(REASON), is_admin }
    }

    /// Reason for a refused call, with what to do.
    pub(super) fn reason(&self, answer: &Value, text: &str, has_token: bool) -> String {
        // A router's port for clients gives a reason.
        if !self.is_admin && self.reason.is_empty() {
            return self.stranger(text);
        }
        let error = answer.get("error");
        // Refusals of the client port nest their message.
        let nested =
            error.and_then(|error| error.get("message")).filter(|_| !self.reason.is_empty());
        let said = nested.or(error).and_then(Value::as_str);
        match self.status {
            401 | 403 if has_token => {
                "the router refuses the token; name the file with the token of `admin_token_file`"
                    .to_owned()
            }
            401 | 403 => {
                let said = bounded(said.unwrap_or(text));
                let said = said.trim_end_matches('.');
                format!("{said}; name the token's file with --token-file or -c")
            }
            404 if self.reason == NO_PATH => {
                "this is the port for clients of a router; use its `admin` address".to_owned()
            }
            404 if text.starts_with(PATHS) => {
                "the router is of a version without this call".to_owned()
            }
            421 => "use the router's address, or add the name to `admin_hosts`".to_owned(),
            _ => said.map_or_else(|| self.stranger(text), bounded),
        }
    }

    /// Another server than a router answers.
    fn stranger(&self, text: &str) -> String {
        let Self { status, server, .. } = self;
        let server = if server.is_empty() { String::new() } else { format!(", server {server:?}") };
        // Servers with TLS explain so to a client that speaks plain HTTP.
        let scheme = if text.contains("HTTPS") { "; for a TLS port write https://" } else { "" };
        format!(
            "what answers there is no admin API of a router (status {status}{server}): use the \
             `admin` address of the router{scheme}"
        )
    }
}

/// Text from outside, for a message.
pub(super) fn bounded(text: &str) -> String {
    let text: String = text.trim().chars().take(QUOTED_CHARS_MAX).collect();
    plain(&text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_refusal_is_repeated_and_bounded() {
        let of = |status, reason: &str| Answerer {
            status,
            reason: reason.to_owned(),
            server: "uvicorn".to_owned(),
            is_admin: false,
        };
        let admin = |status| Answerer { is_admin: true, ..of(status, "") };
        let reason = |status, answer: &Value, text: &str| admin(status).reason(answer, text, false);
        let told = json!({ "error": "no worker is called \"x\"" });
        assert!(reason(404, &told, "").contains("no worker is called"));
        let nested = json!({ "error": { "message": "unknown model" } });
        for (status, answer) in [(200, &told), (404, &nested), (401, &told), (503, &told)] {
            let other = of(status, "").reason(answer, "", true);
            assert!(other.contains("no admin API"), "another server: {other}");
        }
        assert_eq!(of(404, "unknown-model").reason(&nested, "", false), "unknown model");
        assert!(of(404, "not-found").reason(&nested, "", false).contains("port for clients"));
        assert!(reason(404, &Value::Null, "try /").contains("version"));
        let other = reason(404, &json!({ "detail": "Not Found" }), "{}");
        assert!(other.contains("status 404, server \"uvicorn\""), "{other}");
        assert!(reason(400, &Value::Null, "sent to an HTTPS server").contains("https://"));
        assert!(reason(401, &Value::Null, "a token").contains("--token-file"));
        assert!(admin(401).reason(&Value::Null, "", true).contains("refuses the token"));
        assert!(reason(500, &Value::Null, "").contains("status 500"));
        let long = json!({ "error": "x".repeat(9_999) });
        assert!(reason(500, &long, "").len() <= QUOTED_CHARS_MAX);
        assert!(reason(500, &Value::Null, &"x".repeat(9_999)).len() <= QUOTED_CHARS_MAX);
    }
}
