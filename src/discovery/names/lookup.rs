//! Resolves a name in bounded time. A look-up of the system's resolver cannot be cancelled: a slow
//! look-up continues in the background, and the next call waits for it instead of starting another.

use super::followed_name::NAME_AGE_MAX;
use super::resolver;
use forebay_base::NameFault;
use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::ready;
use std::time::Duration;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::timeout;

/// A name, and its pending look-up.
#[derive(Debug)]
pub(crate) struct Lookup {
    host: String,
    port: u16,
    /// Validity of a resolver's answer while the host responds.
    pub(crate) age_max: Duration,
    pending: RefCell<Option<JoinHandle<io::Result<Vec<SocketAddr>>>>>,
    /// Answer of a test in place of the resolver's.
    #[cfg(test)]
    pub(crate) scripted: Option<std::rc::Rc<std::cell::Cell<SocketAddr>>>,
}

/// Most addresses of a name that are used.
const ADDRESSES_MAX: usize = 16;

impl Lookup {
    /// `host`: a name or an address, IPv6 without brackets.
    pub(crate) fn new(host: &str, port: u16) -> Self {
        Self {
            host: host.to_owned(),
            port,
            age_max: NAME_AGE_MAX,
            pending: RefCell::default(),
            #[cfg(test)]
            scripted: None,
        }
    }

    /// Addresses of the name in the resolver's order; never empty.
    pub(crate) async fn addresses(&self, within: Duration) -> io::Result<Vec<SocketAddr>> {
        #[cfg(test)]
        if let Some(scripted) = &self.scripted {
            return Ok(vec![scripted.get()]);
        }
        self.answer_of(within, addresses_of).await
    }

    /// Dropping the future leaves the look-up to the next call.
    async fn answer_of<F>(
        &self,
        within: Duration,
        ask: impl Fn(String, u16) -> F,
    ) -> io::Result<Vec<SocketAddr>>
    where
        F: Future<Output = io::Result<Vec<SocketAddr>>> + 'static,
    {
        let answered = poll_fn(|cx| {
            let mut pending = self.pending.borrow_mut();
            let asked =
                pending.get_or_insert_with(|| spawn_local(ask(self.host.clone(), self.port)));
            let answer = ready!(Pin::new(asked).poll(cx));
            *pending = None;
            answer.map_err(io::Error::other).flatten().into()
        });
        let late = |_| {
            let fault = NameFault::text(&self.host, format!("no answer within {within:?}"));
            Err(io::Error::new(io::ErrorKind::TimedOut, fault))
        };
        timeout(within, answered).await.unwrap_or_else(late)
    }
}

async fn addresses_of(host: String, port: u16) -> io::Result<Vec<SocketAddr>> {
    let unknown = |fault: String| io::Error::other(NameFault::text(&host, fault));
    // Without a deadline of its own: the next call waits for this look-up.
    let mut found = resolver::addresses_of(&host, port).await.map_err(unknown)?;
    found.truncate(ADDRESSES_MAX);
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_kv_events::test_support::block_on_local;
    use std::cell::Cell;
    use std::rc::Rc;
    use tokio::sync::Notify;

    #[test]
    fn a_resolver_that_is_silent_is_asked_once_and_waited_for_in_parts() {
        block_on_local(async {
            let asked = Rc::new(Cell::new(0));
            let answers = Rc::new(Notify::new());
            let ask = |_, port| {
                asked.set(asked.get() + 1);
                let answers = Rc::clone(&answers);
                async move {
                    answers.notified().await;
                    Ok(vec![SocketAddr::from(([127, 0, 0, 1], port))])
                }
            };
            let lookup = Lookup::new("name", 7);
            for _ in 0..3 {
                let late = lookup.answer_of(Duration::from_millis(5), ask).await;
                let late = late.unwrap_err();
                assert_eq!(late.kind(), io::ErrorKind::TimedOut);
                let text = "resolver of the system, asked for name: no answer within 5ms";
                assert_eq!(late.to_string(), text);
            }
            answers.notify_one();
            let found = lookup.answer_of(Duration::from_secs(30), ask).await.unwrap();
            assert_eq!((found[0].port(), asked.get()), (7, 1));
            answers.notify_one();
            lookup.answer_of(Duration::from_secs(30), ask).await.unwrap();
            assert_eq!(asked.get(), 2, "names move: the next question is a new one");
            let own = Lookup::new("::1", 9).addresses(Duration::from_secs(30)).await.unwrap();
            assert!(own.len() == 1 && own[0].is_ipv6());
        });
    }
}
