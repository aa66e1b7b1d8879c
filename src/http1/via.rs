//! Detects request loops by `Via` (RFC 9110 section 7.6.3), to which each Forebay router adds its
//! id. A forged `Via` can at worst make the router refuse the client's own request.

use super::head::{FieldKind, RequestHead, bytes_of};
use forebay_base::RouterId;
use forebay_base::limits::ROUTER_HOPS_MAX;

/// Reason why a request loops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestLoop {
    /// The request passed this router before.
    Own,
    /// The request passed more than [`ROUTER_HOPS_MAX`] routers.
    TooManyHops,
}

/// Detects whether the request passed this router before, or too many routers.
#[must_use]
pub fn request_loop(head: &RequestHead, buffer: &[u8], own: RouterId) -> Option<RequestLoop> {
    let fields = head.fields.iter().filter(|field| field.kind == FieldKind::Via);
    via_loop(fields.map(|field| bytes_of(buffer, &field.value)), own)
}

/// Like [`request_loop`], from the values of all `Via` fields.
pub fn via_loop<'a>(values: impl Iterator<Item = &'a [u8]>, own: RouterId) -> Option<RequestLoop> {
    let mut hop_count = 0;
    for hop in values.flat_map(|value| value.split(|byte| *byte == b',')) {
        // The protocol version, and the id of the hop.
        let mut words = hop.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let Some(name) = words.nth(1) else { continue };
        if name.eq_ignore_ascii_case(own.as_bytes()) {
            return Some(RequestLoop::Own);
        }
        let start = name.get(..RouterId::START.len()).unwrap_or_default();
        hop_count += usize::from(start.eq_ignore_ascii_case(RouterId::START.as_bytes()));
        if hop_count > ROUTER_HOPS_MAX {
            return Some(RequestLoop::TooManyHops);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_came_by_here_is_known_and_others_pass() {
        let own = RouterId::from_random(1);
        let other = RouterId::from_random(2);
        let of = |values: &[String]| via_loop(values.iter().map(|value| value.as_bytes()), own);
        let via = |id: RouterId| format!("1.1 {}", id.as_str());
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[via(other)]), None, "a router in front of a router");
        assert_eq!(of(&[via(own)]), Some(RequestLoop::Own));
        assert_eq!(of(&[format!("1.0 fred, {} (x)", via(own))]), Some(RequestLoop::Own));
        assert_eq!(of(&["1.1 nginx".into(), via(own).to_uppercase()]), Some(RequestLoop::Own));
        assert_eq!(of(&[format!("x {}0", own.as_str())]), None, "another name");
        assert_eq!(of(&[own.as_str().into(), ",, ,".into(), "1.1".into()]), None);
        let chain = |count: u64| (0..count).map(|n| via(RouterId::from_random(n + 2)));
        let most = u64::try_from(ROUTER_HOPS_MAX).unwrap();
        assert_eq!(of(&chain(most).collect::<Vec<_>>()), None);
        let long = chain(most + 1).collect::<Vec<_>>();
        assert_eq!(of(&long), Some(RequestLoop::TooManyHops));
        assert_eq!(of(&[long.join(", ")]), Some(RequestLoop::TooManyHops), "in one field");
    }
}
