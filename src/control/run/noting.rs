//! Notes of requests on their way from the shards to `forebay record`, while it reads.

use super::super::reports::NoteReading;
use super::Control;
use forebay_admin::NotesReader;
use forebay_fleet::account::Count;
use forebay_fleet::worker::NoteSink;

impl Control {
    /// A reader of notes; `None` while there is another one.
    pub(super) fn read_notes(&mut self) -> Option<NotesReader> {
        if self.noting.as_ref().is_some_and(|reading| !reading.is_closed()) {
            return None;
        }
        let (reading, reader) = NoteReading::new(self.lost_by_shards());
        self.noting = Some(reading);
        self.publish();
        self.pass_notes_on();
        Some(reader)
    }

    /// Where shards put notes, for the next fleet.
    pub(super) fn note_sink(&self) -> Option<NoteSink> {
        self.noting.as_ref().map(NoteReading::sink)
    }

    /// Hands the reader what has come; the shards stop to note when the reader has gone.
    pub(super) fn pass_notes_on(&mut self) {
        if self.noting.is_none() {
            return;
        }
        let shards_lost = self.lost_by_shards();
        let Some(reading) = &mut self.noting else { return };
        if reading.is_closed() {
            self.noting = None;
            self.publish();
            return;
        }
        reading.pass_on(&self.snapshot, shards_lost);
    }

    /// Ends the stream: another process serves the address from now on.
    pub(super) fn end_notes(&mut self) {
        self.noting = None;
    }

    fn lost_by_shards(&self) -> u64 {
        self.ports.counters().iter().map(|shard| shard.value(Count::NotesLost)).sum()
    }
}
