//! Advice for the operator of a worker that is not up, by the reason in words. The log, `forebay
//! doctor` and `GET /workers` have the same reason, so the advice is the same too.

/// Parts of reasons, and what to do; the first part that matches counts.
const ADVICE: [(&[&str], &str); 14] = [
    (
        &["certificate expired", "CertExpired"],
        "renew the certificate of the worker; if it is new, set the clock of this machine",
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
    (&["status 404"], "no engine answers there: correct `url`, or set `health_path`"),
    (&["status 5"], "the engine runs and fails: read the log of the engine"),
    (
        &["leads to the router itself"],
        "remove the worker, or write the address of the engine in `url`: a router answers there",
    ),
    (&["does not speak"], "correct the scheme of `url`"),
    (&["model server"], "correct `url`: another server answers there"),
    (&["status "], "read the log of the engine"),
];

/// What an operator does about a worker that is not up for this reason.
#[must_use]
pub fn trouble_help(reason: &str) -> &'static str {
    let is_about = |parts: &&[&str]| parts.iter().any(|part| reason.contains(part));
    let found = ADVICE.iter().find(|(parts, _)| is_about(parts));
    found.map_or("start it, or correct its `url`", |(_, help)| help)
}

#[cfg(test)]
mod tests {
    use super::trouble_help;

    #[test]
    fn each_reason_has_its_own_advice() {
        let expired = "/v1/models: invalid peer certificate: certificate expired: verification \
                       time 1796000000 (UNIX), but certificate is not valid after 1700000000";
        for (reason, help) in [
            (expired, "renew the certificate"),
            ("/v1/models: invalid peer certificate: UnknownIssuer", "`upstream_tls.ca`"),
            (
                "/health: invalid peer certificate: certificate not valid for name \"gpu1\"",
                "another host",
            ),
            ("/health: received fatal alert: CertificateRequired", "`upstream_tls.cert`"),
            ("/v1/models: status 500", "read the log of the engine"),
            ("/health: status 503", "read the log of the engine"),
            ("/health: status 404", "correct `url`"),
            ("it refuses the question (401): set `api_key` of the worker", "`api_key_file`"),
            ("/v1/models: this address leads to the router itself", "address of the engine"),
            ("it refuses the key of the router (401): correct", "compare `api_key`"),
            ("/health: Connection refused (os error 111)", "start it"),
        ] {
            assert!(trouble_help(reason).contains(help), "{reason}: {}", trouble_help(reason));
        }
    }
}
