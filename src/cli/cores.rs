//! Lists of cores as people write them: `0,2` or `0-3,8`.

use crate::base::limits::SHARDS_MAX;
use std::str::FromStr;

/// Core numbers in the order given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CoreList(pub(super) Vec<usize>);

impl FromStr for CoreList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fault = || format!("{text:?} is not a list of cores; write for example 0,2 or 0-3");
        let mut cores = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let first: usize = first.trim().parse().map_err(|_| fault())?;
            let last: usize = last.trim().parse().map_err(|_| fault())?;
            if first > last {
                return Err(fault());
            }
            if last - first >= SHARDS_MAX || cores.len() >= SHARDS_MAX {
                return Err(format!("more than the {SHARDS_MAX} cores of one process"));
            }
            cores.extend(first..=last);
        }
        Ok(Self(cores))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_lists_and_ranges() {
        for (text, cores) in [("0", vec![0]), ("0,2", vec![0, 2]), ("1-3,8", vec![1, 2, 3, 8])] {
            assert_eq!(CoreList::from_str(text), Ok(CoreList(cores)));
        }
        for bad in ["", "a", "3-1", "1,,2", "-1", "0-1000000000000", "0x1"] {
            assert!(CoreList::from_str(bad).is_err(), "{bad}");
        }
    }
}
