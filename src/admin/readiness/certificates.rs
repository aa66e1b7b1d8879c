//! Certificates of the ports, and their end as a concern.

use forebay_tls::Acceptor;
use serde_json::{Value, json};
use std::time::Duration;

/// A certificate of a port. A handshake shows the names to each client.
#[derive(Clone, Debug)]
pub struct PortCertificate {
    /// Key of the port: `listen` or `admin`.
    pub port: &'static str,
    pub names: Vec<String>,
    /// Since 1970; `None`: the date cannot be parsed.
    pub begins_at: Option<Duration>,
    /// Since 1970, as `begins_at`.
    pub expires_at: Option<Duration>,
}

impl PortCertificate {
    /// The certificates of a port.
    pub fn of(port: &'static str, acceptor: Option<&Acceptor>) -> impl Iterator<Item = Self> {
        let served = acceptor.map_or(&[][..], Acceptor::certificates);
        served.iter().map(move |served| Self {
            port,
            names: served.names.clone(),
            begins_at: served.begins_at,
            expires_at: served.expires_at,
        })
    }

    pub(super) fn shown(&self) -> Value {
        let Self { port, names, begins_at, expires_at } = self;
        json!({
            "port": port,
            "names": names,
            "begins_timestamp_seconds": begins_at.map(|at| at.as_secs()),
            "expires_timestamp_seconds": expires_at.map(|at| at.as_secs()),
        })
    }
}

/// Days before the end of a certificate in which it is a concern.
const CERTIFICATE_DAYS: u64 = 14;
const SECONDS_PER_DAY: u64 = 24 * 60 * 60;

/// A certificate that is not valid yet, has expired or expires soon, with its port and its first
/// name.
pub(super) fn invalidity(certificate: &PortCertificate, now: Duration) -> Option<String> {
    let PortCertificate { port, names, begins_at, expires_at } = certificate;
    let name = names.first().map_or_else(String::new, |name| format!(" for {name}"));
    let of = format!("the certificate of `{port}`{name}");
    let until_valid = begins_at.map(|at| at.saturating_sub(now)).unwrap_or_default();
    if !until_valid.is_zero() {
        let hours = until_valid.as_secs().div_ceil(SECONDS_PER_DAY / 24);
        return Some(format!("{of} is valid only in {hours} hours"));
    }
    let Some(left) = expires_at.as_ref()?.checked_sub(now) else {
        return Some(format!("{of} has expired"));
    };
    let days = left.as_secs() / SECONDS_PER_DAY;
    (days < CERTIFICATE_DAYS).then(|| format!("{of} expires in {days} days"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::readiness::RouterReadiness;

    #[test]
    fn a_certificate_is_a_concern_for_two_weeks() {
        let day = |days: u64| Duration::from_secs(days * SECONDS_PER_DAY);
        let readiness = |days: u64| {
            let names = vec!["a.example".to_owned()];
            let begins_at = Some(day(90));
            let expires_at = Some(day(days));
            let one = PortCertificate { port: "admin", names, begins_at, expires_at };
            RouterReadiness::default().with_certificates(vec![one], day(100))
        };
        assert_eq!(readiness(114).concerns, Vec::<String>::new());
        let certificate = &readiness(114).shown()["certificates"][0];
        assert_eq!(certificate["expires_timestamp_seconds"], 114 * SECONDS_PER_DAY);
        assert_eq!(
            (&certificate["port"], &certificate["names"][0]),
            (&"admin".into(), &"a.example".into())
        );
        let of = "the certificate of `admin` for a.example";
        assert_eq!(readiness(113).concerns, [format!("{of} expires in 13 days")]);
        assert_eq!(readiness(99).concerns, [format!("{of} has expired")]);
        assert_eq!(certificate["begins_timestamp_seconds"], 90 * SECONDS_PER_DAY);
        // N7: only the check and the start warned.
        let one = readiness(200).certificates;
        let early = RouterReadiness::default().with_certificates(one, day(89));
        assert_eq!(early.concerns, [format!("{of} is valid only in 24 hours")]);
    }
}
