//! Load reports.
