//! The page about limits: keys that bound something, and the constants of `src/base/limits.rs`.

use super::reference::{cell, default_text, kind_text};
use forebay::config::{KeyEntry, all_keys};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;
use syn::{Attribute, Expr, Item, ItemConst, Lit, Meta, Stmt, Type};

/// Sections of the configuration whose keys all are limits.
const SECTIONS: [&str; 2] = ["limits", "timeouts"];
/// Endings of keys that are limits in any section.
const ENDINGS: [&str; 5] = ["_max", "_min", "_per_minute", "_use_percent", "timeout"];
/// Further keys that are limits.
const FURTHER: [&str; 3] =
    ["rejection_window", "retry.budget_percent", "health.ejected_share_percent"];
/// Comment of `limits.rs` before the constants of a topic.
const TOPIC: &str = "// Topic: ";
/// Words of a table cell, as `tools/prose` counts them.
const CELL_WORDS_MAX: usize = 25;

/// Each key that is a limit.
pub(super) fn keys() -> String {
    let mut text = "| key | type | default | meaning |\n|---|---|---|---|\n".to_owned();
    for entry in all_keys().iter().filter(|entry| is_limit(entry.key.path)) {
        let path = entry.key.path;
        let kind = kind_text(entry);
        let default = cell(&default_text(entry));
        writeln!(text, "| `{path}` | {kind} | {default} | {} |", cell(entry.key.doc)).unwrap();
    }
    text
}

fn is_limit(path: &str) -> bool {
    let section = path.split_once('.').map_or("", |(section, _)| section);
    SECTIONS.contains(&section)
        || ENDINGS.iter().any(|ending| path.ends_with(ending))
        || FURTHER.contains(&path)
}

/// The constants, topic by topic.
pub(super) fn constants() -> String {
    tables(&source())
}

fn source() -> String {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "src", "base", "limits.rs"].iter().collect();
    std::fs::read_to_string(path).unwrap()
}

/// A table for each topic of the source.
fn tables(source: &str) -> String {
    let mut text = String::new();
    let mut values = BTreeMap::new();
    for topic in source.split(TOPIC).skip(1) {
        let (title, items) = topic.split_once(".\n").unwrap();
        writeln!(text, "### {title}\n\n| constant | value | meaning |\n|---|---|---|").unwrap();
        for item in syn::parse_file(items).unwrap().items {
            let Item::Const(constant) = item else { continue };
            let name = constant.ident.to_string();
            if name == "_" || is_mark(&constant.ty) {
                continue;
            }
            let value = evaluate(&constant.expr, &values);
            writeln!(text, "| `{name}` | {} | {} |", shown(&name, value), meaning(&constant))
                .unwrap();
            values.insert(name, value);
        }
        text.push('\n');
    }
    text
}

/// A constant that is a byte or a mark of a format, and bounds nothing.
fn is_mark(ty: &Type) -> bool {
    let Type::Path(path) = ty else { return false };
    path.path.is_ident("u8") || path.path.is_ident("u16")
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Value {
    Count(u64),
    Time(Duration),
}

impl Value {
    fn count(self) -> u64 {
        let Self::Count(count) = self else { panic!("{self:?} is no number") };
        count
    }
}

/// Value of an expression of numbers, times and constants before it. Features are off.
fn evaluate(expr: &Expr, values: &BTreeMap<String, Value>) -> Value {
    match expr {
        Expr::Lit(literal) => match &literal.lit {
            Lit::Int(number) => Value::Count(number.base10_parse().unwrap()),
            _ => panic!("a literal that is no number"),
        },
        Expr::Paren(inner) => evaluate(&inner.expr, values),
        Expr::Path(path) => {
            let name = path.path.segments.last().unwrap().ident.to_string();
            *values.get(&name).unwrap_or_else(|| panic!("{name} stands before its use"))
        }
        Expr::Binary(both) => {
            let left = evaluate(&both.left, values).count();
            let right = evaluate(&both.right, values).count();
            Value::Count(match both.op {
                syn::BinOp::Mul(_) => left * right,
                syn::BinOp::Add(_) => left + right,
                syn::BinOp::Shl(_) => left << right,
                _ => panic!("an operator without a rule"),
            })
        }
        Expr::If(choice) => {
            let (_, otherwise) = choice.else_branch.as_ref().unwrap();
            evaluate(otherwise, values)
        }
        Expr::Block(block) => match block.block.stmts.as_slice() {
            [Stmt::Expr(inner, None)] => evaluate(inner, values),
            _ => panic!("a block of more than one expression"),
        },
        Expr::Call(call) => {
            let Expr::Path(function) = &*call.func else { panic!("a call without a name") };
            let name = function.path.segments.last().unwrap().ident.to_string();
            let number = evaluate(call.args.first().unwrap(), values).count();
            Value::Time(match name.as_str() {
                "from_millis" => Duration::from_millis(number),
                "from_secs" => Duration::from_secs(number),
                "from_mins" => Duration::from_secs(60 * number),
                _ => panic!("{name} has no rule"),
            })
        }
        _ => panic!("an expression without a rule"),
    }
}

/// The value with its unit.
fn shown(name: &str, value: Value) -> String {
    const UNITS: [(u32, &str); 3] = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    match value {
        Value::Time(time) if time.subsec_millis() != 0 => format!("{} ms", time.as_millis()),
        Value::Time(time) if time.as_secs() > 60 => format!("{} min", time.as_secs() / 60),
        Value::Time(time) => format!("{} s", time.as_secs()),
        Value::Count(count) if name.contains("BYTES") => {
            let unit = UNITS.iter().find(|(shift, _)| count != 0 && count % (1 << shift) == 0);
            match unit {
                Some((shift, unit)) => format!("{} {unit}", thousands(count >> shift)),
                None => format!("{} bytes", thousands(count)),
            }
        }
        Value::Count(count) => thousands(count),
    }
}

fn thousands(count: u64) -> String {
    let digits = count.to_string();
    let groups: Vec<&str> = (0..digits.len())
        .filter(|at| (digits.len() - at).is_multiple_of(3) || *at == 0)
        .map(|at| {
            let end = digits.len() - (digits.len() - at - 1) / 3 * 3;
            &digits[at..end]
        })
        .collect();
    groups.join(",")
}

/// The first sentences of the doc comment that fit into a cell.
fn meaning(constant: &ItemConst) -> String {
    let lines = constant.attrs.iter().filter_map(doc_line);
    let text = lines.collect::<Vec<_>>().join(" ").replace("[`", "`").replace("`]", "`");
    let text = text.split("](").next().unwrap_or_default().trim();
    let mut kept = String::new();
    for sentence in text.split_inclusive(". ") {
        let longer = format!("{kept}{sentence}");
        if longer.split_whitespace().count() > CELL_WORDS_MAX {
            break;
        }
        kept = longer;
    }
    assert!(!kept.is_empty(), "{}: shorten the first sentence: {text}", constant.ident);
    cell(&kept)
}

fn doc_line(attribute: &Attribute) -> Option<String> {
    let Meta::NameValue(pair) = &attribute.meta else { return None };
    let Expr::Lit(literal) = &pair.value else { return None };
    let Lit::Str(line) = &literal.lit else { return None };
    attribute.path().is_ident("doc").then(|| line.value().trim().to_owned())
}

#[test]
fn values_are_those_of_the_code() {
    use forebay_base::limits as code;
    let shown = constants();
    let ranks = thousands(code::RANKS_MAX as u64);
    if !cfg!(feature = "ranks_4096") {
        assert!(shown.contains(&format!("| `RANKS_MAX` | {ranks} |")), "{shown}");
    }
    let responses = thousands(code::STORED_RESPONSES_MAX as u64);
    assert!(shown.contains(&format!("| `STORED_RESPONSES_MAX` | {responses} |")), "{shown}");
    let state = code::WORKERS_STATE_BYTES_MAX >> 20;
    assert!(shown.contains(&format!("| `WORKERS_STATE_BYTES_MAX` | {state} MiB |")), "{shown}");
    let recheck = code::QUEUE_RECHECK.as_millis();
    assert!(shown.contains(&format!("| `QUEUE_RECHECK` | {recheck} ms |")), "{shown}");
}

/// A constant before the first topic, or of a private kind, would be missing on the page.
#[test]
fn every_public_constant_is_on_the_page() {
    let source = source();
    let shown = tables(&source);
    let public = source.lines().filter_map(|line| line.strip_prefix("pub const "));
    let names = public.filter(|rest| !rest.contains(": u8") && !rest.contains(": u16"));
    for name in names.filter_map(|rest| rest.split(':').next()) {
        assert!(shown.contains(&format!("| `{name}` |")), "{name} is missing");
    }
}

#[test]
fn further_keys_exist_and_are_no_limits_by_name() {
    let all = all_keys();
    let shown = keys();
    for bound in ["health.timeout", "traces.timeout", "disaggregation.prefill_timeout"] {
        assert!(shown.contains(&format!("| `{bound}` |")), "{bound} is missing");
    }
    for further in FURTHER {
        assert!(all.iter().any(|entry: &KeyEntry| entry.key.path == further), "{further} is gone");
        let by_name = ENDINGS.iter().any(|ending| further.ends_with(ending));
        assert!(!by_name, "{further} needs no place in the list");
    }
}

#[test]
fn numbers_have_commas_and_units() {
    let source = "// Topic: A.\n/// Short. And more.\npub const ONE_BYTES: usize = 3 << 20;\n\
        /// A time.\npub const T: Duration = Duration::from_mins(5);\n\
        /// A product, see [`ONE_BYTES`].\npub const B: usize = 2 * (1_000 + 234);\n";
    let shown = tables(source);
    assert!(shown.contains("| `ONE_BYTES` | 3 MiB | Short. And more. |"), "{shown}");
    assert!(shown.contains("| `T` | 5 min | A time. |"), "{shown}");
    assert!(shown.contains("| `B` | 2,468 | A product, see `ONE_BYTES`. |"), "{shown}");
    assert_eq!(thousands(0), "0");
    assert_eq!(thousands(999), "999");
    assert_eq!(thousands(1_234_567), "1,234,567");
}
