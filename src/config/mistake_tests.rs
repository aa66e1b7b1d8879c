//! Planted mistakes: each file in `tests/data/mistakes` has a mistake that operators make. The line
//! of the mistake ends with `# mistake: WORDS | WORDS`: words of the finding, and of its advice.

use super::{ConfigText, Finding, Flags, Origin, Severity, load};
use std::fs;
use std::path::Path;

const FOLDER: &str = "../../tests/data/mistakes";
const MARK: &str = "# mistake: ";

/// A planted mistake.
struct PlantedMistake {
    line: usize,
    what: String,
    help: String,
}

fn planted(name: &str, text: &str) -> PlantedMistake {
    let mut lines = text.lines().enumerate();
    let found = lines.find_map(|(index, line)| Some((index + 1, line.split_once(MARK)?.1)));
    let (line, words) = found.unwrap_or_else(|| panic!("{name}: no line has {MARK:?}"));
    let (what, help) = words.split_once(" | ").unwrap_or_else(|| panic!("{name}: no advice"));
    PlantedMistake { line, what: what.trim().to_owned(), help: help.trim().to_owned() }
}

fn is_at(finding: &Finding, file: &str, wanted: usize) -> bool {
    matches!(&finding.origin, Origin::File { name, line, .. } if name == file && *line == wanted)
}

#[test]
fn each_planted_mistake_is_named_with_its_line_and_what_to_do() {
    let mut files: Vec<_> =
        fs::read_dir(FOLDER).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 60, "{}", files.len());
    let mut faults = Vec::new();
    for path in files {
        let name = Path::file_name(&path).unwrap().to_str().unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let mistake = planted(name, &text);
        let loaded = load(Some(ConfigText { name, text: &text }), &Flags::default());
        let is_hit = |finding: &&Finding| {
            let text = finding.to_string();
            let has_words = text.contains(&mistake.what) && text.contains(&mistake.help);
            is_at(finding, name, mistake.line) && has_words
        };
        let shown: Vec<String> = loaded.findings.iter().map(ToString::to_string).collect();
        if loaded.findings.iter().filter(is_hit).count() != 1 {
            faults.push(format!("{name}: not named: {shown:#?}"));
        }
        // A mistake must not make a reader look at places that are right.
        let further = loaded.findings.iter().filter(|finding| {
            finding.severity == Severity::Error && !is_at(finding, name, mistake.line)
        });
        if further.count() > 0 {
            faults.push(format!("{name}: further errors: {shown:#?}"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
