//! What is taken off the ends of a content.

use crate::chat::python::is_space;
use crate::{leading_bytes, trailing_bytes};

/// Both ends of a content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Trim {
    pub(super) left: Edge,
    pub(super) right: Edge,
}

/// One end of a content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Edge {
    /// Kept as it is.
    #[default]
    Kept,
    /// All whitespace goes (`strip()`).
    Space,
    /// Newlines go (`strip('\n')`).
    Newlines,
}

/// In the order in which they are tried.
pub(super) const EDGES: [Edge; 3] = [Edge::Kept, Edge::Space, Edge::Newlines];

impl Edge {
    fn takes(self) -> fn(char) -> bool {
        match self {
            Self::Kept => |_| false,
            Self::Space => is_space,
            Self::Newlines => |character| character == '\n',
        }
    }

    /// What is left of whitespace `space` at the front of a content.
    pub(super) fn left_of(self, space: &str) -> &str {
        space.trim_start_matches(self.takes())
    }

    /// The same at the end of a content.
    pub(super) fn right_of(self, space: &str) -> &str {
        space.trim_end_matches(self.takes())
    }
}

impl Trim {
    /// Trims `out[start..]` in place.
    pub(super) fn apply(self, out: &mut Vec<u8>, start: usize) {
        if self.right != Edge::Kept {
            let taken = trailing_bytes(out.get(start..).unwrap_or_default(), self.right.takes());
            out.truncate(out.len() - taken);
        }
        if self.left != Edge::Kept {
            let taken = leading_bytes(out.get(start..).unwrap_or_default(), self.left.takes());
            out.drain(start..start + taken);
        }
    }
}
