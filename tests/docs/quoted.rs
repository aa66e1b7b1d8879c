//! Defaults that a page quotes behind the name of a key: `` `kv.host_credit_percent`, 80 % `` and
//! `` `limits.body_bytes_max` (32 MiB) ``. In decisions, they are values of their day.

use super::reference::default_text;
use super::texts_below;
use forebay::config::all_keys;

/// Folders of pages that describe the router of today.
const FOLDERS: [&str; 4] = ["docs/concepts", "docs/internals", "docs/operate", "docs/start"];

/// Quoted values that are no defaults, and the number of all quoted values.
fn wrong_quotes(text: &str) -> (Vec<String>, usize) {
    let mut wrong = Vec::new();
    let mut count = 0;
    for entry in all_keys() {
        let name = format!("`{}`", entry.key.path);
        let default = default_text(&entry).trim_matches(['`', '"']).to_owned();
        for (at, _) in text.match_indices(&name) {
            let behind = &text[at + name.len()..];
            let Some(value) = behind.strip_prefix(", ").or_else(|| behind.strip_prefix(" ("))
            else {
                continue;
            };
            let end = value.find(['|', ')', ',', ';', '.', '\n']).unwrap_or(value.len());
            let words: Vec<&str> = value[..end].split_whitespace().collect();
            let [number, unit] = *words else { continue };
            let Ok(count_of_unit) = number.parse::<u64>() else { continue };
            let plain = match unit {
                "KiB" => count_of_unit << 10,
                "MiB" => count_of_unit << 20,
                "GiB" => count_of_unit << 30,
                _ => count_of_unit,
            };
            count += 1;
            if default != plain.to_string() && default != format!("{number}{unit}") {
                wrong.push(format!("{name} is {number} {unit}, not {default}"));
            }
        }
    }
    (wrong, count)
}

#[test]
fn defaults_that_the_pages_quote_are_those_of_the_keys() {
    let mut all = 0;
    for folder in FOLDERS {
        let (wrong, count) = wrong_quotes(&texts_below(folder, "md"));
        assert!(wrong.is_empty(), "{folder}: {wrong:?}");
        all += count;
    }
    assert!(all > 0, "the pages quote no default: the test has lost its pattern");
    let planted = "`kv.host_credit_percent`, 79 % | `limits.body_bytes_max` (33 MiB)";
    assert_eq!(wrong_quotes(planted).0.len(), 2);
}
