//! Finds the id of a stored response in a relayed answer. Later requests name the id, and are
//! routed to the rank that stores the response.

use super::event::{AnswerHead, Observer};
use crate::state::shard::Shard;
use forebay_json::ResponseIdScan;
use forebay_mailbox::{ResponsePlace, StoredResponse};
use forebay_prompt::parse::Endpoint;
use std::fmt::{self, Debug};
use std::ops::ControlFlow;
use std::rc::Rc;

/// Running search, if any.
#[derive(Debug, Default)]
pub(crate) struct ResponseSearch(Option<Box<Search>>);

/// Search for a response id that is not found yet.
struct Search {
    shard: Rc<Shard>,
    scan: ResponseIdScan,
    place: ResponsePlace,
}

impl Observer for ResponseSearch {
    fn answer_began(&mut self, event: &AnswerHead<'_>) {
        let begins = event.endpoint == Endpoint::Responses && event.head.status == 200;
        let shard = begins.then(|| event.shard.me.upgrade()).flatten();
        self.0 = shard.map(|shard| {
            let scan = ResponseIdScan::new(event.head.is_event_stream());
            Box::new(Search { shard, scan, place: event.place })
        });
    }

    fn passed(&mut self, data: &[u8]) {
        if self.0.as_mut().is_some_and(|search| search.feed(data).is_break()) {
            self.0 = None;
        }
    }
}

impl Search {
    /// Scans the next bytes of the answer. The id is sent to the other shards before the client can
    /// use it.
    fn feed(&mut self, data: &[u8]) -> ControlFlow<()> {
        let ControlFlow::Break(found) = self.scan.feed(data) else {
            return ControlFlow::Continue(());
        };
        if let Some(id) = found {
            let response = StoredResponse { id, place: self.place };
            self.shard.routing.stored_responses.borrow_mut().note(response);
            self.shard.links.broadcast_response(&self.shard.env, response);
        }
        ControlFlow::Break(())
    }
}

impl Debug for Search {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Search")
    }
}
