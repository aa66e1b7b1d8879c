//! Ids that an engine makes up: hexadecimal digits, new each time.

/// An id of 64 bits, as vLLM names its requests.
pub(super) fn random_id_64() -> String {
    format!("{:016x}", fastrand::u64(..))
}

/// An id of 128 bits, as SGLang names its requests and vLLM its engines.
pub(super) fn random_id_128() -> String {
    format!("{:032x}", fastrand::u128(..))
}
