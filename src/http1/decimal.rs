//! Numbers in decimal, without an allocation.

/// Room for the digits of any `u64`.
pub type Digits = [u8; 20];

/// Formats a number in decimal, without an allocation.
pub fn decimal(mut value: u64, digits: &mut Digits) -> &[u8] {
    let mut start = digits.len();
    for slot in digits.iter_mut().rev() {
        *slot = b'0' + u8::try_from(value % 10).unwrap_or(0);
        value /= 10;
        start -= 1;
        if value == 0 {
            break;
        }
    }
    digits.get(start..).unwrap_or(&[])
}

/// Appends the number in decimal digits.
pub fn push_decimal(value: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(decimal(value, &mut [0; 20]));
}
