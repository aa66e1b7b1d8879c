//! One handshake a turn of the loop.

use forebay_base::NanosSinceStart;
use forebay_net::{end_turn, now};
use std::cell::Cell;

/// Lets one task pass in each turn of the thread's loop. The cryptography of a handshake takes some
/// hundred microseconds: requests under way wait for one at most, however many clients come.
#[derive(Debug, Default)]
pub struct Turnstile {
    passed_in: Cell<Option<NanosSinceStart>>,
}

impl Turnstile {
    /// Waits for a turn in which nobody has passed.
    pub async fn pass(&self) {
        while let Some(turn) = now() {
            if self.passed_in.replace(Some(turn)) != Some(turn) {
                return;
            }
            end_turn().await;
        }
    }
}
