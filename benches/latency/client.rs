//! A kept connection of the load, and what the head of an answer says.

use forebay_bench_rig::{Connection, Event, EventReader, Part, Rig, decimal, field};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

const OVERLAP_FIELD: &[u8] = b"x-forebay-overlap-tokens";

/// A connection.
pub(crate) struct Client {
    connection: Connection,
    /// Tokens of the prompt that the router found in its index, if the answer has the field.
    pub(crate) overlap_tokens: Option<u64>,
    events: EventReader,
}

impl Client {
    pub(crate) fn connect(address: SocketAddr, rig: &Rig, number: u32) -> io::Result<Self> {
        let connection = Connection::open(address, &rig.poller, number)?;
        Ok(Self { connection, overlap_tokens: None, events: EventReader::default() })
    }

    pub(crate) fn send(&mut self, rig: &Rig, request: &Rc<[u8]>) -> io::Result<()> {
        self.connection.send(&rig.poller, Rc::clone(request))
    }

    /// Reads; the status of an answer once it is complete.
    pub(crate) fn read_answer(&mut self, rig: &mut Rig) -> io::Result<Option<u16>> {
        let overlap = &mut self.overlap_tokens;
        let is_done = self.connection.receive(&rig.poller, &mut rig.scratch, |part| {
            if let Part::Head(head) = part {
                let tokens = field(head, OVERLAP_FIELD).and_then(decimal);
                *overlap = tokens.and_then(|tokens| u64::try_from(tokens).ok());
            }
        })?;
        Ok(is_done.then(|| self.connection.status()))
    }

    /// Reads a part of a stream; gives the due time of every event in it to `due`. True at the end
    /// of the stream.
    pub(crate) fn read_events(
        &mut self,
        rig: &mut Rig,
        event: &Event,
        mut due: impl FnMut(u64),
    ) -> io::Result<bool> {
        let events = &mut self.events;
        let mut is_changed = false;
        let is_done = self.connection.receive(&rig.poller, &mut rig.scratch, |part| {
            if let Part::Body(part) = part {
                events.take(part, event, |due_ns| match due_ns {
                    Some(due_ns) => due(due_ns),
                    None => is_changed = true,
                });
            }
        })?;
        match self.connection.status() {
            0 | 200 if !is_changed => Ok(is_done),
            status => Err(io::Error::other(format!("status {status}, or an event was changed"))),
        }
    }
}
