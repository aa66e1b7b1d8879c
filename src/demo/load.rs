//! The load: a fixed number of people who talk to the model, each asking, reading the answer,
//! pausing, asking again. One task a person on the demo's runtime; outcomes go to one channel.
//! Closed loop: a slow answer delays that person only.

use super::client::ChatClient;
use super::conversations::Conversations;
use super::meter::DemoOutcome;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Outcomes on their way to the meter. Unbounded by type; at most one a person is under way between
/// two reads.
pub(super) type OutcomeSink = mpsc::UnboundedSender<DemoOutcome>;

/// Starts everyone. The load ends when the returned set is dropped.
pub(super) fn start(
    conversations: &Arc<Conversations>,
    client: &ChatClient,
    url: &Arc<str>,
    outcomes: &OutcomeSink,
) -> JoinSet<()> {
    let mut people = JoinSet::new();
    for slot in 0..conversations.sizes().slots {
        let person = Person {
            slot,
            conversations: conversations.clone(),
            client: client.clone(),
            url: url.clone(),
            outcomes: outcomes.clone(),
            random: fastrand::Rng::with_seed(slot.into()),
        };
        people.spawn(person.talk());
    }
    people
}

struct Person {
    slot: u32,
    conversations: Arc<Conversations>,
    client: ChatClient,
    url: Arc<str>,
    outcomes: OutcomeSink,
    random: fastrand::Rng,
}

impl Person {
    async fn talk(mut self) {
        let slots = self.conversations.sizes().slots;
        // Nobody comes at the same moment as anybody else.
        let share = self.random.f64() * 2.0;
        self.pause(share).await;
        for number in (self.slot..).step_by(slots.max(1) as usize) {
            let mut conversation = self.conversations.begin(number);
            while let Some(body) = self.conversations.ask(&mut conversation) {
                let (outcome, text) = self.client.chat(&self.url, body).await;
                if self.outcomes.send(outcome).is_err() {
                    return;
                }
                conversation.answered(&text);
                let exponential = -(1.0 - self.random.f64()).ln();
                self.pause(exponential.min(4.0)).await;
                if outcome == DemoOutcome::Failed {
                    break;
                }
            }
        }
    }

    async fn pause(&self, share: f64) {
        let ms = self.conversations.sizes().think_ms * share;
        tokio::time::sleep(Duration::try_from_secs_f64(ms / 1_000.0).unwrap_or_default()).await;
    }
}
