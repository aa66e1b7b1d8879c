//! Messages between the replicas of a run, sent by the production code. A message is read at once,
//! and applied at its reader's next turn, 5 to 20 ms later.

use forebay_base::NanosSinceStart;
use forebay_replicas::{ConnectedReplica, Outgoing};

/// The prefix of the subjects.
const PREFIX: &str = "forebay";

/// The connected replicas of a run.
#[derive(Debug, Default)]
pub(crate) struct Messages {
    members: Vec<ConnectedReplica>,
}

impl Messages {
    /// Connects the replicas at the start of a run.
    pub(crate) fn new(members: Vec<ConnectedReplica>) -> Self {
        let mut messages = Self { members };
        let now = NanosSinceStart(0);
        for sender in 0..messages.members.len() {
            let hello = messages.members[sender].connected(now);
            messages.publish(sender, hello, now);
        }
        messages
    }

    /// Runs the turns that are due. Returns the time of the next turn; `None` where the replicas
    /// are not connected.
    pub(crate) fn turn(&mut self, now: NanosSinceStart) -> Option<NanosSinceStart> {
        for sender in 0..self.members.len() {
            if self.members[sender].turn_at() <= now {
                let windows = self.members[sender].windows(now);
                self.publish(sender, windows, now);
                let load = self.members[sender].turn(now).load;
                self.publish(sender, load, now);
            }
        }
        self.members.iter().map(ConnectedReplica::turn_at).min()
    }

    fn publish(&mut self, sender: usize, outgoing: Option<Outgoing>, now: NanosSinceStart) {
        let Some((kind, bytes)) = outgoing else { return };
        let subject = kind.subject(PREFIX);
        for (at, member) in self.members.iter_mut().enumerate() {
            if at != sender {
                member.read(&subject, &bytes, now);
            }
        }
    }
}
