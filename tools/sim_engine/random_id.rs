//! Random ids of an engine. The only code of the crate that a seed does not make repeatable.

/// Any number of 64 bits.
pub(super) fn random_u64() -> u64 {
    fastrand::u64(..)
}

/// An id of 64 bits in hexadecimal digits, as vLLM names its requests.
pub(super) fn random_id_64() -> String {
    format!("{:016x}", random_u64())
}

/// An id of 128 bits in hexadecimal digits, as SGLang names its requests and vLLM its engines.
pub(super) fn random_id_128() -> String {
    format!("{:016x}{:016x}", random_u64(), random_u64())
}
