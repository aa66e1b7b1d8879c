//! The connections of the admin API. Bounded in number and in time, so that whoever reaches the
//! port cannot take the descriptors of the data plane: when all are taken, the one that has been
//! silent longest makes room.

use axum::Router;
use forebay_base::limits::{ADMIN_CONNECTIONS_MAX, ADMIN_IDLE_MAX};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, spawn_local};
use tokio::time::{Instant, sleep, timeout_at};
use tracing::warn;

/// After the kernel refused to hand out a connection: others will end meanwhile.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// One open connection.
struct Open {
    /// When its last call began.
    called_at: Rc<Cell<Instant>>,
    task: AbortHandle,
}

/// Serves until the task is dropped.
pub(crate) async fn serve(listener: TcpListener, router: Router) {
    let mut open: Vec<Open> = Vec::new();
    let mut has_failed = false;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                has_failed = false;
                make_room(&mut open);
                let called_at = Rc::new(Cell::new(Instant::now()));
                let task = spawn_local(connection(stream, router.clone(), Rc::clone(&called_at)));
                open.push(Open { called_at, task: task.abort_handle() });
            }
            Err(error) => {
                if !std::mem::replace(&mut has_failed, true) {
                    warn!(%error, "the admin API cannot accept a connection");
                }
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Forgets connections that have ended, and ends the one that has been silent longest where there
/// are too many.
fn make_room(open: &mut Vec<Open>) {
    open.retain(|one| !one.task.is_finished());
    while open.len() >= ADMIN_CONNECTIONS_MAX {
        let longest = open.iter().enumerate().min_by_key(|(_, one)| one.called_at.get());
        let Some((position, _)) = longest else { return };
        open.swap_remove(position).task.abort();
    }
}

/// A slow head, a slow body, an answer that is not read, silence: all end at the same time after
/// the last call began.
async fn connection(stream: TcpStream, router: Router, called_at: Rc<Cell<Instant>>) {
    let _ = stream.set_nodelay(true);
    let service = TowerToHyperService::new(router);
    let calls = Rc::clone(&called_at);
    let service = service_fn(move |call: hyper::Request<Incoming>| {
        calls.set(Instant::now());
        service.call(call)
    });
    let mut served = pin!(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    loop {
        let end = called_at.get() + ADMIN_IDLE_MAX;
        if timeout_at(end, served.as_mut()).await.is_ok() || called_at.get() + ADMIN_IDLE_MAX <= end
        {
            return;
        }
    }
}
