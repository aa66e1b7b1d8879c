//! Checks the files of client keys.

use super::check::Check;
use crate::keys::finding::{Finding, Origin};
use crate::sections::client::JwtConfig;
use crate::sections::schema::Config;
use crate::values::url::{JwksUrl, shown_url};
use forebay_base::FileFault;
use forebay_keys::{KeyFileError, KeyRing, read, read_token_keys};
use std::collections::HashSet;
use std::path::Path;

impl Check<'_> {
    pub(crate) fn keys(&mut self, config: &Config) {
        self.jwt(&config.jwt);
        let Some(path) = &config.api_keys else { return };
        match read(path) {
            Ok(keys) if keys.keys().is_empty() => {
                let what = format!("`api_keys` {} holds no key", path.display());
                self.warning("api_keys", what, "add one with `forebay key add`");
            }
            Ok(keys) => self.tenants_without_key(config, &keys),
            Err(KeyFileError::Unreadable(FileFault { what, help })) => {
                self.error("api_keys", format!("`api_keys`: cannot read {what}"), help);
            }
            Err(KeyFileError::Faulty(faults)) => {
                let name = path.display().to_string();
                self.findings.extend(faults.into_iter().map(|fault| {
                    let line = fault.line;
                    let column = fault.column;
                    let origin = Origin::File { name: name.clone(), line, column };
                    Finding::error(origin, fault.what, fault.help)
                }));
            }
        }
    }

    /// A tenant table that no key refers to limits no request.
    fn tenants_without_key(&mut self, config: &Config, keys: &KeyRing) {
        if config.jwt.jwks.is_some() {
            return;
        }
        let names: HashSet<&str> = keys.keys().iter().map(|key| &*key.tenant).collect();
        for (position, tenant) in config.flow.tenants.iter().enumerate() {
            let name = tenant.name.as_str();
            if name != "*" && !names.contains(name) {
                let what = format!("no key of `api_keys` is of the tenant `{name}`");
                let help = "correct the name, or add a key with `forebay key add`";
                self.warning(&format!("tenant.{position}.name"), what, help);
            }
        }
    }

    fn jwt(&mut self, jwt: &JwtConfig) {
        let Some(place) = &jwt.jwks else { return };
        if jwt.issuer.is_empty() {
            let help = "write the `iss` of your tokens";
            self.error("jwt.issuer", "`jwt.jwks` needs `jwt.issuer`", help);
        }
        if jwt.audience.is_empty() {
            let help = "write the `aud` of your tokens";
            self.error("jwt.audience", "`jwt.jwks` needs `jwt.audience`", help);
        }
        match JwksUrl::parse(place) {
            Some(Ok(_)) => {}
            Some(Err(fault)) => {
                let what = format!("`jwt.jwks` {}: {fault}", shown_url(place));
                let help = fault.help("write https://host/path, or the path of a file");
                self.error("jwt.jwks", what, help);
            }
            None => {
                if let Err(FileFault { what, help }) = read_token_keys(Path::new(place)) {
                    self.error("jwt.jwks", format!("`jwt.jwks`: {what}"), help);
                }
            }
        }
    }
}
