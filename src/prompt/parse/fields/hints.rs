//! Queue hints of a client: class and deadline, read from header fields and the body. A request
//! without hints costs a pass over the kinds of its fields.
//!
//! | what | from | meaning |
//! |---|---|---|
//! | class | `x-forebay-priority: 0` to `3` | that class, 0 is served first |
//! | | else vLLM's `X-Vllm-Priority`, else `"priority"` of the body | 0 is the usual class |
//! | deadline | `x-forebay-timeout-ms` | longest wait for the first byte |
//! | | else `x-stainless-read-timeout`, else `x-stainless-timeout` | the same in seconds |
//!
//! vLLM's priority is relative to the usual class: -1 is the next better class, 1 the next worse.
//! The SDKs of OpenAI and Anthropic send the `x-stainless` fields: their own read timeout, and
//! Node's for the whole answer.
//!
//! No request gets a better class than [`Principal`](crate::parse::Principal) allows, and the
//! priority sent to vLLM is no better than that class.
//!
//! The first field of a name counts. A malformed value counts as absent, as proxies usually treat
//! hints: a request is never refused for a hint.

use super::priority;
use forebay_base::limits::QUEUE_CLASSES;
use forebay_http1::{FieldKind, RequestHead, bytes_of};
use forebay_mailbox::Caller;
use std::time::Duration;

/// A longer deadline counts as absent.
const DEADLINE_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// Longest number that is read from a field.
const NUMBER_BYTES_MAX: usize = 20;

/// Class and deadline of a request, within the bounds of its tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHints {
    /// The class is below [`QUEUE_CLASSES`], the weight at least 1. Tenant 0: a caller without a
    /// key, a token or a `[[tenant]]`.
    pub caller: Caller,
    /// Longest wait for the first byte, counted from the arrival of the request.
    pub deadline: Option<Duration>,
    /// The priority to send to vLLM, where it differs from the body's.
    pub upstream_priority: Option<i64>,
}

/// Bounds for the hints of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HintRules {
    /// Class of requests without a class.
    pub class_default: u8,
    /// Best class that the request may have.
    pub class_best: u8,
    /// The tenant, for its share of the queue.
    pub tenant: u64,
    /// Weight of the share.
    pub weight: u32,
}

/// Raw values of the hint fields.
#[derive(Default)]
struct HintFields<'a> {
    priority: Option<&'a [u8]>,
    vllm_priority: Option<&'a [u8]>,
    timeout_ms: Option<&'a [u8]>,
    read_timeout: Option<&'a [u8]>,
    timeout: Option<&'a [u8]>,
}

impl HintRules {
    /// Reads the hints of a request. `in_body`: the priority in its body.
    #[must_use]
    pub fn read(&self, head: &RequestHead, buffer: &[u8], in_body: Option<i64>) -> RequestHints {
        let sent = HintFields::of(head, buffer);
        let in_body = in_body.unwrap_or(0);
        let asked = sent.vllm_priority.and_then(priority::of_field).unwrap_or(in_body);
        let class = sent.priority.and_then(class);
        let class = class.unwrap_or_else(|| class_of_priority(self.class_default, asked));
        let granted = asked.max(priority_best(self.class_default, self.class_best));
        RequestHints {
            caller: Caller {
                class: class.max(self.class_best).min(QUEUE_CLASSES - 1),
                tenant: self.tenant,
                weight: self.weight.max(1),
                session: None,
                source: 0,
            },
            deadline: sent.deadline(),
            upstream_priority: (granted != in_body).then_some(granted),
        }
    }
}

impl<'a> HintFields<'a> {
    fn of(head: &RequestHead, buffer: &'a [u8]) -> Self {
        let mut sent = Self::default();
        for field in &head.fields {
            let place = match field.kind {
                FieldKind::Priority => &mut sent.priority,
                FieldKind::VllmPriority => &mut sent.vllm_priority,
                FieldKind::TimeoutMs => &mut sent.timeout_ms,
                FieldKind::ReadTimeout => &mut sent.read_timeout,
                FieldKind::Timeout => &mut sent.timeout,
                _ => continue,
            };
            place.get_or_insert(bytes_of(buffer, &field.value));
        }
        sent
    }

    fn deadline(&self) -> Option<Duration> {
        let own = self.timeout_ms.and_then(milliseconds);
        let read = || self.read_timeout.and_then(seconds);
        own.or_else(read).or_else(|| self.timeout.and_then(seconds))
    }
}

fn class(value: &[u8]) -> Option<u8> {
    match value {
        [digit @ b'0'..=b'9'] => Some(digit - b'0').filter(|class| *class < QUEUE_CLASSES),
        _ => None,
    }
}

/// vLLM's `priority` around the usual class.
fn class_of_priority(usual: u8, priority: i64) -> u8 {
    let class = i64::from(usual).saturating_add(priority).clamp(0, i64::from(QUEUE_CLASSES) - 1);
    u8::try_from(class).unwrap_or(usual)
}

/// The best priority that a tenant with this best class may send. Class 0 has no bound, since no
/// class precedes it.
fn priority_best(usual: u8, class_best: u8) -> i64 {
    if class_best == 0 { i64::MIN } else { i64::from(class_best) - i64::from(usual) }
}

fn milliseconds(value: &[u8]) -> Option<Duration> {
    let digits = number(value, false)?;
    usable(Duration::from_millis(digits.parse().ok()?))
}

/// Python's SDKs write `600` or `0.5`, and `None` or `NOT_GIVEN` where they have no timeout.
fn seconds(value: &[u8]) -> Option<Duration> {
    let digits = number(value, true)?;
    Duration::try_from_secs_f64(digits.parse().ok()?).ok().and_then(usable)
}

/// Digits, and points if `with_point`; no sign, no exponent.
fn number(value: &[u8], with_point: bool) -> Option<&str> {
    let plain = |byte: &u8| byte.is_ascii_digit() || with_point && *byte == b'.';
    let fits = value.len() <= NUMBER_BYTES_MAX && value.iter().all(plain);
    std::str::from_utf8(value).ok().filter(|_| fits)
}

/// Node's SDKs round less than a second to 0, and proxies read 0 as "none".
fn usable(deadline: Duration) -> Option<Duration> {
    (!deadline.is_zero() && deadline <= DEADLINE_MAX).then_some(deadline)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_http1::{HeadLimits, Progress, parse_request};
    use proptest::prelude::*;

    fn usual() -> HintRules {
        HintRules { class_default: 1, class_best: 1, tenant: 0, weight: 1 }
    }

    /// May have the first class.
    fn free() -> HintRules {
        HintRules { class_best: 0, ..usual() }
    }

    fn read(rules: &HintRules, fields: &str, priority: Option<i64>) -> RequestHints {
        let text = format!("POST /v1/completions HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        let mut head = RequestHead::default();
        let parsed = parse_request(text.as_bytes(), &HeadLimits::default(), &mut head);
        assert_eq!(parsed, Ok(Progress::Complete), "{fields}");
        rules.read(&head, text.as_bytes(), priority)
    }

    #[test]
    fn a_request_without_hints_gets_the_usual_class() {
        let hints = read(&usual(), "", None);
        let usual = RequestHints {
            caller: Caller { class: 1, tenant: 0, weight: 1, session: None, source: 0 },
            deadline: None,
            upstream_priority: None,
        };
        assert_eq!(hints, usual);
    }

    #[test]
    fn a_class_by_field_or_by_body() {
        let class = |fields: &str, priority| read(&free(), fields, priority).caller.class;
        assert_eq!(class("x-forebay-priority: 0\r\n", None), 0);
        assert_eq!(class("X-Forebay-Priority: 3\r\n", Some(-5)), 3, "the field first");
        for (priority, wanted) in
            [(i64::MIN, 0), (-1, 0), (0, 1), (1, 2), (2, 3), (3, 3), (i64::MAX, 3)]
        {
            assert_eq!(class("", Some(priority)), wanted, "{priority}");
        }
        for wrong in ["4", "-1", "00", "high", "", "1.0", "0, 1"] {
            let field = format!("x-forebay-priority: {wrong}\r\n");
            assert_eq!((class(&field, None), class(&field, Some(-1))), (1, 0), "{wrong:?}");
        }
        assert_eq!(class("X-Vllm-Priority: -1\r\n", Some(2)), 0, "as the engine does");
        assert_eq!(class("X-Vllm-Priority: soon\r\n", Some(2)), 3);
        assert_eq!(class("x-vllm-priority: -9\r\nx-forebay-priority: 2\r\n", None), 2);
        assert_eq!(class("x-forebay-priority: 2\r\nx-forebay-priority: 0\r\n", None), 2);
        assert_eq!(class("Connection: x-forebay-priority\r\nx-forebay-priority: 0\r\n", None), 1);
    }

    #[test]
    fn deadlines_from_clients_and_from_the_sdks() {
        let ms = |fields: &str| {
            read(&usual(), fields, None).deadline.map(|deadline| deadline.as_millis())
        };
        assert_eq!(ms("x-forebay-timeout-ms: 250\r\n"), Some(250));
        assert_eq!(ms("x-stainless-read-timeout: 600\r\n"), Some(600_000));
        assert_eq!(ms("x-stainless-read-timeout: 0.5\r\n"), Some(500));
        assert_eq!(ms("X-Stainless-Timeout: 30\r\n"), Some(30_000));
        let both = "x-stainless-timeout: None\r\nx-stainless-read-timeout: 2.25\r\n";
        assert_eq!(ms(both), Some(2_250));
        let all = format!("{both}x-forebay-timeout-ms: 9\r\n");
        assert_eq!(ms(&all), Some(9), "what was meant for us first");
        for wrong in ["0", "0.0", "NOT_GIVEN", "-1", "1e3", "inf", "nan", "", ".", "1.2.3", "86401"]
        {
            assert_eq!(ms(&format!("x-stainless-timeout: {wrong}\r\n")), None, "{wrong:?}");
        }
        assert_eq!(ms("x-forebay-timeout-ms: 1.5\r\n"), None);
        assert_eq!(ms("x-forebay-timeout-ms: 99999999999999999999\r\n"), None);
    }

    #[test]
    fn the_engine_gets_no_better_priority_than_granted() {
        let sent = |rules: &HintRules, fields: &str, in_body| {
            read(rules, fields, in_body).upstream_priority
        };
        let field = "X-Vllm-Priority: -5\r\n";
        for (fields, in_body, wanted) in [
            ("", None, None),
            ("", Some(0), None),
            ("", Some(7), None),
            ("", Some(-5), Some(0)),
            (field, None, None),
            (field, Some(3), Some(0)),
            ("X-Vllm-Priority: 4\r\n", None, Some(4)),
            ("X-Vllm-Priority: 4\r\n", Some(4), None),
            ("X-Vllm-Priority: +0_4\r\n", Some(-1), Some(4)),
            ("X-Vllm-Priority: soon\r\n", Some(4), None),
            ("Connection: x-vllm-priority\r\nX-Vllm-Priority: 4\r\n", None, None),
        ] {
            assert_eq!(sent(&usual(), fields, in_body), wanted, "{fields:?} {in_body:?}");
        }
        // A tenant with class 0 may send any priority.
        assert_eq!(sent(&free(), field, Some(-9)), Some(-5));
        assert_eq!(sent(&free(), "", Some(-9)), None);
        // A tenant below the usual class comes after that class in the engine too.
        let batch = HintRules { class_best: 3, ..usual() };
        assert_eq!((sent(&batch, "", None), sent(&batch, "", Some(9))), (Some(2), None));
    }

    #[test]
    fn a_tenant_gets_its_weight_and_no_better_class_than_its_own() {
        let of = |class_best, tenant, weight, class: &str| {
            let rules = HintRules { class_default: 1, class_best, tenant, weight };
            let caller = read(&rules, &format!("x-forebay-priority: {class}\r\n"), None).caller;
            (caller.class, caller.tenant, caller.weight)
        };
        assert_eq!(of(0, 7, 8, "0"), (0, 7, 8));
        assert_eq!(of(0, 7, 8, "2"), (2, 7, 8), "a worse one is theirs to ask for");
        assert_eq!(of(3, 9, 2, "0"), (3, 9, 2));
        assert_eq!(of(1, 0, 0, "0"), (1, 0, 1));
    }

    proptest! {
        #[test]
        fn any_values_are_taken(
            value in "[ -~]{0,30}",
            priority: Option<i64>,
            class_best in 0_u8..=255,
            class_default in 0_u8..=255,
        ) {
            let rules = HintRules { class_default, class_best, tenant: 0, weight: 0 };
            let fields = format!(
                "x-forebay-priority: {value}\r\nx-forebay-timeout-ms: {value}\r\n\
                 x-stainless-timeout: {value}\r\n"
            );
            let hints = read(&rules, &fields, priority);
            prop_assert!(hints.caller.class < QUEUE_CLASSES && hints.caller.weight > 0);
            prop_assert!(hints.deadline.is_none_or(|d| !d.is_zero() && d <= DEADLINE_MAX));
        }
    }
}
