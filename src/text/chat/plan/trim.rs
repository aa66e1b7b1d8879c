//! Whitespace trimmed from the ends of a content.

use crate::chat::printing::python::is_space;
use crate::{leading_bytes, trailing_bytes};

/// Trims of both ends of a content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Trim {
    pub(super) left: Edge,
    pub(super) right: Edge,
}

/// Trim of an end of a content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Edge {
    /// The end stays unchanged.
    #[default]
    Unchanged,
    /// All whitespace is removed (`strip()`).
    Space,
    /// Only newlines are removed (`strip('\n')`).
    Newlines,
}

/// Trims in the order in which they are tried.
pub(super) const EDGES: [Edge; 3] = [Edge::Unchanged, Edge::Space, Edge::Newlines];

impl Edge {
    fn takes(self) -> fn(char) -> bool {
        match self {
            Self::Unchanged => |_| false,
            Self::Space => is_space,
            Self::Newlines => |character| character == '\n',
        }
    }

    /// The rest of whitespace `space` at the front of a content.
    pub(super) fn left_of(self, space: &str) -> &str {
        space.trim_start_matches(self.takes())
    }

    /// The rest of whitespace `space` at the end of a content.
    pub(super) fn right_of(self, space: &str) -> &str {
        space.trim_end_matches(self.takes())
    }
}

impl Trim {
    /// Trims `out[start..]` in place.
    pub(super) fn apply(self, out: &mut Vec<u8>, start: usize) {
        if self.right != Edge::Unchanged {
            let taken = trailing_bytes(out.get(start..).unwrap_or_default(), self.right.takes());
            out.truncate(out.len() - taken);
        }
        if self.left != Edge::Unchanged {
            let taken = leading_bytes(out.get(start..).unwrap_or_default(), self.left.takes());
            out.drain(start..start + taken);
        }
    }
}
