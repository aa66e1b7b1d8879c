//! Rules with exceptions of today: each exception stands in `tests/data/house_baseline.toml`, and
//! that list may only become shorter.

use super::rules::empty_word;
use super::source::{Source, WIDTH_MAX};
use super::tree::{Tree, circles};
use super::words;
use std::collections::BTreeMap;
use std::fmt::Write;

/// What is counted, in the order of the file. Each with what is wrong with it.
pub(crate) const RULES: &[(&str, &str)] = &[
    ("circles", "files that use each other in a circle"),
    ("type_names", "type names that stand more than once in the crate"),
    ("clocks", "clocks read outside of the files that may"),
    ("chance", "random numbers drawn outside of the files that may"),
    ("short_docs", "doc comments of less than four words"),
    ("tuple_parameters", "parameters that are a tuple so that the argument lint passes"),
    ("large_structs", "structs of more than eight fields"),
    ("empty_words", "names with a word that says nothing"),
    ("no_nouns", "type names that end with a participle, a verb or an adverb"),
    ("stand_ins", "stand-ins in comments (who, one, nobody, those, others)"),
    ("speech", "verbs of speech in comments (tell, say, hear)"),
    ("wide_lines", "lines over 100 columns"),
    ("wide_literals", "lines over 100 columns because of a literal"),
];
pub(crate) const DOC_WORDS_MIN: usize = 4;
pub(crate) const FIELDS_MAX: usize = 8;
/// Names of functions and types that read a clock, whoever offers them.
const CLOCKS: &[&str] =
    &["Instant::now", "SystemTime::now", "clock_gettime", "Utc::now", "Local::now"];
/// Where a clock may be read: the process clock itself.
const CLOCK_FILES: &[&str] = &["src/base/clock.rs"];
/// Shown of the findings that are too many.
const SHOWN_MAX: usize = 12;

/// One exception.
pub(crate) struct Finding {
    pub rule: &'static str,
    /// What the exceptions are counted by: a file, a room, a name.
    pub key: String,
    /// File and line, and what was found there.
    pub at: String,
}

/// Exceptions by rule and key.
pub(crate) type Baseline = BTreeMap<String, BTreeMap<String, usize>>;

/// Everything that is found, in the crate and in the files `beside` it.
pub(crate) fn findings(tree: &Tree, beside: &[Source]) -> Vec<Finding> {
    let mut found = circle_findings(tree);
    found.extend(repeated_types(tree));
    for (file, source) in tree.sources.iter().enumerate() {
        if !tree.is_test[file] {
            of_product(source, tree.room(file), &mut found);
        }
        wide(source, tree.room(file), &mut found);
    }
    for source in beside {
        let folder = source.path.split('/').next().unwrap_or_default();
        wide(source, folder, &mut found);
    }
    found
}

fn circle_findings(tree: &Tree) -> Vec<Finding> {
    let edges = tree.edges();
    let mut found = Vec::new();
    for circle in circles(&edges) {
        for file in &circle {
            let uses = edges[*file].iter().filter(|(used, _)| circle.contains(used));
            let uses = uses.map(|(used, edge)| {
                format!("{} (line {}: {})", tree.sources[*used].path, edge.line, edge.path)
            });
            let uses: Vec<String> = uses.collect();
            let path = &tree.sources[*file].path;
            let at = format!("{path}: circle of {} files, uses {}", circle.len(), uses.join(", "));
            found.push(Finding { rule: "circles", key: path.clone(), at });
        }
    }
    found
}

fn repeated_types(tree: &Tree) -> Vec<Finding> {
    let mut places: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (file, source) in tree.sources.iter().enumerate() {
        let is_product = |line: usize| !tree.is_test[file] && !source.is_test_line(line);
        for one in source.types.iter().filter(|one| is_product(one.line)) {
            places.entry(&one.name).or_default().push(format!("{}:{}", source.path, one.line));
        }
    }
    let repeated = places.into_iter().filter(|(_, places)| places.len() > 1);
    let findings = repeated.flat_map(|(name, places)| {
        places.into_iter().map(move |place| Finding {
            rule: "type_names",
            key: name.to_owned(),
            at: format!("{place}: {name}"),
        })
    });
    findings.collect()
}

fn of_product(source: &Source, room: &str, found: &mut Vec<Finding>) {
    let path = &source.path;
    let mut note = |rule: &'static str, key: String, line: usize, what: &str| {
        if !source.is_test_line(line) {
            found.push(Finding { rule, key, at: format!("{path}:{line}: {what}") });
        }
    };
    for name in &source.names {
        let is_clock = |clock: &&str| {
            name.path
                .strip_suffix(*clock)
                .is_some_and(|rest| rest.is_empty() || rest.ends_with(':'))
        };
        if CLOCKS.iter().any(is_clock) && !CLOCK_FILES.contains(&path.as_str()) {
            note("clocks", path.clone(), name.line, &name.path);
        }
        if is_chance(&name.path) {
            note("chance", path.clone(), name.line, &name.path);
        }
    }
    for doc in source.docs.iter().filter(|doc| doc.word_count < DOC_WORDS_MIN) {
        note("short_docs", room.to_owned(), doc.line, &format!("{} words", doc.word_count));
    }
    for function in source.functions.iter().filter(|function| function.tuple_count > 0) {
        let key = format!("{path} {}", function.name);
        note("tuple_parameters", key, *function.lines.start(), &function.name);
    }
    for found in words::private_words(source) {
        let rule = if found.is_speech { "speech" } else { "stand_ins" };
        note(rule, room.to_owned(), found.line, found.word);
    }
    for one in &source.types {
        if let Some(word) = words::no_noun(&one.name) {
            note("no_nouns", room.to_owned(), one.line, &format!("`{word}` in {}", one.name));
        }
        let key = format!("{path} {}", one.name);
        if one.field_count > FIELDS_MAX {
            let what = format!("{}: {} fields", one.name, one.field_count);
            note("large_structs", key.clone(), one.line, &what);
        }
        if let Some(word) = empty_word(&one.name) {
            note("empty_words", key, one.line, &format!("`{word}` in {}", one.name));
        }
    }
    for module in source.modules.iter().filter(|module| !module.is_test) {
        if let Some(word) = empty_word(&module.name) {
            let key = format!("{path} {}", module.name);
            note("empty_words", key, module.line, &format!("`{word}` in {}", module.name));
        }
    }
}

/// Numbers that no seed repeats. A generator with a seed is an argument like any other.
fn is_chance(path: &str) -> bool {
    let of_fastrand = path.strip_prefix("fastrand::").is_some_and(|rest| !rest.starts_with("Rng"));
    of_fastrand || path.ends_with("Rng::new") || path.starts_with("getrandom::")
}

fn wide(source: &Source, place: &str, found: &mut Vec<Finding>) {
    for (index, line) in source.lines.iter().enumerate() {
        let columns = line.text.chars().count();
        if columns > WIDTH_MAX {
            let rule = if line.has_wide_literal { "wide_literals" } else { "wide_lines" };
            let at = format!("{}:{}: {columns} columns", source.path, index + 1);
            found.push(Finding { rule, key: place.to_owned(), at });
        }
    }
}

/// Counts by rule and key.
pub(crate) fn count(findings: &[Finding]) -> Baseline {
    let mut counts: Baseline =
        RULES.iter().map(|(rule, _)| ((*rule).to_owned(), BTreeMap::new())).collect();
    for finding in findings {
        let of_rule = counts.entry(finding.rule.to_owned()).or_default();
        *of_rule.entry(finding.key.clone()).or_default() += 1;
    }
    counts
}

/// Where the counts differ from the baseline.
pub(crate) fn compare(findings: &[Finding], baseline: &Baseline) -> Vec<String> {
    let counts = count(findings);
    let mut faults = Vec::new();
    for (rule, what) in RULES {
        let empty = BTreeMap::new();
        let now = counts.get(*rule).unwrap_or(&empty);
        let then = baseline.get(*rule).unwrap_or(&empty);
        let keys: std::collections::BTreeSet<&String> = now.keys().chain(then.keys()).collect();
        for key in keys {
            let figure = |counts: &BTreeMap<String, usize>| counts.get(key).copied().unwrap_or(0);
            let now = figure(now);
            let then = figure(then);
            if now > then {
                let of_key = findings.iter().filter(|one| one.rule == *rule && one.key == *key);
                let places: Vec<&str> = of_key.map(|one| one.at.as_str()).take(SHOWN_MAX).collect();
                let places = places.join("\n    ");
                faults.push(format!("{what}: {key} has {now}, at most {then}\n    {places}"));
            }
            if now < then {
                faults.push(format!("{what}: {key} has {now} and not {then} any more: well done, now run tools/figures --lower"));
            }
        }
    }
    faults
}

/// Rules of which there is more than the baseline allows, in sum. Such a baseline is not replaced.
pub(crate) fn grown(counts: &Baseline, baseline: &Baseline) -> Vec<String> {
    let sum = |of: &Baseline, rule: &str| of.get(rule).map_or(0, |keys| keys.values().sum());
    let grown = RULES.iter().filter_map(|(rule, what)| {
        let now: usize = sum(counts, rule);
        let then: usize = sum(baseline, rule);
        (now > then).then(|| format!("{what}: {now} in all, at most {then}"))
    });
    grown.collect()
}

pub(crate) fn read(text: &str) -> Result<Baseline, String> {
    toml_edit::de::from_str(text).map_err(|error| error.to_string())
}

pub(crate) fn write(counts: &Baseline) -> String {
    let mut text =
        "# Exceptions of today from the rules of tests/house. A figure may only become less.\n\
        # After it has: tools/figures --lower\n"
            .to_owned();
    for (rule, what) in RULES {
        let _ = write!(text, "\n# {what}\n[{rule}]\n");
        for (key, count) in counts.get(*rule).into_iter().flatten() {
            let _ = writeln!(text, "{key:?} = {count}");
        }
    }
    text
}
