//! Faults of sources of workers, beside the faults of files, in the two texts of [`file_faults`].
//!
//! [`file_faults`]: super::super::file_faults

use super::super::file_faults::names_folder;
use super::super::fleet::PlaceError;
use forebay_admin::SourceFault;
use forebay_discovery::MissingFeature;

/// Commands with the full text of a fault.
const FULL_TEXT: &str = "`forebay check` and `forebay workers` have the fault";

/// A name that cannot be resolved, or has no address.
pub(super) fn of_name(fault: &MissingFeature) -> SourceFault {
    let MissingFeature { what, help } = fault;
    let brief = if names_folder(what) { "it cannot be resolved" } else { what };
    let text = |what: &str| format!("{what}. help: {help}");
    SourceFault { full: text(what), brief: text(brief) }
}

/// A file that no thread could read.
pub(super) fn of_thread() -> SourceFault {
    SourceFault::of("it could not be read")
}

/// Workers of a list that got no place, by their URLs; `None`: all have a place.
pub(super) fn of_refused(refused: &[(String, PlaceError)]) -> Option<SourceFault> {
    let (url, reason) = refused.first()?;
    let count = refused.len();
    let reason = reason.to_string();
    let brief = if names_folder(&reason) { FULL_TEXT } else { &reason };
    let full = format!("{count} of its workers not added: {url}: {reason}");
    Some(SourceFault { full, brief: format!("{count} of its workers not added: {brief}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// M2: `/readyz` needs no token, so no folder is in its text, whatever the fault.
    #[test]
    fn no_folder_of_the_machine_is_in_the_brief_text() {
        let refused = of_refused(&[("http://a:1".to_owned(), PlaceError::Name)]).unwrap();
        assert!(refused.brief.contains("of that name is there"), "{refused:?}");
        let what = "cannot read /etc/resolv.conf".to_owned();
        let name = of_name(&MissingFeature { what, help: "mend it".to_owned() });
        assert!(name.full.contains("/etc") && !name.brief.contains("/etc"), "{name:?}");
    }
}
