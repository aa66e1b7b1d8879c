//! Learns which rank keeps a response, from the answer as it passes.

use crate::relay::ResponseIdScan;
use crate::state::shard::Shard;
use forebay_fleet::mailbox::{KeptPlace, KeptResponse};
use forebay_http1::ResponseHead;
use forebay_prompt::parse::Endpoint;
use std::cell::Cell;
use std::fmt::{self, Debug};
use std::ops::ControlFlow;
use std::rc::Rc;

/// A response whose id has not passed yet.
pub(crate) struct KeptScan {
    shard: Rc<Shard>,
    scan: ResponseIdScan,
    place: KeptPlace,
}

impl KeptScan {
    /// For an answer of that head. `None` where it begins no response.
    pub(crate) fn of(
        shard: &Shard,
        head: &ResponseHead,
        endpoint: Endpoint,
        place: KeptPlace,
    ) -> KeptSearch {
        let begins = endpoint == Endpoint::Responses && head.status == 200;
        let shard = begins.then(|| shard.me.upgrade()).flatten();
        KeptSearch(Cell::new(shard.map(|shard| {
            let scan = ResponseIdScan::new(head.event_stream);
            Box::new(Self { shard, scan, place })
        })))
    }

    /// Takes the next bytes of the answer; false when no more are wanted. The other shards are told
    /// before the client can know the id.
    pub(crate) fn feed(&mut self, data: &[u8]) -> bool {
        let ControlFlow::Break(found) = self.scan.feed(data) else { return true };
        if let Some(id) = found {
            let response = KeptResponse { id, place: self.place };
            self.shard.routing.kept.borrow_mut().note(response);
            self.shard.links.tell_of_response(&self.shard.env, response);
        }
        false
    }
}

/// The search for the id of a response, while there is one.
#[derive(Default)]
pub(crate) struct KeptSearch(Cell<Option<Box<KeptScan>>>);

impl KeptSearch {
    /// Goes on through the next bytes of the answer.
    pub(crate) fn feed(&self, data: &[u8]) {
        if let Some(mut scan) = self.0.take()
            && scan.feed(data)
        {
            self.0.set(Some(scan));
        }
    }

    /// Ends the search, whatever it has found.
    pub(crate) fn end(&self) {
        self.0.take();
    }
}

impl Debug for KeptSearch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeptSearch")
    }
}
