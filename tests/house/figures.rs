//! Figures of the house, as `tools/figures` prints them: one Markdown table row each.

use super::ratchet::{FIELDS_MAX, Finding};
use super::source::Source;
use super::tree::{Tree, circles};
use super::words;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Folders that decide: there a comment says why, and an assertion what is known.
const CORE: &[&str] = &[
    "src/board/admit/",
    "src/fleet/worker/",
    "src/index/",
    "src/router/",
    "src/select/",
    "src/dataplane/",
];
const ASSERTIONS: &[&str] = &[
    "assert",
    "assert_eq",
    "assert_ne",
    "debug_assert",
    "debug_assert_eq",
    "debug_assert_ne",
    "invariant",
];
/// Comments that a rule demands, so that they tell nothing of the rest.
const DEMANDED: &[&str] = &["ordering:", "SAFETY:", "INVARIANT:"];

/// What is counted of a room, or of all.
#[derive(Default)]
struct Sum {
    lines: usize,
    code_lines: usize,
    test_lines: usize,
    files: Vec<usize>,
    functions: Vec<usize>,
    structs: usize,
    why_comments: usize,
    assertions: usize,
}

impl Sum {
    fn add(&mut self, source: &Source, is_test: bool) {
        let of_tests = source.lines.iter().filter(|line| is_test || line.is_test).count();
        self.test_lines += of_tests;
        if is_test {
            return;
        }
        let is_code = |line: usize| {
            source.lines.get(line - 1).is_some_and(|line| line.is_code && !line.is_test)
        };
        self.lines += source.lines.len() - of_tests;
        self.files.push(source.lines.len() - of_tests);
        self.code_lines += (1..=source.lines.len()).filter(|line| is_code(*line)).count();
        for function in &source.functions {
            if !source.is_test_line(*function.lines.start()) {
                self.functions.push(function.lines.clone().filter(|line| is_code(*line)).count());
            }
        }
        let is_struct =
            |one: &&super::source::Type| one.is_struct && !source.is_test_line(one.line);
        self.structs += source.types.iter().filter(is_struct).count();
        self.why_comments += why_comments(source);
        let asserts = |name: &&super::source::Name| {
            let last = name.path.rsplit("::").next().unwrap_or_default();
            ASSERTIONS.contains(&last) && !source.is_test_line(name.line)
        };
        self.assertions += source.names.iter().filter(asserts).count();
    }
}

/// Lines of comments, tests aside, but for the blocks that a rule demands.
fn why_comments(source: &Source) -> usize {
    let mut count = 0;
    let mut is_demanded = false;
    let mut is_block = false;
    for line in source.lines.iter().filter(|line| !line.is_test) {
        let Some(comment) = &line.comment else {
            is_block = false;
            continue;
        };
        if !is_block {
            is_demanded = DEMANDED.iter().any(|word| comment.trim_start().starts_with(word));
        }
        is_block = !line.is_code;
        count += usize::from(!is_demanded);
    }
    count
}

/// `| figure | value |`, line by line, then the lines by room.
pub(crate) fn all(tree: &Tree, findings: &[Finding]) -> String {
    let mut rooms: BTreeMap<&str, Sum> = BTreeMap::new();
    let mut whole = Sum::default();
    let mut core = Sum::default();
    for (file, source) in tree.sources.iter().enumerate() {
        let room = tree.room(file);
        let is_test = tree.is_test[file];
        rooms.entry(room).or_default().add(source, is_test);
        whole.add(source, is_test);
        if CORE.iter().any(|folder| source.path.starts_with(folder)) {
            core.add(source, is_test);
        }
    }
    let found = |rule: &str| findings.iter().filter(|one| one.rule == rule).count();
    let keys = |rule: &str| {
        let of_rule = findings.iter().filter(|one| one.rule == rule);
        of_rule.map(|one| one.key.as_str()).collect::<BTreeSet<_>>().len()
    };
    let circles = circles(&tree.edges());
    let large = found("large_structs");
    let mut text = "| figure | value |\n|---|---|\n".to_owned();
    let mut row = |figure: &str, value: String| {
        let _ = writeln!(text, "| {figure} | {value} |");
    };
    row(
        "lines of `src`, tests aside",
        format!("{}, {} of them code", whole.lines, whole.code_lines),
    );
    row("lines of tests in `src`", whole.test_lines.to_string());
    row("files: count; lines median / p90 / max", spread(&mut whole.files));
    row("functions: count; code lines median / p90 / max", spread(&mut whole.functions));
    row("circles of files", circles.len().to_string());
    row("files in circles, largest circle", {
        format!("{}, {}", found("circles"), circles.first().map_or(0, Vec::len))
    });
    row("type names that stand more than once", keys("type_names").to_string());
    row(&format!("structs of more than {FIELDS_MAX} fields"), {
        format!("{large} of {}, {} %", whole.structs, per(large, whole.structs, 100))
    });
    row("tuple parameters", found("tuple_parameters").to_string());
    row("names with empty words", found("empty_words").to_string());
    row("clock readings outside of `base/clock.rs`", found("clocks").to_string());
    row("random numbers without a seed", found("chance").to_string());
    row("doc comments of less than four words", found("short_docs").to_string());
    let words = comment_words(tree);
    let in_words = |rule| per(found(rule), words, 1_000);
    row("words of comments", words.to_string());
    row("stand-ins, per 1,000 words of comments", in_words("stand_ins"));
    row("verbs of speech, per 1,000 words of comments", in_words("speech"));
    row("type names that are no nouns", found("no_nouns").to_string());
    row("lines over 100 columns", found("wide_lines").to_string());
    row("lines over 100 columns because of a literal", found("wide_literals").to_string());
    let per_thousand = |count: usize| per(count, core.code_lines, 1_000);
    row("why-comments in the core, per 1,000 lines of code", per_thousand(core.why_comments));
    row("assertions in the core, per 1,000 lines of code", per_thousand(core.assertions));
    text.push_str("\n| room | lines | lines of tests | files |\n|---|---|---|---|\n");
    for (room, sum) in &rooms {
        let lines = sum.lines;
        let tests = sum.test_lines;
        let files = sum.files.len();
        let _ = writeln!(text, "| {room} | {lines} | {tests} | {files} |");
    }
    text
}

/// Words of all comments, tests aside.
fn comment_words(tree: &Tree) -> usize {
    let product = tree.sources.iter().zip(&tree.is_test).filter(|(_, is_test)| !**is_test);
    let comments = product.flat_map(|(source, _)| words::comments(source));
    comments.map(|(_, comment)| words::prose(comment).count()).sum()
}

/// Count; median / 90th percentile / maximum.
fn spread(figures: &mut [usize]) -> String {
    figures.sort_unstable();
    let at = |percent: usize| {
        let rank = (figures.len() * percent).div_ceil(100).max(1);
        figures.get(rank - 1).copied().unwrap_or(0)
    };
    format!("{}; {} / {} / {}", figures.len(), at(50), at(90), at(100))
}

/// `part` in `whole`, as so many in `base`, with one digit behind the point.
fn per(part: usize, whole: usize, base: usize) -> String {
    let tenths = (part * base * 10 + whole / 2) / whole.max(1);
    format!("{}.{}", tenths / 10, tenths % 10)
}
