//! `GET /metrics`: reads all counters in place and writes them as text. Called by the control
//! plane's loop; costs nothing between scrapes.

use super::catalogue::OF_CONTROL;
use super::metrics_text::MetricsText;
use crate::sources::{ScrapeSources, total};
use forebay_board::account::Count;

/// All metrics as text.
#[must_use]
pub fn render(sources: &ScrapeSources<'_>) -> String {
    let mut text = MetricsText::default();
    for (metric, samples) in OF_CONTROL {
        samples.write(sources, &mut text.open(metric));
    }
    for (count, metric) in Count::ALL {
        let value = total(sources.shards.counters, |shard| shard.value(*count));
        text.open(metric).sample(&[], value);
    }
    text.finish()
}
