//! The listeners. A mirrored request is answered with 204 once its body is there, whatever the body
//! is. Bounded in connections, bytes and time: at a limit, a request is lost, and never waits.

use crate::body_places::BodyPlaces;
use crate::limits::{
    ACCEPT_PAUSE, BODIES_MAX, BODY_BYTES_MAX, BODY_TIME_MAX, CONNECTION_IDLE_MAX, CONNECTIONS_MAX,
    WRITE_MAX,
};
use crate::write_deadline::WriteDeadline;
use axum::body::{Body, to_bytes};
use axum::http::{Method, Request, Response, StatusCode};
use forebay_prompt::parse::Endpoint;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::spawn_local;
use tokio::time::{sleep, timeout};
use tracing::debug;

/// What becomes of a mirrored request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MirrorArrival<'a> {
    /// A body for an endpoint of engines.
    Body(Endpoint, &'a [u8]),
    /// A call without a prompt.
    Other,
    /// A request beyond a limit.
    Lost,
}

/// Takes the requests that arrive.
pub(crate) trait MirrorSink {
    fn take(&self, arrival: MirrorArrival<'_>);
}

/// Serves connections until it is dropped. Beyond [`CONNECTIONS_MAX`], a connection is closed at
/// once, after a call of `closed`.
pub(crate) async fn serve<A, F>(listener: TcpListener, answer: A, closed: impl Fn())
where
    A: Fn(Request<Incoming>) -> F + Clone + 'static,
    F: Future<Output = Response<Body>> + 'static,
{
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let Ok(permit) = Arc::clone(&room).try_acquire_owned() else {
            closed();
            continue;
        };
        let answer = answer.clone();
        spawn_local(async move {
            let service = service_fn(move |asked| {
                let answered = answer(asked);
                async move { Ok::<_, Infallible>(answered.await) }
            });
            let mut http = http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(CONNECTION_IDLE_MAX);
            let stream = TokioIo::new(WriteDeadline::new(stream, WRITE_MAX));
            if let Err(error) = http.serve_connection(stream, service).await {
                debug!(%error, "connection of a mirror");
            }
            drop(permit);
        });
    }
}

/// The service for mirrored requests.
pub(crate) fn mirror<S: MirrorSink + 'static>(
    sink: Rc<S>,
) -> impl Fn(Request<Incoming>) -> std::pin::Pin<Box<dyn Future<Output = Response<Body>>>> + Clone {
    let places = BodyPlaces::new(BODIES_MAX);
    move |asked| {
        let sink = Rc::clone(&sink);
        let places = Rc::clone(&places);
        Box::pin(async move {
            taken(&*sink, &places, asked).await;
            answer(StatusCode::NO_CONTENT, "", Body::empty())
        })
    }
}

async fn taken(sink: &impl MirrorSink, places: &Rc<BodyPlaces>, asked: Request<Incoming>) {
    let endpoint = endpoint(asked.method(), asked.uri().path());
    let Some(endpoint) = endpoint else { return sink.take(MirrorArrival::Other) };
    let place = places.take();
    let read = tokio::select! {
        // A body that is whole counts, also if its place is needed at the same moment.
        biased;
        read = timeout(BODY_TIME_MAX, body(asked)) => read.ok().flatten(),
        () = place.evicted() => None,
    };
    match read {
        Some(body) => sink.take(MirrorArrival::Body(endpoint, &body)),
        None => sink.take(MirrorArrival::Lost),
    }
}

async fn body(asked: Request<Incoming>) -> Option<Bytes> {
    to_bytes(Body::new(asked.into_body()), BODY_BYTES_MAX).await.ok()
}

/// The endpoint of a call with a prompt. A mirror may put a prefix before the path.
fn endpoint(method: &Method, path: &str) -> Option<Endpoint> {
    let is_at = |route: &str| path.ends_with(route);
    let post = *method == Method::POST;
    let found = match () {
        () if is_at("/v1/chat/completions") => Endpoint::ChatCompletions,
        () if is_at("/v1/completions") => Endpoint::Completions,
        () if is_at("/v1/responses") => Endpoint::Responses,
        () if is_at("/v1/messages") => Endpoint::Messages,
        () if is_at("/generate") => Endpoint::Generate,
        () => return None,
    };
    post.then_some(found)
}

/// An answer of the shadow.
pub(crate) fn answer(status: StatusCode, kind: &'static str, body: Body) -> Response<Body> {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    if !kind.is_empty()
        && let Ok(kind) = axum::http::HeaderValue::from_str(kind)
    {
        answer.headers_mut().insert(axum::http::header::CONTENT_TYPE, kind);
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_are_found_behind_any_prefix() {
        let post = |path| endpoint(&Method::POST, path);
        assert_eq!(post("/v1/chat/completions"), Some(Endpoint::ChatCompletions));
        assert_eq!(post("/mirror/v1/completions"), Some(Endpoint::Completions));
        assert_eq!(post("/v1/embeddings"), None);
        assert_eq!(endpoint(&Method::GET, "/v1/completions"), None);
    }
}
