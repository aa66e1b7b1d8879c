//! The caller of a request, and the models and classes that the caller may use. Decided from the
//! head alone.
//!
//! | configured | the tenant is | best class |
//! |---|---|---|
//! | `api_keys` | that of the key in `Authorization: Bearer`, else in `x-api-key` | the key's |
//! | `jwt` | that of the token's claim, if a table or a key has this name | the token's |
//! | `queue.tenant_header` | that of the field, if it has a `[[tenant]]` | 0 |
//! | nothing | `*` | `queue.class_default` |
//!
//! A tenant header is trusted: the proxy in front sets it, and may set the class too. Without keys
//! and header all callers share a single anonymous tenant.

use super::fields::hints::HintRules;
use super::refusals::reason::Reason;
use super::refusals::refuse::Refusal;
use super::request::ApiRequest;
use forebay_base::TenantIndex;
use forebay_config::QueueConfig;
use forebay_fleet::tenant::{Grant, TenantPart, Tenants};
use forebay_fleet::worker::ANY_MODEL;
use forebay_http1::{FieldKind, RequestHead, bytes_of};
use forebay_keys::{KeyDigest, TokenCache, TokenGrant, TokenVerifier};
use std::cell::RefCell;
use std::sync::Arc;

/// The caller of a request. Holds only the hash of a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Principal {
    /// The tenant, even without a `[[tenant]]` table.
    pub tenant: TenantIndex,
    /// Best class of its requests; `None`: `queue.class_default`.
    class_best: Option<u8>,
    key: Option<KeyDigest>,
    /// Set if a token was used in place of a key of the file.
    token: Option<Arc<TokenGrant>>,
}

/// The token cache of a shard, and the clock for expiry.
#[derive(Debug)]
pub struct KnownTokens<'a> {
    /// Cache of verified tokens.
    pub cache: &'a RefCell<TokenCache>,
    /// Reads the seconds since 1970; only called for a token.
    pub now_s: fn() -> u64,
}

impl Principal {
    /// Reads the head of a request.
    ///
    /// # Errors
    /// A refusal where keys are required and the request has none, or an unknown key.
    pub fn of(
        tenants: &Tenants,
        queue: &QueueConfig,
        head: &RequestHead,
        buffer: &[u8],
        tokens: &KnownTokens<'_>,
    ) -> Result<Self, Refusal> {
        if tenants.ask_for_keys() {
            return Self::with_key(tenants, head, buffer, tokens);
        }
        let header = queue.tenant_header.as_bytes();
        if header.is_empty() {
            return Ok(Self::default());
        }
        let named = |field: &&forebay_http1::Field| {
            bytes_of(buffer, &field.name).eq_ignore_ascii_case(header)
        };
        let field = head.fields.iter().find(named);
        let known = field.and_then(|field| tenants.with_table(bytes_of(buffer, &field.value)));
        let class_best = known.map(|_| 0);
        Ok(Self { tenant: known.unwrap_or_default(), class_best, key: None, token: None })
    }

    fn with_key(
        tenants: &Tenants,
        head: &RequestHead,
        buffer: &[u8],
        tokens: &KnownTokens<'_>,
    ) -> Result<Self, Refusal> {
        let Some(shown) = key_of(head, buffer) else {
            return Err(Refusal::new(Reason::Unauthorized));
        };
        let digest = KeyDigest::of(shown);
        if let Some(grant) = digest.as_ref().and_then(|digest| tenants.grant(digest)) {
            let Grant { tenant, key } = grant;
            return Ok(Self { tenant, class_best: key.class_best, key: digest, token: None });
        }
        let verifier = tenants.tokens().filter(|_| TokenVerifier::is_token(shown));
        let verifier = verifier.ok_or_else(unknown_key)?;
        let grant = tokens.cache.borrow_mut().grant(verifier, shown, (tokens.now_s)());
        let grant = grant.ok_or_else(refused_token)?;
        let tenant = tenants.named(&grant.key.tenant);
        let class_best = grant.key.class_best;
        Ok(Self { tenant, class_best, key: Some(grant.key.digest), token: Some(grant) })
    }

    /// Did the client send a key of this router? Workers must not see it.
    #[must_use]
    pub const fn has_key(&self) -> bool {
        self.key.is_some()
    }

    /// Looks up the key's models again, so that a request that began before a reload obeys the
    /// current keys. A key that was removed since may use no model.
    fn grant<'a>(&'a self, tenants: &'a Tenants) -> Option<Option<Grant<'a>>> {
        if let Some(token) = &self.token {
            return Some(Some(Grant { tenant: self.tenant, key: &token.key }));
        }
        self.key.as_ref().map(|digest| tenants.grant(digest))
    }

    /// May the list of models include `model`?
    #[must_use]
    pub fn may_see(&self, tenants: &Tenants, model: &str) -> bool {
        match self.grant(tenants) {
            None => true,
            Some(grant) => grant.is_some_and(|grant| grant.key.may_use(model)),
        }
    }

    /// The models that the key is limited to, if it is.
    #[must_use]
    pub fn only_models<'a>(&'a self, tenants: &'a Tenants) -> Option<&'a [String]> {
        let grant = self.grant(tenants)?;
        let models = grant.map_or(&[][..], |grant| &grant.key.models);
        (grant.is_none() || !models.is_empty()).then_some(models)
    }

    /// Checks that the request may use the models that its body names. `resolved`: the model that
    /// serves it, if any.
    ///
    /// # Errors
    /// A refusal that names the model, or reports that the key was removed since.
    pub fn check_model(
        &self,
        tenants: &Tenants,
        request: &ApiRequest,
        resolved: Option<&str>,
    ) -> Result<(), Refusal> {
        let Some(grant) = self.grant(tenants) else { return Ok(()) };
        let listed = &grant.ok_or_else(unknown_key)?.key.models;
        if listed.is_empty() {
            return Ok(());
        }
        let lists = |name: &str| listed.iter().any(|model| model == name);
        let resolved = resolved.filter(|name| *name != ANY_MODEL && lists(name));
        let model = request.asked_model();
        let lora = &*request.lora;
        // Engines differ in whether `model` or `lora_path` counts: both have to be allowed. Only
        // `base:adapter` is known by its resolved name alone.
        let is_model = match model {
            "" => resolved.is_some() || !lora.is_empty(),
            _ => lists(model) || lora.is_empty() && resolved.is_some(),
        };
        let is_lora = (lora.is_empty() || lists(lora)) && !request.names_other_lora;
        if is_model && is_lora {
            return Ok(());
        }
        Err(Refusal::forbidden_model(if is_model { lora } else { model }))
    }

    /// Share of the caller beside other tenants.
    #[must_use]
    pub fn part(&self, tenants: &Tenants, queue: &QueueConfig) -> TenantPart {
        let named = self.token.as_ref().map(|token| &*token.key.tenant);
        let part = tenants.part(self.tenant, named);
        let is_anonymous = !tenants.ask_for_keys() && queue.tenant_header.is_empty();
        TenantPart { is_only: part.is_only || is_anonymous, ..part }
    }

    /// Bounds for the hints of the request.
    #[must_use]
    pub fn rules(&self, tenants: &Tenants, queue: &QueueConfig) -> HintRules {
        let TenantPart { tenant, weight, .. } = self.part(tenants, queue);
        HintRules {
            class_default: queue.class_default,
            class_best: self.class_best.unwrap_or(queue.class_default),
            tenant,
            weight,
        }
    }
}

fn refused_token() -> Refusal {
    let message = "This token is not valid here: it has expired, or its key, issuer or audience \
                   is not one that this router takes.";
    Refusal::new(Reason::Unauthorized).with_message(message)
}

fn unknown_key() -> Refusal {
    let message = "This API key is unknown. Ask the operator of this router for a key.";
    Refusal::new(Reason::Unauthorized).with_message(message)
}

/// The credential that the client sent: the first field of its kind counts.
fn key_of<'a>(head: &RequestHead, buffer: &'a [u8]) -> Option<&'a [u8]> {
    let bearing = head.value_of(FieldKind::Authorization, buffer).and_then(bearer);
    let key = bearing.or_else(|| head.value_of(FieldKind::ApiKey, buffer));
    key.filter(|key| !key.is_empty())
}

/// The credentials of the scheme `Bearer`; RFC 9110 section 11.1: the scheme's name knows no case.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, key) = value.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| key.trim_ascii_start())
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_config::TenantConfig;
    use forebay_http1::{HeadLimits, Progress, parse_request};
    use forebay_keys::{KeyRing, StoredKey};
    use proptest::prelude::*;

    fn table(name: &str, weight: u32) -> TenantConfig {
        TenantConfig { name: name.to_owned(), weight, ..TenantConfig::default() }
    }

    fn keyed() -> Tenants {
        let key = |secret: &str, tenant: &str, models: &[&str], class_best| StoredKey {
            id: secret.to_owned(),
            digest: KeyDigest::of(secret.as_bytes()).unwrap(),
            tenant: tenant.to_owned(),
            models: models.iter().map(|&name| name.to_owned()).collect(),
            class_best,
            created: String::new(),
        };
        let keys = vec![
            key("gold-key", "gold", &[], Some(0)),
            key("some-key", "some", &["m", "adapter"], None),
        ];
        let ring = Some(Arc::new(KeyRing::new(keys)));
        Tenants::new(&Tenants::default(), &[table("gold", 8), table("*", 2)], ring)
    }

    fn ask(tenants: &Tenants, queue: &QueueConfig, fields: &str) -> Result<Principal, Refusal> {
        let text = format!("POST /v1/completions HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        let mut head = RequestHead::default();
        let parsed = parse_request(text.as_bytes(), &HeadLimits::default(), &mut head);
        assert_eq!(parsed, Ok(Progress::Complete), "{fields}");
        let cache = RefCell::default();
        let tokens = KnownTokens { cache: &cache, now_s: || 1_000 };
        Principal::of(tenants, queue, &head, text.as_bytes(), &tokens)
    }

    fn rules_of(tenants: &Tenants, queue: &QueueConfig, fields: &str) -> (u8, u64, u32) {
        let whom = ask(tenants, queue, fields).unwrap();
        let HintRules { class_best, tenant, weight, .. } = whom.rules(tenants, queue);
        (class_best, tenant, weight)
    }

    #[test]
    fn only_a_key_identifies_the_caller() {
        let tenants = keyed();
        let queue = QueueConfig::default();
        let with_header = QueueConfig { tenant_header: "x-team".to_owned(), ..queue };
        for queue in [&QueueConfig::default(), &with_header] {
            for fields in [
                "Authorization: Bearer gold-key\r\n",
                "authorization: bearer  gold-key\r\n",
                "x-api-key: gold-key\r\n",
                "Authorization: Basic Zm9v\r\nX-Api-Key: gold-key\r\n",
                "Authorization: Bearer gold-key\r\nx-api-key: some-key\r\nx-team: some\r\n",
            ] {
                assert_eq!(rules_of(&tenants, queue, fields), (0, 1, 8), "{fields}");
            }
            let other = "x-team: gold\r\nx-api-key: some-key\r\n";
            assert_eq!(rules_of(&tenants, queue, other), (1, 2, 2), "a key without a class");
            assert_eq!(ask(&tenants, queue, other).unwrap().tenant, TenantIndex(2));
        }
    }

    #[test]
    fn without_a_known_key_a_request_is_refused() {
        let tenants = keyed();
        let queue = QueueConfig::default();
        let long = format!("x-api-key: {}\r\n", "x".repeat(4_000));
        for (fields, is_unknown) in [
            ("", false),
            ("Authorization: Bearer \r\n", false),
            ("Authorization: Basic gold-key\r\n", false),
            ("x-api-key: \r\n", false),
            ("Connection: x-api-key\r\nx-api-key: gold-key\r\n", false),
            ("x-team: gold\r\n", false),
            ("Authorization: Bearer gold-ke\r\n", true),
            ("Authorization: Bearer gold-key1\r\nx-api-key: gold-key\r\n", true),
            ("x-api-key: Gold-key\r\n", true),
            (&long, true),
        ] {
            let refusal = ask(&tenants, &queue, fields).unwrap_err();
            assert_eq!((refusal.status(), refusal.reason()), (401, Reason::Unauthorized));
            assert_eq!(refusal.message().contains("unknown"), is_unknown, "{fields}");
        }
    }

    /// Attack review, S12: a made-up key must not get a share of its own or class 0.
    #[test]
    fn without_keys_all_callers_share_a_tenant() {
        let queue = QueueConfig::default();
        let tenants = Tenants::new(&Tenants::default(), &[table("gold", 8), table("*", 2)], None);
        for fields in ["", "x-api-key: gold\r\n", "Authorization: Bearer gold\r\nx-team: gold\r\n"]
        {
            assert_eq!(rules_of(&tenants, &queue, fields), (1, 0, 2), "{fields}");
        }
        let queue = QueueConfig { tenant_header: "X-Team".to_owned(), class_default: 2, ..queue };
        assert_eq!(rules_of(&tenants, &queue, "x-team: gold\r\n"), (0, 1, 8));
        for fields in ["", "x-team: made-up\r\n", "x-team: *\r\n", "x-team: \r\n"] {
            assert_eq!(rules_of(&tenants, &queue, fields), (2, 0, 2), "{fields}");
        }
        let whom = ask(&tenants, &queue, "").unwrap();
        assert!(!whom.has_key() && whom.may_see(&tenants, "any"));
        assert_eq!(whom.check_model(&tenants, &ApiRequest::default(), None), Ok(()));
    }

    #[test]
    fn a_key_with_models_uses_these_and_no_others() {
        let tenants = keyed();
        let queue = QueueConfig::default();
        let gold = ask(&tenants, &queue, "x-api-key: gold-key\r\n").unwrap();
        let some = ask(&tenants, &queue, "x-api-key: some-key\r\n").unwrap();
        assert!(gold.may_see(&tenants, "x") && some.may_see(&tenants, "m"));
        assert!(!some.may_see(&tenants, "x") && gold.only_models(&tenants).is_none());
        let of = |model: &str, lora: &str, resolved: Option<&str>| {
            let request = ApiRequest {
                model: model.to_owned(),
                lora: lora.to_owned(),
                ..ApiRequest::default()
            };
            assert_eq!(gold.check_model(&tenants, &request, resolved), Ok(()));
            some.check_model(&tenants, &request, resolved).is_ok()
        };
        assert!(of("m", "", Some("m")) && of("m", "", Some("*")) && of("m", "", None));
        assert!(of("", "", Some("m")), "the only one that is served");
        assert!(of("base:adapter", "", Some("adapter")) && of("m", "adapter", Some("adapter")));
        for (model, lora, resolved) in [
            ("x", "", Some("x")),
            ("x", "", None),
            ("x", "", Some("*")),
            ("", "", Some("x")),
            ("", "", Some("*")),
            ("", "", None),
            ("x", "adapter", Some("adapter")),
            ("m", "other", Some("m")),
            ("m", "other", Some("other")),
            ("base:other", "", Some("other")),
        ] {
            assert!(!of(model, lora, resolved), "{model} {lora} {resolved:?}");
        }
        let listed =
            ApiRequest { model: "m".into(), names_other_lora: true, ..ApiRequest::default() };
        assert!(some.check_model(&tenants, &listed, Some("m")).is_err());
        // The key was removed after the head was read.
        let without = Tenants::new(&tenants, &[], Some(Arc::default()));
        let refusal = gold.check_model(&without, &listed, Some("m")).unwrap_err();
        assert_eq!(refusal.reason(), Reason::Unauthorized);
        assert!(!gold.may_see(&without, "m"));
    }

    proptest! {
        #[test]
        fn any_credential_is_taken(value in "[ -~]{0,80}") {
            let tenants = keyed();
            let queue = QueueConfig::default();
            let fields = format!("authorization: {value}\r\nx-api-key: {value}\r\n");
            let known = ["gold-key", "some-key"].iter().any(|key| value.trim().ends_with(key));
            prop_assert!(known || ask(&tenants, &queue, &fields).is_err());
        }
    }
}
