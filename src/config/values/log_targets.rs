//! Parts of the program that a filter of `log.level` can name: targets of the log.

/// Targets of the router's own lines, in lines. `cargo test --test docs` compares the list with the
/// code.
const OWN: &str = include_str!("log_targets.txt");
/// Libraries that write to the log.
const LIBRARIES: [&str; 9] = [
    "async_nats",
    "hyper",
    "hyper_util",
    "mio",
    "reqwest",
    "rustls",
    "tokenizers",
    "tokio",
    "zeromq",
];

/// First target of a filter that no line of the log has. A target stands for all targets that begin
/// with it.
pub(crate) fn unknown_target(filter: &str) -> Option<&str> {
    // A span filter may have commas and names of its own.
    let directives = filter.split(',').filter(|word| !word.contains(['"', '{', '}', ']']));
    let targets = directives.filter_map(|word| word.split_once('=')).map(|(target, _)| target);
    targets.into_iter().find(|target| !target.contains('[') && !is_known(target))
}

fn is_known(target: &str) -> bool {
    let is_own = OWN.lines().any(|own| own.starts_with(target));
    let is_within = |library: &str| {
        let rest = target.strip_prefix(library);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    };
    is_own || LIBRARIES.iter().any(|library| is_within(library) || library.starts_with(target))
}

/// Crates of the router that log.
pub(crate) fn own_crates() -> String {
    let mut crates: Vec<&str> = OWN.lines().filter_map(|own| own.split("::").next()).collect();
    crates.dedup();
    crates.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_that_no_line_has_is_found() {
        for known in [
            "info",
            "forebay=debug",
            "info,forebay_control=debug,forebay_control::membership::sources=trace",
            "forebay::start=trace",
            "hyper=debug,rustls::client=trace",
            "info,[request{id=1}]=trace",
            "forebay_control[request]=trace",
        ] {
            assert_eq!(unknown_target(known), None, "{known}");
        }
        for (filter, wanted) in [
            ("info,forebay::nosuch=debug", "forebay::nosuch"),
            ("forbay=debug", "forbay"),
            ("info,forebay_control::nosuch=debug,hyper=warn", "forebay_control::nosuch"),
            ("info,hyperx=debug", "hyperx"),
        ] {
            assert_eq!(unknown_target(filter), Some(wanted), "{filter}");
        }
        assert!(own_crates().contains("forebay_control, "), "{}", own_crates());
    }
}
