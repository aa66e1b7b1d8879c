//! Hands the live page what it shows, while somebody looks.

use super::Control;
use forebay_admin::{LiveSources, ReloadRefused, Reloaded};

impl Control {
    /// Makes a snapshot for the live page, if it is time for one.
    pub(super) fn show_live(&mut self) {
        if !self.live.is_due(self.env.clock.now()) {
            return;
        }
        let mut live = std::mem::take(&mut self.live);
        let reasons = self.readiness();
        let replicas = self.replicas.as_ref().map(|replicas| replicas.list());
        self.scrape(|scrape| {
            self.workers(|workers| {
                live.show(&LiveSources { scrape, workers, reasons, replicas });
            });
        });
        self.live = live;
    }

    /// Notes what came of a reload.
    pub(super) fn note_reload(&mut self, done: &Result<Reloaded, ReloadRefused>) {
        let text = match done {
            Ok(done) => match done.changes.applied.len() {
                0 => "configuration read again: no key changed".to_owned(),
                _ => format!("configuration read again: {}", done.changes.applied.join(", ")),
            },
            Err(_) => "configuration read again: refused, nothing changed".to_owned(),
        };
        self.live.reloaded(text, self.env.clock.now());
    }
}
