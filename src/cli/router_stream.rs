//! A stream of a router's admin API, for commands.

use super::router_client::{RouterClient, SILENCE_MAX};
use tokio::time::error::Elapsed;
use tokio::time::timeout;

/// Opens a stream of a router.
pub(super) struct RouterStream {
    client: RouterClient,
    path: Vec<&'static str>,
    url: String,
}

impl RouterStream {
    /// Prepares the stream of a path.
    pub(super) fn new(client: RouterClient, path: &'static str) -> Self {
        let url = format!("{}{path}", client.address());
        Self { client, path: path.split('/').skip(1).collect(), url }
    }

    /// Address of the router.
    #[cfg(feature = "top")]
    pub(super) fn router(&self) -> &str {
        self.client.address()
    }

    /// Warns of an older router that has answered.
    #[cfg(feature = "top")]
    pub(super) fn warning(&self) -> Option<String> {
        self.client.warning()
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Opens the stream, which is the body of the response.
    pub(super) async fn open(&self) -> Result<reqwest::Response, String> {
        let opened = self.client.open(&self.path);
        timeout(SILENCE_MAX, opened).await.map_err(silence_error)?
    }
}

pub(super) fn silence_error(_: Elapsed) -> String {
    format!("nothing for {} s", SILENCE_MAX.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::process::run_local;
    use crate::cli::router_client::RouterFiles;
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::path::Path;

    /// The fault of a stream that a server answers with this response.
    fn fault(response: &str, token: Option<&Path>) -> Option<String> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let response = response.to_owned();
        let server = std::thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            let _ = client.read(&mut [0; 1_024]).unwrap();
            let _ = client.write_all(response.as_bytes());
        });
        let client = RouterClient::new(&address, RouterFiles { token, ca: None }).unwrap();
        let stream = RouterStream::new(client, "/live");
        let opened = run_local(async { stream.open().await.map(|_| ()) }).unwrap();
        server.join().unwrap();
        opened.err()
    }

    fn response(status: &str, fields: &str, body: &str) -> String {
        let length = body.len();
        format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n{fields}\r\n{body}")
    }

    #[test]
    fn a_refusal_names_what_refuses() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "a-token-of-sufficient-length-0123456789").unwrap();
        let token = Some(file.path());
        let needs = "{\"error\":\"This call needs a token.\"}";
        let endless = "x".repeat(1 << 20);
        const ADMIN: &str = "x-forebay-admin: 1\r\n";
        for (status, fields, body, token, wanted) in [
            ("401 Unauthorized", ADMIN, needs, token, "refuses the token"),
            ("401 Unauthorized", ADMIN, needs, None, "with --token-file"),
            ("404 Not Found", "x-forebay-reason: not-found\r\n", "{}", None, "port for clients"),
            ("404 Not Found", ADMIN, "try /live\n", None, "a version without"),
            ("404 Not Found", "server: nginx\r\n", "<html>", None, "server \"nginx\""),
            ("404 Not Found", "", &endless, None, "no admin API"),
            ("421 Misdirected Request", ADMIN, "", None, "`admin_hosts`"),
            (
                "503 Service Unavailable",
                ADMIN,
                "{\"error\":\"it shuts down\"}",
                None,
                "it shuts down",
            ),
            ("503 Service Unavailable", "server: haproxy\r\n", "", None, "server \"haproxy\""),
            ("200 OK", "content-type: text/html\r\n", "<html>", None, "no admin API"),
        ] {
            let found = fault(&response(status, fields, body), token).unwrap_or_default();
            assert!(found.contains(wanted), "{wanted}: {found}");
        }
        assert_eq!(fault(&response("200 OK", ADMIN, ""), None), None);
    }
}
