//! Boards, alerts and the expressions that pages show, against the metrics of the code: a renamed
//! metric or label leaves no empty panel and no silent alert behind.

use forebay::account::{Metric, MetricKind};
use forebay::admin::all_metrics;
use std::fs;
use std::path::PathBuf;

/// Labels that Prometheus adds to all that it scrapes.
const OF_SCRAPES: [&str; 2] = ["job", "instance"];
/// Bound of a bucket; only of histograms.
const BOUND: &str = "le";
/// Words of expressions, and names that no router has.
const WORDS: [&str; 13] = [
    "and",
    "or",
    "unless",
    "by",
    "without",
    "on",
    "ignoring",
    "group_left",
    "group_right",
    "bool",
    "offset",
    "up",
    "ALERTS",
];
/// Words before a list of labels.
const LISTS: [&str; 6] = ["by", "without", "on", "ignoring", "group_left", "group_right"];

fn read(path: &str) -> String {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), path].iter().collect();
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// An expression, and the texts that name its labels: legends, summaries, runbooks.
#[derive(Debug, Default, PartialEq)]
struct Shown {
    expression: String,
    labels_in: Vec<String>,
}

/// Panels and variables of a board.
fn of_board(path: &str) -> Vec<Shown> {
    let board: serde_json::Value = serde_json::from_str(&read(path)).unwrap();
    let list = |value: &serde_json::Value, place: &str| {
        value.pointer(place).and_then(|it| it.as_array()).cloned().unwrap_or_default()
    };
    let text = |value: &serde_json::Value, key: &str| {
        value.get(key).and_then(|it| it.as_str()).unwrap_or_default().to_owned()
    };
    let mut shown = Vec::new();
    for variable in list(&board, "/templating/list") {
        let query = text(&variable, "definition");
        if let Some(inside) =
            query.strip_prefix("label_values(").and_then(|it| it.strip_suffix(')'))
        {
            let (expression, label) = inside.rsplit_once(", ").unwrap();
            let expression = expression.to_owned();
            let label = format!("{{{{{label}}}}}");
            shown.push(Shown { expression, labels_in: vec![label] });
        }
    }
    for target in list(&board, "/panels").iter().flat_map(|panel| list(panel, "/targets")) {
        let expression = text(&target, "expr");
        let legend = text(&target, "legendFormat");
        assert!(!expression.is_empty(), "{path}: a target without an expression: {target}");
        shown.push(Shown { expression, labels_in: vec![legend] });
    }
    shown
}

/// Rules of a file. An expression stands in its line, or in deeper lines after `>-`.
fn of_rules(path: &str) -> Vec<Shown> {
    let text = read(path);
    let mut shown: Vec<Shown> = Vec::new();
    let mut lines = text.lines().peekable();
    let depth = |line: &str| line.len() - line.trim_start().len();
    while let Some(line) = lines.next() {
        let trimmed = line.trim_start().trim_start_matches("- ");
        if let Some(expression) = trimmed.strip_prefix("expr: ") {
            let mut expression = expression.to_owned();
            if expression == ">-" {
                expression.clear();
                while let Some(more) = lines.next_if(|next| depth(next) > depth(line)) {
                    expression = expression + more.trim() + " ";
                }
            }
            shown.push(Shown { expression, labels_in: Vec::new() });
        } else if let Some((_, said)) = trimmed.split_once(": ")
            && let Some(last) = shown.last_mut()
            && (trimmed.starts_with("summary") || trimmed.starts_with("runbook"))
        {
            last.labels_in.push(said.to_owned());
        }
    }
    shown
}

/// Series and expressions of the tests of the rules, each in its line.
fn of_tests(path: &str) -> Vec<Shown> {
    let text = read(path);
    let series = text.lines().filter_map(|line| line.split_once("series: '")?.1.split('\'').next());
    let series = series.filter(|series| !series.is_empty());
    series.map(|it| Shown { expression: it.to_owned(), labels_in: Vec::new() }).collect()
}

/// Expressions that a page shows in tables and blocks.
fn of_page(path: &str) -> Vec<Shown> {
    let text = read(path);
    let spans = text.split('`').skip(1).step_by(2);
    let is_expression = |span: &&str| span.contains("forebay") && span.contains(['(', '{', ':']);
    let spans = spans.filter(|span| !span.contains(['\n', '/']) || span.contains("rate("));
    let spans = spans.filter(is_expression);
    spans.map(|it| Shown { expression: it.to_owned(), labels_in: Vec::new() }).collect()
}

/// The metric of a series, and whether it is a bucket of the metric.
fn metric_of(name: &str) -> Option<(&'static Metric, bool)> {
    let name = name.strip_prefix("forebay_")?;
    let find = |name: &str| all_metrics().find(|metric| metric.name == name);
    if let Some(metric) = find(name) {
        return (metric.kind != MetricKind::Histogram).then_some((metric, false));
    }
    let (base, suffix) = name.rsplit_once('_')?;
    let metric = find(base).filter(|metric| metric.kind == MetricKind::Histogram)?;
    ["bucket", "sum", "count"].contains(&suffix).then_some((metric, suffix == "bucket"))
}

/// What is wrong with an expression: names of metrics and of labels that do not exist.
fn faults(shown: &Shown) -> Vec<String> {
    let mut faults = Vec::new();
    let mut labels: Vec<&str> = OF_SCRAPES.to_vec();
    let tokens = tokens(&shown.expression);
    for (name, _) in tokens.iter().filter(|(_, role)| *role == Role::Series) {
        // A recorded name has colons, and the labels of its rule.
        if name.contains(':') {
            let recorded = read("tools/prometheus/autoscaling.yml");
            if !recorded.contains(&format!("- record: {name}\n")) {
                faults.push(format!("no rule records {name}"));
            }
            continue;
        }
        if WORDS.contains(name) {
            continue;
        }
        let Some((metric, is_bucket)) = metric_of(name) else {
            faults.push(format!("no such metric: {name}"));
            continue;
        };
        labels.extend(metric.labels);
        labels.extend(is_bucket.then_some(BOUND));
    }
    for (name, role) in &tokens {
        let is_matched = *role == Role::Label;
        if is_matched && !labels.contains(name) {
            faults.push(format!("no metric of the expression has the label {name}"));
        }
    }
    for text in &shown.labels_in {
        for inside in text.split("{{").skip(1).filter_map(|rest| rest.split("}}").next()) {
            let name = inside.trim().trim_start_matches("$labels.");
            if !labels.contains(&name) {
                faults.push(format!("`{text}` names the label {name}"));
            }
        }
    }
    faults
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Role {
    Series,
    Label,
}

/// Names in an expression with their roles: neither functions nor words nor texts.
fn tokens(expression: &str) -> Vec<(&str, Role)> {
    let mut tokens = Vec::new();
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let mut rest = expression;
    let mut in_braces = false;
    let mut in_list = false;
    let mut list_is_next = false;
    while let Some(c) = rest.chars().next() {
        match c {
            '"' => {
                let after = &rest[1..];
                rest = after.find('"').map_or("", |end| &after[end..]);
            }
            '[' => rest = rest.find(']').map_or("", |end| &rest[end..]),
            '{' => in_braces = true,
            '}' => in_braces = false,
            '(' => in_list = std::mem::take(&mut list_is_next),
            ')' => in_list = false,
            c if c.is_ascii_alphabetic() || c == '_' => {
                let end = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
                let (name, after) = rest.split_at(end);
                rest = after;
                if in_braces || in_list {
                    tokens.push((name, Role::Label));
                } else if LISTS.contains(&name) {
                    list_is_next = true;
                } else if !is_call(rest) && (!WORDS.contains(&name) || name == "up") {
                    tokens.push((name, Role::Series));
                }
                continue;
            }
            c if c.is_ascii_digit() => {
                rest = rest.trim_start_matches(is_name);
                continue;
            }
            _ => {}
        }
        rest = rest.get(1..).unwrap_or_default();
    }
    tokens
}

/// What follows the name of a function: its arguments, or what an aggregation keeps.
fn is_call(rest: &str) -> bool {
    let rest = rest.trim_start();
    ["(", "by ", "by(", "without ", "without("].iter().any(|begin| rest.starts_with(begin))
}

#[test]
fn boards_rules_and_pages_use_metrics_and_labels_that_exist() {
    let files = [
        ("tools/grafana/fleet.json", of_board("tools/grafana/fleet.json"), 30),
        ("tools/grafana/router.json", of_board("tools/grafana/router.json"), 30),
        ("tools/prometheus/alerts.yml", of_rules("tools/prometheus/alerts.yml"), 20),
        ("tools/prometheus/autoscaling.yml", of_rules("tools/prometheus/autoscaling.yml"), 5),
        ("tools/prometheus/tests.yml", of_tests("tools/prometheus/tests.yml"), 70),
        ("docs/operate/hit-rate.md", of_page("docs/operate/hit-rate.md"), 8),
        ("docs/operate/autoscaling.md", of_page("docs/operate/autoscaling.md"), 5),
    ];
    let mut found = Vec::new();
    for (path, all, count_min) in &files {
        assert!(all.len() >= *count_min, "{path}: only {} expressions were found", all.len());
        for shown in all {
            let faults = faults(shown).into_iter();
            found.extend(faults.map(|fault| format!("{path}: {fault} in {}", shown.expression)));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// Who is woken must read what to do.
#[test]
fn each_alert_has_a_summary_and_a_runbook() {
    let rules = of_rules("tools/prometheus/alerts.yml");
    assert!(rules.iter().all(|rule| rule.labels_in.len() == 2), "{rules:#?}");
    let words = |text: &str| text.split_whitespace().count();
    assert!(rules.iter().all(|rule| rule.labels_in.iter().all(|text| words(text) >= 6)));
}

#[test]
fn names_that_do_not_exist_are_seen() {
    let faults_of = |expression: &str, legend: &str| {
        let expression = expression.to_owned();
        let labels_in = vec![legend.to_owned()];
        faults(&Shown { expression, labels_in }).len()
    };
    let sum = "sum by (job, worker) (rate(forebay_in_flight{worker=~\"a{b}|(c)\"}[5m])) > 2 * 1e3";
    assert_eq!(faults_of(sum, "{{worker}} of {{ $labels.instance }}"), 0);
    assert_eq!(faults_of("forebay_gone_total", ""), 1);
    assert_eq!(faults_of("forebay:gone > 1", ""), 1);
    assert_eq!(faults_of("forebay:ranks_up > 1", ""), 0);
    assert_eq!(faults_of("rate(forebay_in_flight[1m]) / gone", ""), 1);
    assert_eq!(faults_of("forebay_in_flight{model=\"m\"}", ""), 1);
    assert_eq!(faults_of("sum by (model) (forebay_in_flight)", ""), 1);
    assert_eq!(faults_of("forebay_in_flight", "{{model}}"), 1);
    // A histogram has series of its own, and its bound stands on buckets alone.
    assert_eq!(faults_of("forebay_ttft_seconds", ""), 1);
    assert_eq!(faults_of("sum by (model, le) (forebay_ttft_seconds_bucket)", ""), 0);
    assert_eq!(faults_of("sum by (model, le) (forebay_ttft_seconds_sum)", ""), 1);
    assert_eq!(faults_of("forebay_in_flight_sum", ""), 1);
}

/// A table of alerts that lacks a row hides the alert from its reader.
#[test]
fn the_page_lists_each_alert_with_its_severity() {
    let rules = read("tools/prometheus/alerts.yml");
    let mut in_rules = Vec::new();
    for line in rules.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("- alert: ") {
            in_rules.push((name.to_owned(), String::new()));
        } else if let Some((_, severity)) = line.split_once("severity: ") {
            in_rules.last_mut().unwrap().1 = severity.trim_end_matches('}').to_owned();
        }
    }
    let page = read("docs/operate/boards.md");
    let rows = page.lines().filter(|line| line.starts_with("| `Forebay"));
    let cell = |row: &str, at: usize| {
        let text = row.split('|').nth(at).unwrap_or_default();
        text.trim().trim_matches('`').to_owned()
    };
    let mut on_page: Vec<_> = rows.map(|row| (cell(row, 1), cell(row, 2))).collect();
    in_rules.sort();
    on_page.sort();
    assert!(in_rules.len() > 10, "{in_rules:?}");
    assert_eq!(on_page, in_rules);
}
