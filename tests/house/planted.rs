//! The rules find what they are for: each line is one planted fault, or none.

use super::ratchet::{self, Finding};
use super::rules::{self, FILE_LINES_MAX, TEST_LINES_MAX};
use super::source::Source;
use super::tree::Tree;

/// A crate of these files below `src`. What `lib.rs` and the folders' `mod.rs` have to say is
/// added.
fn crate_of(files: &[(&str, &str)]) -> Tree {
    let rooms = ["base", "ring", "index", "select", "control", "shard"];
    let mut texts: Vec<(String, String)> = files
        .iter()
        .map(|(path, text)| {
            (format!("src/{path}"), format!("//! A planted file of the crate.\n{text}"))
        })
        .collect();
    let root: String = rooms.iter().map(|room| format!("mod {room};\n")).collect();
    texts.push(("src/lib.rs".to_owned(), format!("//! A planted file of the crate.\n{root}")));
    for room in rooms {
        let own = format!("src/{room}/mod.rs");
        let children =
            files.iter().filter_map(|(path, _)| path.strip_prefix(room)?.strip_prefix('/'));
        let children: Vec<&str> = children.filter_map(|file| file.strip_suffix(".rs")).collect();
        let declared = |text: &str, child: &str| text.contains(&format!("mod {child};"));
        let index = texts.iter().position(|(path, _)| *path == own).unwrap_or_else(|| {
            texts.push((own, "//! A planted file of the crate.\n".to_owned()));
            texts.len() - 1
        });
        for child in children.into_iter().filter(|child| *child != "mod" && !child.contains('/')) {
            if !declared(&texts[index].1, child) {
                texts[index].1.push_str(&format!("\nmod {child};"));
            }
        }
    }
    let parse = |(path, text): (String, String)| Source::parse(&path, &text).unwrap();
    Tree::new(texts.into_iter().map(parse).collect())
}

fn faults(path: &str, text: &str) -> usize {
    rules::faults(&crate_of(&[(path, text)])).len()
}

fn findings(rule: &str, files: &[(&str, &str)]) -> Vec<Finding> {
    let mut found = ratchet::findings(&crate_of(files), &[]);
    found.retain(|finding| finding.rule == rule);
    found
}

fn count(rule: &str, path: &str, text: &str) -> usize {
    findings(rule, &[(path, text)]).len()
}

#[test]
fn imports_that_go_back_are_found() {
    assert_eq!(faults("index/mod.rs", "use crate::base::RankIndex;"), 0);
    assert_eq!(faults("index/mod.rs", "use crate::select::Choice;"), 1);
    assert_eq!(faults("index/mod.rs", "use crate::{base::RankIndex, select::Choice};"), 1);
    assert_eq!(faults("index/mod.rs", "use super::select::Choice;"), 1);
    assert_eq!(faults("index/walk.rs", "use super::super::select::Choice;"), 1);
    assert_eq!(faults("index/walk.rs", "use super::select::Choice;"), 0);
    assert_eq!(faults("index/mod.rs", "fn f() { let x = crate::select::choose(); }"), 1);
    assert_eq!(faults("index/mod.rs", "fn f() { debug!(\"{}\", crate::select::NAME); }"), 1);
    assert_eq!(faults("index/mod.rs", "/// Like `crate::select::Choice`.\nstruct S;"), 0);
    assert_eq!(faults("index/mod.rs", "const TEXT: &str = \"crate::select::Choice\";"), 0);
    assert_eq!(faults("control/run.rs", "use crate::shard::Slice;"), 1);
    assert_eq!(faults("control/run.rs", "use crate::shard as plane;"), 1);
    // Tests go no other way.
    assert_eq!(faults("index/mod.rs", "#[cfg(test)]\nmod tests { use crate::select::Choice; }"), 1);
}

#[test]
fn code_behind_a_test_item_is_read() {
    let behind = |text: &str| format!("#[cfg(test)]\nmod tests {{}}\n{text}");
    assert_eq!(faults("index/mod.rs", &behind("use crate::select::Choice;")), 1);
    assert_eq!(faults("select/mod.rs", &behind("fn f() { unsafe { read() } }")), 1);
    assert_eq!(faults("select/mod.rs", &behind("fn f() { a.load(Ordering::Relaxed); }")), 1);
    assert_eq!(faults("select/mod.rs", &behind(&"\n".repeat(FILE_LINES_MAX))), 1);
    assert_eq!(count("clocks", "select/mod.rs", &behind("fn f() { Instant::now(); }")), 1);
    assert_eq!(count("large_structs", "select/mod.rs", &behind(LARGE)), 1);
    let field = "struct S { #[cfg(test)] at: u8, b: crate::select::Choice }";
    assert_eq!(faults("index/mod.rs", field), 1);
}

#[test]
fn foreign_runtimes_are_found() {
    assert_eq!(faults("select/mod.rs", "use tokio::time::sleep;"), 1);
    assert_eq!(faults("control/mod.rs", "use tokio::time::sleep;"), 0);
    assert_eq!(faults("shard/mod.rs", "fn f() { io_uring::submit(); }"), 1);
    assert_eq!(faults("select/mod.rs", "fn f() { mytokio::time(); } // tokio::time"), 0);
}

#[test]
fn atomics_and_unsafe_code_are_found() {
    let explained = "fn f() {\n// ordering: x\na.load(Ordering::Relaxed); }";
    assert_eq!(faults("select/mod.rs", explained), 1);
    assert_eq!(faults("ring/spsc.rs", explained), 0);
    assert_eq!(faults("ring/spsc.rs", "fn f() { a.load(Ordering::Relaxed); }"), 1);
    assert_eq!(faults("ring/spsc.rs", "fn f() { a.load(atomic::Ordering::Relaxed); }"), 1);
    let far = format!("// ordering: x\n{}", "\n".repeat(9));
    assert_eq!(faults("ring/spsc.rs", &format!("fn f() {{ {far} a.load(Ordering::SeqCst); }}")), 1);
    assert_eq!(faults("ring/spsc.rs", "use std::sync::atomic::Ordering::Relaxed;"), 1);
    assert_eq!(faults("select/mod.rs", "fn f() -> bool { a.cmp(b) == Ordering::Less }"), 0);
    assert_eq!(faults("select/mod.rs", "fn f() { unsafe { read() } }"), 1);
    assert_eq!(faults("ring/spsc.rs", "fn f() { unsafe { read() } }"), 0);
    assert_eq!(faults("select/mod.rs", "#![forbid(unsafe_code)]"), 0);
}

#[test]
fn shapes_are_held() {
    assert_eq!(faults("select/long.rs", &"\n".repeat(FILE_LINES_MAX)), 1);
    assert_eq!(faults("select/long.rs", &"\n".repeat(FILE_LINES_MAX - 1)), 0);
    let of_tests = |lines: usize| {
        let declared = ("select/mod.rs", "#[cfg(test)]\nmod tests;");
        let text = "\n".repeat(lines);
        rules::faults(&crate_of(&[declared, ("select/tests.rs", &text)])).len()
    };
    assert_eq!((of_tests(FILE_LINES_MAX), of_tests(TEST_LINES_MAX)), (0, 1));
    let bare = Source::parse("src/lib.rs", "fn f() {}").unwrap();
    assert_eq!(rules::faults(&Tree::new(vec![bare])), ["src/lib.rs: no module doc"]);
    let tuple_let = "fn f() { let (a, b) = (1, 2); (a, b) = (b, a); }";
    assert_eq!(faults("select/tuples.rs", tuple_let), 2);
    assert_eq!(faults("select/tuples.rs", "fn f() { let (a, b) = pair(); (a, b) = pair(); }"), 0);
    let refutable = "fn f() { let (Some(a), b) = (x, y) else { return }; }";
    assert_eq!(faults("select/tuples.rs", refutable), 0);
    // No `mod` leads to it.
    assert_eq!(faults("select/deep/lost.rs", ""), 1);
}

const LARGE: &str =
    "struct Large { a: u8, b: u8, c: u8, d: u8, e: u8, f: u8, g: u8, h: u8, i: u8 }";

#[test]
fn exceptions_are_counted() {
    for clock in ["Instant::now", "std::time::SystemTime::now", "minstant::Instant::now"] {
        assert_eq!(count("clocks", "control/run.rs", &format!("fn f() {{ {clock}(); }}")), 1);
        assert_eq!(count("clocks", "base/clock.rs", &format!("fn f() {{ {clock}(); }}")), 0);
    }
    assert_eq!(count("clocks", "select/mod.rs", "fn f() { MyInstant::now(); }"), 0);
    assert_eq!(count("chance", "select/mod.rs", "fn f() { fastrand::u64(..); Rng::new(); }"), 2);
    assert_eq!(count("chance", "select/mod.rs", "fn f() { fastrand::Rng::with_seed(1); }"), 0);
    assert_eq!(count("short_docs", "select/mod.rs", "/// Whose token it.\nstruct S;"), 1);
    assert_eq!(count("short_docs", "select/mod.rs", "/// Whose\n/// token it is.\nstruct S;"), 0);
    assert_eq!(count("tuple_parameters", "select/mod.rs", "fn f((a, b): (u8, u8)) {}"), 1);
    assert_eq!(count("tuple_parameters", "select/mod.rs", "fn f(pair: (u8, u8)) {}"), 0);
    assert_eq!(count("large_structs", "select/mod.rs", LARGE), 1);
    assert_eq!(count("large_structs", "select/mod.rs", &LARGE.replace(", i: u8", "")), 0);
    assert_eq!(count("empty_words", "select/helpers.rs", ""), 1);
    assert_eq!(count("empty_words", "select/string_util.rs", ""), 1);
    assert_eq!(count("empty_words", "select/mod.rs", "struct KvManager; enum Cores {}"), 1);
    for comment in ["// Who asks.", "/// Told to `one`.", "//! Of those."] {
        let text = format!("{comment}\nstruct S;");
        let sum = count("stand_ins", "select/a.rs", &text) + count("speech", "select/a.rs", &text);
        assert_eq!(sum, 1, "{comment}");
    }
    assert_eq!(count("no_nouns", "select/a.rs", "struct BodyKept; enum Arrived {}"), 2);
    assert_eq!(count("no_nouns", "select/a.rs", "struct KeptBody; struct Feed;"), 0);
    let tests = "#[cfg(test)]\nmod tests { fn f((a, b): (u8, u8)) { Instant::now(); } }";
    assert_eq!(count("tuple_parameters", "select/mod.rs", tests), 0);
    assert_eq!(count("clocks", "select/mod.rs", tests), 0);
}

#[test]
fn type_names_that_stand_twice_are_found() {
    let twice = |other: &str| {
        findings("type_names", &[("select/a.rs", "struct Found;"), ("index/b.rs", other)]).len()
    };
    assert_eq!(twice("enum Found {}"), 2);
    assert_eq!(twice("mod inner { type Found = u8; }"), 2);
    assert_eq!(twice("struct Kept;"), 0);
    assert_eq!(twice("fn f() { struct Found; }"), 0);
    assert_eq!(twice("#[cfg(test)]\nmod tests { struct Found; }"), 0);
}

#[test]
fn wide_lines_are_found() {
    let wide = |text: &str| {
        let of = |rule| count(rule, "select/mod.rs", text);
        (of("wide_lines"), of("wide_literals"))
    };
    let long = "x".repeat(90);
    assert_eq!(wide(&format!("// 6789{long}  9")), (0, 0));
    assert_eq!(wide(&format!("// 6789{long}   01")), (1, 0));
    assert_eq!(wide(&format!("/// 678 {long}  01\nstruct S;")), (1, 0));
    assert_eq!(wide(&format!("const S: &str = \"{long}\";")), (0, 1));
    assert_eq!(wide(&format!("const S: &str = \"\n{long} {long}\n\";")), (0, 1));
    assert_eq!(wide(&format!("const S: u8 = {};", "1 + ".repeat(25) + "1")), (1, 0));
    assert_eq!(wide(&format!("#[cfg(test)]\nmod tests {{\n// {long}{long}\n}}")), (1, 0));
}

#[test]
fn circles_are_found() {
    let circle = |files: &[(&str, &str)]| findings("circles", files).len();
    let a = ("index/a.rs", "use super::b::B;\nstruct A;");
    let b = "use super::a::A;\nstruct B;";
    assert_eq!(circle(&[a, ("index/b.rs", b)]), 2);
    assert_eq!(circle(&[a, ("index/b.rs", "struct B;")]), 0);
    assert_eq!(circle(&[a, ("index/b.rs", "use crate::index::a::A;\nstruct B;")]), 2);
    assert_eq!(circle(&[a, ("index/b.rs", "struct B(super::a::A);")]), 2);
    assert_eq!(
        circle(&[a, ("index/b.rs", "struct B;\n#[cfg(test)]\nmod t { use super::super::a::A; }")]),
        0
    );
    // Through a third.
    let c = ("index/c.rs", "use super::a::A;");
    assert_eq!(circle(&[a, ("index/b.rs", "use super::c;\nfn f() { c::f(); }"), c]), 3);
    // A re-export leads to where the name comes from, and is itself no use of it.
    let room = ("index/mod.rs", "pub use a::A;\nmod a;\nmod b;");
    assert_eq!(circle(&[room, ("index/a.rs", "struct A;"), ("index/b.rs", "use super::A;")]), 0);
    assert_eq!(circle(&[room, a, ("index/b.rs", "use super::A;\nstruct B;")]), 2);
    let needs = ("index/mod.rs", "pub use a::A;\nmod a;\nstruct Own(A);");
    assert_eq!(circle(&[needs, ("index/a.rs", "use super::Own;\nstruct A;")]), 2);
}

#[test]
fn the_baseline_only_shrinks() {
    let found = |count: usize| -> Vec<Finding> {
        let finding = |line| Finding {
            rule: "clocks",
            key: "src/a.rs".to_owned(),
            at: format!("src/a.rs:{line}: Instant::now"),
        };
        (1..=count).map(finding).collect()
    };
    let baseline = ratchet::read(&ratchet::write(&ratchet::count(&found(2)))).unwrap();
    assert!(ratchet::compare(&found(2), &baseline).is_empty());
    let more = ratchet::compare(&found(3), &baseline).join("");
    assert!(more.contains("src/a.rs:3") && more.contains("at most 2"), "{more}");
    let less = ratchet::compare(&found(1), &baseline).join("");
    assert!(less.contains("tools/figures --lower"), "{less}");
    let gone = ratchet::compare(&[], &baseline).join("");
    assert!(gone.contains("tools/figures --lower"), "{gone}");
    assert_eq!(ratchet::grown(&ratchet::count(&found(3)), &baseline).len(), 1);
    assert_eq!(ratchet::grown(&ratchet::count(&found(1)), &baseline).len(), 0);
}

#[test]
fn a_long_sleep_is_found() {
    let found = |text: &str| {
        let text = format!("//! A planted file of tests.\nfn f() {{\n    {text}\n}}\n");
        rules::long_sleeps(&Source::parse("tests/it/a.rs", &text).unwrap()).len()
    };
    assert_eq!(found("std::thread::sleep(Duration::from_secs(2));"), 1);
    assert_eq!(found("tokio::time::sleep(Duration::from_millis(1_001)).await;"), 1);
    assert_eq!(found("std::thread::sleep(Duration::from_secs(1));"), 0);
    assert_eq!(found("std::thread::sleep(Duration::from_millis(1_000));"), 0);
    assert_eq!(found("until(Duration::from_secs(30));"), 0);
}
