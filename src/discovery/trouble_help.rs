//! Advice for the operator of a worker that is not up, by the reason in words. The log, `forebay
//! doctor` and `GET /workers` have the same reason, so the advice is the same too.

use crate::descriptions::description::Listing;
use crate::http::{NO_ANSWER, NO_CONNECTION};

/// Parts of reasons, and what to do; the first part that matches counts.
const ADVICE: [(&[&str], &str); 18] = [
    (
        &["certificate expired", "CertExpired"],
        "renew the certificate of the engine, on its host; if the certificate is new, set the \
         clock of this machine",
    ),
    (
        &["NotValidYet", "not valid yet"],
        "set the clock of this machine, or of the machine that issued the certificate",
    ),
    (
        &["UnknownIssuer", "unknown issuer"],
        "name the authority of the worker's certificate: `upstream_tls.ca`, or `tls_ca` of the \
         worker",
    ),
    (
        &["NotValidForName", "not valid for name"],
        "the certificate is for another host: correct `url`, or set `tls_name` of the worker",
    ),
    (
        &["CertificateRequired", "certificate required"],
        "the worker wants a certificate of the router: set `upstream_tls.cert` and \
         `upstream_tls.key`",
    ),
    (&["certificate"], "compare the certificate of the worker with `upstream_tls`"),
    (
        &["refuses the key"],
        "compare `api_key` or `api_key_file` of the worker, or of `[worker_defaults]`, with the \
         `--api-key` of the engine",
    ),
    (
        &["status 401", "status 403", "refuses the question"],
        "set `api_key_file` of the worker, or of `[worker_defaults]`",
    ),
    (
        &[
            "/v1/models: status 404",
            "/v1/models: status 405",
            "/v1/models: status 501",
            "/v1/models: lists no model",
        ],
        Listing::HELP,
    ),
    (
        &["status 404"],
        "no engine answers there: correct `url`, or set `health_path` (of all workers: \
         `worker_defaults.health_path`)",
    ),
    (&["status 5"], "the engine runs and fails: read the log of the engine"),
    (
        &["leads to the router itself"],
        "remove the worker, or write the address of the engine in `url`: a router answers there",
    ),
    (&["does not speak"], "correct the scheme of `url`"),
    (&["model server", "answer is longer"], "correct `url`: another server answers there"),
    (
        &["`engine` is"],
        "correct `engine` of the worker, or the top-level `engine`; without the key the router \
         finds the engine by itself",
    ),
    (&["does not have its role"], "set `role` of the worker: prefill, decode or both"),
    (&["`kv_events`"], "correct `kv_events` of the worker"),
    (&["status "], "read the log of the engine"),
];

const UNREACHED: &str = "look at its host and at firewalls, or correct its `url`";

/// Advice for reasons that no server gave. A server may answer at the address, or not.
const SILENCES: [(&str, &str); 6] = [
    ("out of file descriptors", "raise `LimitNOFILE` of the router"),
    (
        "resolver of the system, asked for",
        "look the name up by hand; correct `url`, the records or the resolver",
    ),
    (NO_CONNECTION, UNREACHED),
    ("No route to host", UNREACHED),
    ("Network is unreachable", UNREACHED),
    // A process that hangs is started already.
    (
        NO_ANSWER,
        "it hangs, or is another server: read its log and restart it, or correct its `url`",
    ),
];

/// What an operator does about a worker that is not up for this reason.
#[must_use]
pub fn trouble_help(reason: &str) -> &'static str {
    let silence = || SILENCES.iter().find(|(part, _)| reason.contains(part));
    let help = advice_for_answer(reason).or_else(|| silence().map(|(_, help)| *help));
    help.unwrap_or("start it, or correct its `url`")
}

/// True if a server answers at the address of a worker that is not up for this reason.
#[must_use]
pub fn is_answer(reason: &str) -> bool {
    advice_for_answer(reason).is_some()
}

/// Each part of [`ADVICE`] is from the answer of a server, or about the answer.
fn advice_for_answer(reason: &str) -> Option<&'static str> {
    let is_about = |parts: &&[&str]| parts.iter().any(|part| reason.contains(part));
    ADVICE.iter().find(|(parts, _)| is_about(parts)).map(|(_, help)| *help)
}

#[cfg(test)]
mod tests {
    use super::{Listing, is_answer, trouble_help};
    use crate::descriptions::describe::DiscoveryError;
    use crate::http::{AskError, NO_ANSWER, NO_CONNECTION};
    use forebay_base::NameFault;
    use forebay_zmq::EndpointError;

    #[test]
    fn each_reason_has_its_own_advice() {
        let expired = "/v1/models: invalid peer certificate: certificate expired: verification \
                       time 1796000000 (UNIX), but certificate is not valid after 1700000000";
        for (reason, help) in [
            (expired, "certificate of the engine, on its host"),
            ("/v1/models: invalid peer certificate: UnknownIssuer", "`upstream_tls.ca`"),
            (
                "/health: invalid peer certificate: certificate not valid for name \"gpu1\"",
                "another host",
            ),
            ("/health: received fatal alert: CertificateRequired", "`upstream_tls.cert`"),
            ("/v1/models: status 500", "read the log of the engine"),
            ("/health: status 503", "read the log of the engine"),
            ("/health: status 404", "correct `url`"),
            ("it refuses the question (401)", "`api_key_file`"),
            ("/v1/models: this address leads to the router itself", "address of the engine"),
            ("it refuses the key of the router (401)", "compare `api_key`"),
            ("/health: Connection refused (os error 111)", "start it"),
            ("/health: no answer within 2s", "it hangs"),
            ("/health: No route to host (os error 113)", "firewalls"),
            (&*NameFault::text("gpu1", "no answer within 5s"), "look the name up"),
        ] {
            assert!(trouble_help(reason).contains(help), "{reason}: {}", trouble_help(reason));
        }
    }

    /// M1: a server without models has one reason and one advice, whichever check finds it.
    #[test]
    fn a_list_and_a_health_check_have_the_same_words() {
        for status in [404, 405, 501] {
            let of_list = Listing::Nothing { status: Some(status), is_well: false }.fault();
            let of_check = AskError::Status { path: "/v1/models".to_owned(), status };
            assert_eq!(of_list.as_deref(), Some(&*of_check.to_string()));
            assert_eq!(trouble_help(&of_check.to_string()), Listing::HELP);
        }
        let of_list = Listing::Nothing { status: None, is_well: false }.fault().unwrap();
        assert_eq!(trouble_help(&of_list), Listing::HELP);
        assert!(is_answer(&of_list));
    }

    /// M1: an engine that answers is never called unreached, and its help is not to start it.
    #[test]
    fn each_reason_of_a_server_that_answers_is_an_answer() {
        let path = || "/v1/models".to_owned();
        let cause = || "Connection refused (os error 111)".to_owned();
        let silence = || format!("{NO_ANSWER} 2s");
        let statuses = [201, 302, 400, 401, 403, 404, 429, 500, 503];
        let statuses = statuses.map(|status| AskError::Status { path: path(), status });
        let answers = statuses.into_iter().map(DiscoveryError::from).chain([
            DiscoveryError::Forbidden(401),
            DiscoveryError::Forbidden(403),
            DiscoveryError::WrongKey(401),
            DiscoveryError::WrongKey(403),
            DiscoveryError::Models,
            DiscoveryError::Role,
            DiscoveryError::Engine { configured: "sglang", reported: "vllm" },
            EndpointError::Form("x".to_owned()).into(),
            EndpointError::Port("x".to_owned()).into(),
            AskError::Loop { path: path() }.into(),
            AskError::TooLong { path: path() }.into(),
        ]);
        for error in answers {
            let reason = error.to_string();
            assert!(is_answer(&reason), "{reason}");
            assert!(!trouble_help(&reason).contains("start it"), "{reason}");
        }
        for (error, help) in [
            (AskError::Refused { path: path(), cause: cause() }, "start it"),
            (AskError::Failed { path: path(), cause: silence() }, "it hangs"),
            (AskError::Failed { path: path(), cause: NO_CONNECTION.to_owned() }, "firewalls"),
            (AskError::OutOfSockets { path: path() }, "`LimitNOFILE`"),
        ] {
            let reason = error.to_string();
            assert!(!is_answer(&reason), "{reason}");
            assert!(trouble_help(&reason).contains(help), "{reason}: {}", trouble_help(&reason));
        }
    }
}
