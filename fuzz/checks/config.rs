//! Any text as the file of the configuration. Must hold: a finding points into the file; a file
//! without an error is written out and read again as the same; to load what runs changes nothing.

use forebay_config::{Config, ConfigText, Flags, load, to_toml};

/// Panics when a rule above is broken.
pub(crate) fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let loaded = load(Some(ConfigText { name: "fuzz.toml", text }), &Flags::default());
    let (lines, longest) =
        text.split('\n').fold((0, 0), |(count, most), line| (count + 1, most.max(line.len())));
    for finding in &loaded.findings {
        let (_, line, column) = finding.position();
        assert!(line <= lines + 1 && column <= longest + 2, "{finding:?}");
    }
    let Ok(config) = loaded.usable() else { return };
    let written = to_toml(&config);
    let again = Config::from_toml(&written);
    let again = again.unwrap_or_else(|findings| panic!("{findings:?} in\n{written}"));
    assert_eq!(to_toml(&again), written);
    let mut running = config.clone();
    let changes = running.take_over(&config);
    assert!(changes.applied.is_empty() && changes.restart.is_empty(), "{changes:?}\n{written}");
}
