//! The live page and its files, which are part of the binary, and the stream that feeds the page.
//! The files name no other host, and [`POLICY`] prevents a browser from loading anything else.
//! Limits: a viewer takes a connection of the admin API (`ADMIN_CONNECTIONS_MAX`); there are at
//! most `LIVE_VIEWERS_MAX` viewers.

use super::question::{Question, Questions, ask, gone, refused};
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

/// Scripts, styles and calls of this origin alone; no embedding in a frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' \
                      data:; connect-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";

/// Name, type and text of each file.
const FILES: [(&str, &str, &str); 12] = [
    ("page.css", STYLE, include_str!("page/page.css")),
    ("fleet.css", STYLE, include_str!("page/fleet.css")),
    ("app.js", SCRIPT, include_str!("page/app.js")),
    ("calls.js", SCRIPT, include_str!("page/calls.js")),
    ("charts.js", SCRIPT, include_str!("page/charts.js")),
    ("explain.js", SCRIPT, include_str!("page/explain.js")),
    ("figures.js", SCRIPT, include_str!("page/figures.js")),
    ("fleet.js", SCRIPT, include_str!("page/fleet.js")),
    ("flow.js", SCRIPT, include_str!("page/flow.js")),
    ("uplot.js", SCRIPT, include_str!("page/vendor/uplot.js")),
    ("uplot.css", STYLE, include_str!("page/vendor/uplot.css")),
    ("uplot.LICENSE", TEXT, include_str!("page/vendor/uplot.LICENSE")),
];
const INDEX: &str = include_str!("page/index.html");

/// Answers `GET /`: the page itself.
pub(crate) async fn index() -> Response {
    served("text/html; charset=utf-8", INDEX)
}

/// Answers `GET /page/{file}`: scripts and styles of the page.
pub(crate) async fn file(Path(name): Path<String>) -> Response {
    match FILES.iter().find(|(file, _, _)| *file == name) {
        Some((_, kind, text)) => served(kind, text),
        None => (StatusCode::NOT_FOUND, "no such file of the live page: GET / names its files")
            .into_response(),
    }
}

fn served(kind: &'static str, text: &'static str) -> Response {
    let fields = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        // Another version of the router serves another page at the same address.
        (header::CACHE_CONTROL, "no-store"),
    ];
    (fields, text).into_response()
}

/// Answers `GET /live`: a snapshot per second until the viewer disconnects.
pub(crate) async fn stream(State(questions): State<Questions>) -> Response {
    let fields = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    match ask(&questions, Question::Watch).await {
        Some(Some(viewer)) => (fields, Body::new(viewer)).into_response(),
        Some(None) => {
            let busy = "the live page is open in too many places";
            refused(StatusCode::SERVICE_UNAVAILABLE, busy)
        }
        None => gone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::to_bytes;

    /// Hosts that a text names, but for the names of XML vocabularies.
    fn foreign_hosts(text: &str) -> Vec<&str> {
        let hosts = text.split("//").skip(1).map(|rest| {
            rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '.' && c != '-').next()
        });
        let is_host = |host: &&str| host.contains('.') && *host != "www.w3.org";
        hosts.flatten().filter(is_host).collect()
    }

    #[test]
    fn what_is_served_names_no_other_host() {
        let files = FILES.iter().map(|(name, _, text)| (*name, *text));
        for (name, text) in files.chain([("index.html", INDEX)]) {
            assert_eq!(foreign_hosts(text), [""; 0], "{name}");
            assert!(!text.contains("http:") || name.ends_with(".js"), "{name}");
        }
        assert_eq!(foreign_hosts("a // https://x.example/y"), ["x.example"]);
        assert!(POLICY.contains("default-src 'none'") && !POLICY.contains("unsafe"));
    }

    #[test]
    fn each_file_that_the_page_names_is_served_and_no_other_text_is_code() {
        for (name, kind, _) in FILES {
            let is_named = |text: &str| text.contains(&format!("/page/{name}"));
            let is_imported = |text: &str| text.contains(&format!("\"./{name}\""));
            let somewhere = FILES.iter().any(|(_, _, text)| is_imported(text)) || is_named(INDEX);
            assert!(somewhere, "{name} is not used");
            assert!(!kind.is_empty());
        }
        let inline = ["<style", "style=", "onclick=", "javascript:", "<script>"];
        for text in inline {
            assert!(!INDEX.contains(text), "the policy forbids {text}");
        }
    }

    #[tokio::test]
    async fn files_have_their_type_and_the_policy() {
        for (name, kind, text) in FILES {
            let answer = file(Path(name.to_owned())).await;
            assert_eq!(answer.status(), StatusCode::OK);
            assert_eq!(answer.headers()[header::CONTENT_TYPE], kind);
            assert_eq!(answer.headers()[header::CONTENT_SECURITY_POLICY], POLICY);
            assert_eq!(answer.headers()[header::CACHE_CONTROL], "no-store");
            let body = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
            assert_eq!(body, text);
        }
        assert_eq!(index().await.headers()[header::X_CONTENT_TYPE_OPTIONS], "nosniff");
        let missing = file(Path("../Cargo.toml".to_owned())).await;
        assert_eq!(missing.status(), StatusCode::NOT_FOUND);
    }
}
