//! Round trips and damage.
