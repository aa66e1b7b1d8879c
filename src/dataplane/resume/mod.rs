//! A stream that outlives its worker: the remainder from another rank (`retry.mid_stream`).

pub(crate) mod remainder;
