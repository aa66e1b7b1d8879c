//! Checks the keys of back pressure.

use super::check::Check;
use crate::sections::flow::{FlowConfig, QueueMode, TenantConfig};
use crate::values::field_name::is_field_name;
use forebay_base::limits::{TENANT_NAME_BYTES_MAX, TENANTS_MAX};
use std::time::Duration;

/// A longer window refuses clients long after room has returned.
const WINDOW_SENSIBLE: Duration = Duration::from_secs(60);

impl Check<'_> {
    pub(crate) fn flow(&mut self, flow: &FlowConfig) {
        if flow.rejection_window > WINDOW_SENSIBLE {
            let what = "`rejection_window` is longer than a minute";
            let help = "it opens again by itself as long as the queue is full; 1s is plenty";
            self.warning("rejection_window", what, help);
        }
        let queue = &flow.queue;
        if queue.mode != QueueMode::Off && queue.wait_max.is_zero() {
            self.error(
                "queue.wait_max",
                "`queue.wait_max` is 0",
                "use queue.mode = \"off\" for no queue",
            );
        }
        if queue.mode == QueueMode::Endpoint && queue.stale_after.is_zero() {
            let help = "give at least some ten milliseconds";
            self.error(
                "queue.stale_after",
                "`queue.stale_after` is 0: all would be moved at once",
                help,
            );
        }
        let field = &queue.tenant_header;
        if !field.is_empty() && !is_field_name(field) {
            let what = format!("`queue.tenant_header` {field:?} is no field name");
            self.error("queue.tenant_header", what, "give a name like x-tenant");
        }
        self.client_fields("queue.tenant_header", std::slice::from_ref(field));
        if flow.tenants.len() >= TENANTS_MAX {
            let what = format!("{} tenants, should be below {TENANTS_MAX}", flow.tenants.len());
            self.error("tenant", what, "only those with a weight of their own need a table");
        }
        for (position, tenant) in flow.tenants.iter().enumerate() {
            let before = flow.tenants.iter().take(position);
            self.tenant(&format!("tenant.{position}"), tenant, before);
        }
    }

    fn tenant<'t>(
        &mut self,
        path: &str,
        tenant: &TenantConfig,
        mut before: impl Iterator<Item = &'t TenantConfig>,
    ) {
        if tenant.name.is_empty() {
            let help = "give the tenant of its keys, the value of `queue.tenant_header`, or `*`";
            let name = format!("{path}.name");
            self.error(self.either(&name, path), "a tenant has no `name`", help);
        } else if !is_tenant_name(&tenant.name) {
            let what = format!(
                "`tenant.name` {:?} is no text of at most {TENANT_NAME_BYTES_MAX} visible ASCII \
                 characters without spaces",
                tenant.name
            );
            self.error(&format!("{path}.name"), what, "metrics and the log show it");
        } else if before.any(|other| other.name == tenant.name) {
            let what = format!("the tenant {:?} has two tables", tenant.name);
            self.error(&format!("{path}.name"), what, "remove one of the two");
        }
    }
}

/// Is this text the name of a tenant?
pub(crate) fn is_tenant_name(name: &str) -> bool {
    let is_visible = |byte: u8| (0x21..0x7f).contains(&byte);
    (1..=TENANT_NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_visible)
}
