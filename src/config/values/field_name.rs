//! Names of header fields in keys.

/// Fields of a connection and of framing (RFC 9110, section 7.6.1, and RFC 9112). Each hop writes
/// its own, so no field of the list is of the client, and no page may set the field.
const HOP_FIELDS: [&str; 10] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "http2-settings",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Field name syntax of RFC 9110, section 5.1.
pub(crate) fn is_field_name(name: &str) -> bool {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.bytes().all(is_token)
}

/// Is this a field of a connection or of framing?
pub(crate) fn is_hop_field(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    HOP_FIELDS.contains(&&*name) || name.starts_with("proxy-")
}

#[cfg(test)]
mod tests {
    use crate::checks::test_findings::findings;

    /// Issue 39: a tenant header `Content-Length` made a tenant of each length, and was silent.
    #[test]
    fn no_key_takes_a_field_of_a_connection_or_of_framing() {
        for name in [
            "Content-Length",
            "Host",
            "Connection",
            "TE",
            "Transfer-Encoding",
            "Proxy-Authorization",
            "upgrade",
        ] {
            for (key, text) in [
                ("queue.tenant_header", format!("[queue]\ntenant_header = {name:?}")),
                ("session.fields", format!("[session]\nfields = [\"x-a\", {name:?}]")),
                ("cors.headers", format!("[cors]\norigins = \"*\"\nheaders = [{name:?}]")),
            ] {
                let found = findings(&text).concat();
                let says = format!("error: `{key}` {name:?} is a field of the connection");
                assert!(found.contains(&says), "{text}\n{found}");
            }
        }
        for name in ["x-tenant", "authorization", "hostname", "cookie"] {
            assert_eq!(findings(&format!("[queue]\ntenant_header = {name:?}")), [""; 0], "{name}");
        }
    }
}
