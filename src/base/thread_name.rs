//! Names of the threads that live as long as the process. Metrics and the log find the threads by
//! these names in `/proc`, which has 15 bytes of a name.

use crate::ShardIndex;
use std::fmt;

/// A thread of the planes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadName {
    /// The thread of the control plane.
    Control,
    /// The thread of a shard.
    Shard(ShardIndex),
    /// The offload thread of a shard.
    Offload(ShardIndex),
}

const CONTROL: &str = "control";
const SHARD: &str = "shard-";
const OFFLOAD: &str = "offload-";

impl ThreadName {
    /// The thread of a name; `None`: any other thread.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let shard = |digits: &str| digits.parse().ok().map(ShardIndex);
        if name == CONTROL {
            return Some(Self::Control);
        }
        match (name.strip_prefix(SHARD), name.strip_prefix(OFFLOAD)) {
            (Some(digits), _) => shard(digits).map(Self::Shard),
            (_, Some(digits)) => shard(digits).map(Self::Offload),
            _ => None,
        }
    }
}

impl fmt::Display for ThreadName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Control => formatter.write_str(CONTROL),
            Self::Shard(ShardIndex(number)) => write!(formatter, "{SHARD}{number}"),
            Self::Offload(ShardIndex(number)) => write!(formatter, "{OFFLOAD}{number}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_as_it_was_given_and_fits_the_kernel() {
        let most = ShardIndex(u16::MAX);
        for name in [ThreadName::Control, ThreadName::Shard(most), ThreadName::Offload(most)] {
            let text = name.to_string();
            assert_eq!(ThreadName::parse(&text), Some(name));
            assert!(text.len() <= 15, "{text}");
        }
        for other in ["", "shard-", "shard-x", "controls", "log", "offload"] {
            assert_eq!(ThreadName::parse(other), None, "{other}");
        }
    }
}
