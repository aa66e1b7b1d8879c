//! Tenants, and the API keys that identify them. Control rebuilds [`Tenants`] at each reload;
//! shards read them as part of the fleet.

use super::rate::MinuteRate;
use ahash::{AHashMap, RandomState};
use forebay_base::TenantIndex;
use forebay_base::limits::TENANTS_MAX;
use forebay_config::TenantConfig;
use forebay_keys::{KeyDigest, KeyRing, StoredKey, TokenVerifier};
use std::sync::Arc;

/// Slots of a table by tenant, see [`tenant_slot`].
pub const TENANT_SLOTS: usize = 2 * TENANTS_MAX;
/// First number of tenants that only a token names.
const TOKEN_TENANTS: u64 = 1 << 63;

/// Name of the `[[tenant]]` for all tenants without a table of their own.
pub const ANY_TENANT: &str = "*";

/// Permitted callers, their keys and limits. Immutable.
#[derive(Clone, Debug)]
pub struct Tenants {
    /// Indexed by [`TenantIndex`]. The first entry is for all tenants without a number.
    list: Vec<Tenant>,
    numbers: Arc<TenantNumbers>,
    keys: Option<ServedKeys>,
    /// Checks tokens, where clients may send a token in place of a key.
    tokens: Option<Arc<TokenVerifier>>,
    /// Does any tenant need its tokens counted?
    are_counted: bool,
    /// May requests of several tenants arrive?
    are_several: bool,
}

/// A tenant, as configured at this moment.
#[derive(Clone, Debug)]
pub struct Tenant {
    /// For the log and metrics.
    pub name: Arc<str>,
    /// Its `[[tenant]]`, or `*`, which tenants without a table share.
    pub billed: TenantIndex,
    /// Weight in a class beside other tenants.
    pub weight: u32,
    /// Limits for all requests with the same `billed`.
    pub quota: Quota,
}

/// Limits of a tenant, or of all tenants of `*` together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// Requests per minute; `None`: no limit.
    pub requests: Option<MinuteRate>,
    /// Tokens of prompts and answers per minute; `None`: no limit.
    pub tokens: Option<MinuteRate>,
    /// Requests in flight; 0: no limit.
    pub in_flight_max: u32,
}

/// A tenant's part of a shared resource: a queue, or the places of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantPart {
    /// Number of the tenant. A tenant without a `[[tenant]]` has its own number too, if a key or a
    /// token proves its name.
    pub tenant: u64,
    /// Weight beside other tenants.
    pub weight: u32,
    /// There is no other tenant: nothing is shared.
    pub is_only: bool,
}

impl TenantPart {
    /// The part in a router without tenants.
    pub const ONLY: Self = Self { tenant: 0, weight: 1, is_only: true };
}

/// Slot of a tenant in a table of [`TENANT_SLOTS`]. Tenants that only a token names share half of
/// the slots by hash, so that token issuers cannot grow any table.
#[must_use]
pub fn tenant_slot(tenant: u64) -> usize {
    let slots = TENANTS_MAX as u64;
    let slot = if tenant < slots { tenant } else { slots + tenant % slots };
    usize::try_from(slot).unwrap_or(0)
}

/// Numbers of tenants by name. A number never changes while the process runs: counters are indexed
/// by it.
#[derive(Clone, Debug, Default)]
pub struct TenantNumbers {
    by_name: AHashMap<Arc<str>, TenantIndex>,
}

/// Rights of an API key.
#[derive(Clone, Copy, Debug)]
pub struct Grant<'a> {
    /// The tenant that owns the key.
    pub tenant: TenantIndex,
    /// Its models and its best class.
    pub key: &'a StoredKey,
}

#[derive(Clone, Debug)]
struct ServedKeys {
    ring: Arc<KeyRing>,
    /// Tenants by the position of their keys in the ring.
    tenants: Vec<TenantIndex>,
}

impl TenantNumbers {
    /// Number of the tenant; assigns a new number if there is room.
    fn give(&mut self, name: &str) -> TenantIndex {
        if let Some(known) = self.by_name.get(name) {
            return *known;
        }
        let next = self.by_name.len() + 1;
        let number = TenantIndex::try_from_index(next).filter(|_| next < TENANTS_MAX);
        let Some(number) = number.filter(|_| name != ANY_TENANT) else {
            return TenantIndex::default();
        };
        self.by_name.insert(name.into(), number);
        number
    }
}

impl Tenants {
    /// Tenants of the configuration and the key file. Numbers stay as in `before`.
    #[must_use]
    pub fn new(before: &Self, tables: &[TenantConfig], keys: Option<Arc<KeyRing>>) -> Self {
        let mut numbers = (*before.numbers).clone();
        // Tables come first: they have weights and quotas. At the limit, further tenants share `*`.
        let billed: Vec<TenantIndex> =
            tables.iter().map(|table| numbers.give(&table.name)).collect();
        let keys = keys.map(|ring| {
            let tenants = ring.keys().iter().map(|key| numbers.give(&key.tenant)).collect();
            ServedKeys { ring, tenants }
        });
        let mut list = before.list.clone();
        let mut names: Vec<(&Arc<str>, TenantIndex)> =
            numbers.by_name.iter().map(|(name, number)| (name, *number)).collect();
        names.sort_unstable_by_key(|(_, number)| *number);
        let further = names.into_iter().skip(list.len().saturating_sub(1));
        list.extend(further.map(|(name, _)| Tenant::named(Arc::clone(name))));
        let table_of = |wanted: &str| tables.iter().find(|table| table.name == wanted);
        let of_any = table_of(ANY_TENANT).map_or((1, Quota::default()), rights);
        for (number, tenant) in list.iter_mut().enumerate() {
            let number = TenantIndex::try_from_index(number).unwrap_or_default();
            let own = table_of(&tenant.name).filter(|_| billed.contains(&number));
            tenant.billed = if own.is_some() { number } else { TenantIndex::default() };
            (tenant.weight, tenant.quota) = own.map_or(of_any, rights);
        }
        let tokens = before.tokens.clone();
        let are_counted = keys.is_some() || tokens.is_some() || !tables.is_empty();
        let are_several = match &keys {
            // A caller without a key is refused.
            Some(keys) => keys.tenants.iter().any(|tenant| Some(tenant) != keys.tenants.first()),
            None => tables.iter().any(|table| table.name != ANY_TENANT),
        };
        Self { list, numbers: Arc::new(numbers), keys, tokens, are_counted, are_several }
    }

    /// The same tenants, for clients that may send tokens.
    #[must_use]
    pub fn with_tokens(self, verifier: Arc<TokenVerifier>) -> Self {
        Self { tokens: Some(verifier), are_counted: true, ..self }
    }

    /// The same tenants, for clients without tokens.
    #[must_use]
    pub fn without_tokens(self) -> Self {
        Self { tokens: None, ..self }
    }

    #[must_use]
    pub const fn are_counted(&self) -> bool {
        self.are_counted
    }

    /// Must a client send a key or a token?
    #[must_use]
    pub const fn ask_for_keys(&self) -> bool {
        self.keys.is_some() || self.tokens.is_some()
    }

    #[must_use]
    pub const fn tokens(&self) -> Option<&Arc<TokenVerifier>> {
        self.tokens.as_ref()
    }

    /// The tenant of that name; `*` for a name without a table and without a key.
    #[must_use]
    pub fn named(&self, name: &str) -> TenantIndex {
        self.numbers.by_name.get(name).copied().unwrap_or_default()
    }

    /// The keys, if clients must send a key.
    #[must_use]
    pub fn keys(&self) -> Option<&Arc<KeyRing>> {
        self.keys.as_ref().map(|keys| &keys.ring)
    }

    /// Rights of the key with that hash; `None` for an unknown key.
    #[must_use]
    pub fn grant(&self, digest: &KeyDigest) -> Option<Grant<'_>> {
        let keys = self.keys.as_ref()?;
        let (position, key) = keys.ring.find(digest)?;
        Some(Grant { tenant: keys.tenants.get(position).copied().unwrap_or_default(), key })
    }

    /// The tenant of that name, if it has a table.
    #[must_use]
    pub fn with_table(&self, name: &[u8]) -> Option<TenantIndex> {
        let name = std::str::from_utf8(name).ok()?;
        let number = *self.numbers.by_name.get(name)?;
        (self.get(number)?.billed == number).then_some(number)
    }

    /// The part of a caller. `named`: the tenant that its token names.
    #[must_use]
    pub fn part(&self, tenant: TenantIndex, named: Option<&str>) -> TenantPart {
        let number = match named {
            Some(name) if tenant == TenantIndex::default() && !matches!(name, "" | ANY_TENANT) => {
                // Fixed seeds: all shards must count the tenant in the same slot.
                RandomState::with_seeds(1, 2, 3, 4).hash_one(name) | TOKEN_TENANTS
            }
            _ => u64::from(tenant.0),
        };
        TenantPart {
            tenant: number,
            weight: self.get(tenant).map_or(1, |tenant| tenant.weight),
            is_only: !self.are_several(),
        }
    }

    #[must_use]
    pub fn get(&self, tenant: TenantIndex) -> Option<&Tenant> {
        self.list.get(tenant.index())
    }

    /// Name of the tenant, for people.
    #[must_use]
    pub fn name(&self, tenant: TenantIndex) -> &str {
        self.get(tenant).map_or(ANY_TENANT, |tenant| &tenant.name)
    }

    /// All tenants, in the order of their numbers.
    #[must_use]
    pub fn all(&self) -> &[Tenant] {
        &self.list
    }

    /// True if requests of several tenants may arrive.
    #[must_use]
    pub const fn are_several(&self) -> bool {
        self.are_several || self.tokens.is_some()
    }
}

/// Weight and limits of a table.
fn rights(table: &TenantConfig) -> (u32, Quota) {
    let quota = Quota {
        requests: MinuteRate::of(table.requests_per_minute),
        tokens: MinuteRate::of(table.tokens_per_minute),
        in_flight_max: table.in_flight_max,
    };
    (table.weight.max(1), quota)
}

impl Tenant {
    fn named(name: Arc<str>) -> Self {
        Self { name, billed: TenantIndex::default(), weight: 1, quota: Quota::default() }
    }
}

impl Default for Tenants {
    fn default() -> Self {
        let list = vec![Tenant::named(ANY_TENANT.into())];
        let numbers = Arc::default();
        Self { list, numbers, keys: None, tokens: None, are_counted: false, are_several: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(name: &str, weight: u32) -> TenantConfig {
        TenantConfig { name: name.to_owned(), weight, ..TenantConfig::default() }
    }

    fn ring(keys: &[(&str, &str)]) -> Option<Arc<KeyRing>> {
        let stored = |(secret, tenant): &(&str, &str)| StoredKey {
            id: (*secret).to_owned(),
            digest: KeyDigest::of(secret.as_bytes()).unwrap(),
            tenant: (*tenant).to_owned(),
            models: Vec::new(),
            class_best: None,
            created: String::new(),
        };
        Some(Arc::new(KeyRing::new(keys.iter().map(stored).collect())))
    }

    fn of_key(tenants: &Tenants, secret: &str) -> Option<u16> {
        tenants.grant(&KeyDigest::of(secret.as_bytes())?).map(|grant| grant.tenant.0)
    }

    #[test]
    fn keys_lead_to_tenants_and_numbers_stay() {
        let none = Tenants::default();
        assert!(!none.ask_for_keys() && none.name(TenantIndex(9)) == "*");
        let keys = ring(&[("k1", "a"), ("k2", "b"), ("k3", "a"), ("k4", "*")]);
        let first = Tenants::new(&none, &[table("b", 5), table("*", 3)], keys);
        assert!(first.ask_for_keys());
        let of = |secret| of_key(&first, secret);
        assert_eq!([of("k1"), of("k2"), of("k3"), of("k4")], [2, 1, 2, 0].map(Some));
        assert_eq!(of("k5"), None);
        let billed = |tenants: &Tenants, number| {
            let tenant = tenants.get(TenantIndex(number)).unwrap();
            (tenant.billed.0, tenant.weight)
        };
        assert_eq!([0, 1, 2].map(|number| billed(&first, number)), [(0, 3), (1, 5), (0, 3)]);
        assert_eq!(first.with_table(b"b"), Some(TenantIndex(1)));
        assert_eq!((first.with_table(b"a"), first.with_table(b"*")), (None, None));
        // Other tables and keys: a tenant with a number keeps it.
        let second = Tenants::new(&first, &[table("c", 2), table("a", 7)], ring(&[("k1", "b")]));
        assert_eq!((of_key(&second, "k1"), of_key(&second, "k2")), (Some(1), None));
        let names: Vec<&str> = second.all().iter().map(|tenant| &*tenant.name).collect();
        assert_eq!(names, ["*", "b", "a", "c"]);
        let billed_now = [0, 1, 2, 3].map(|number| billed(&second, number));
        assert_eq!(billed_now, [(0, 1), (0, 1), (2, 7), (3, 2)]);
        assert!(!Tenants::new(&second, &[], None).ask_for_keys());
    }

    #[test]
    fn past_the_limit_tenants_share_the_first_number() {
        let names: Vec<String> = (0..TENANTS_MAX + 5).map(|number| number.to_string()).collect();
        let keys: Vec<(&str, &str)> = names.iter().map(|name| (&**name, &**name)).collect();
        let tenants = Tenants::new(&Tenants::default(), &[], ring(&keys));
        assert_eq!(tenants.all().len(), TENANTS_MAX);
        assert_eq!(of_key(&tenants, "0"), Some(1));
        let last = TENANTS_MAX - 2;
        let over = TENANTS_MAX - 1;
        assert_eq!(of_key(&tenants, &last.to_string()), u16::try_from(TENANTS_MAX - 1).ok());
        assert_eq!(of_key(&tenants, &over.to_string()), Some(0));
        // A table that comes too late counts as `*` too.
        let late = Tenants::new(&tenants, &[table("late", 9)], None);
        assert_eq!((late.with_table(b"late"), late.all().len()), (None, TENANTS_MAX));
        assert_eq!(late.get(TenantIndex(0)).unwrap().weight, 1);
    }

    #[test]
    fn a_part_is_of_whoever_a_key_or_a_token_proves() {
        let none = Tenants::default();
        let part = |tenants: &Tenants, number, named| {
            let TenantPart { tenant, weight, is_only } = tenants.part(TenantIndex(number), named);
            (tenant, weight, is_only)
        };
        assert_eq!(part(&none, 0, None), (0, 1, true));
        let keys = ring(&[("k1", "a"), ("k2", "b")]);
        let tenants = Tenants::new(&none, &[table("b", 5), table("*", 3)], keys);
        let numbers = [0, 1, 2].map(|number| part(&tenants, number, None));
        assert_eq!(numbers, [(0, 3, false), (1, 5, false), (2, 3, false)], "not all of `*`");
        let one = Tenants::new(&tenants, &[], ring(&[("k1", "a"), ("k3", "a")]));
        assert_eq!(part(&one, 2, None), (2, 1, true), "no other has a key");
        // A token's tenant without a number.
        let [named, again, other] =
            ["acme", "acme", "other"].map(|name| part(&tenants, 0, Some(name)));
        assert!(named == again && named.0 != other.0 && named.1 == 3);
        assert!([named.0, other.0].map(tenant_slot).iter().all(|slot| *slot >= TENANTS_MAX));
        assert_eq!(part(&tenants, 0, Some("")), (0, 3, false), "a token without the claim");
        assert_eq!(part(&tenants, 2, Some("a")).0, 2, "its name has a number");
        let slots: std::collections::BTreeSet<_> =
            (0..TENANTS_MAX as u64).map(tenant_slot).collect();
        assert_eq!(slots.len(), TENANTS_MAX);
    }
}
