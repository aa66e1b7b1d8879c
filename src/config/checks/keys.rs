//! Checks the files of client keys.

use super::check::Check;
use super::contradictions::lists_all_models;
use crate::keys::finding::{Finding, Origin};
use crate::sections::client::JwtConfig;
use crate::sections::schema::Config;
use crate::values::url::{JwksUrl, shown_url};
use forebay_base::FileFault;
use forebay_keys::{KeyFileError, KeyRing, UnservedModel, read, read_token_keys};
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
            Ok(keys) => {
                self.tenants_without_key(config, &keys);
                self.keys_without_model(config, path, &keys);
            }
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

    /// Names of models in the keys that neither a worker nor a table has, where each worker has a
    /// list.
    fn keys_without_model(&mut self, config: &Config, path: &Path, ring: &KeyRing) {
        if !lists_all_models(config) {
            return;
        }
        let is_listed = |name: &str| {
            let mut workers = config.workers.iter();
            workers.any(|worker| worker.models.iter().any(|model| model == name))
        };
        let unserved = ring.unserved_models(|name| is_listed(name) || config.has_table_of(name));
        for UnservedModel { position, key, model } in unserved {
            let name = path.display().to_string();
            let origin = Origin::File { name, line: ring.line(position), column: 1 };
            let what =
                format!("the key {key:?} may use {model:?}, which no worker has in `models`");
            let help = "write a name that workers serve, or a name of [[model]] or [[adapter]]";
            self.findings.push(Finding::warning(origin, what, help));
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

#[cfg(test)]
mod tests {
    use crate::{ConfigText, Flags, load};

    /// Issue 39: requests with such a key got 403 or 404, and no check named the key.
    #[test]
    fn a_key_for_a_model_that_no_worker_lists_has_a_warning() {
        let found = |models: &str, tables: &str| {
            let text = format!(
                "api_keys = \"../../tests/data/api_keys/two.toml\"\n[[worker]]\n\
                 url = \"http://a:1\"\n{models}\n{tables}"
            );
            let loaded = load(Some(ConfigText { name: "f", text: &text }), &Flags::default());
            let found = loaded.findings.iter().map(ToString::to_string);
            found.filter(|found| found.contains("the key ")).collect::<Vec<_>>()
        };
        let wanted = "../../tests/data/api_keys/two.toml:12:1: warning: the key \"some\" may use \
                      \"m\", which no worker has in `models`. help: write a name that workers \
                      serve, or a name of [[model]] or [[adapter]]";
        assert_eq!(found("models = [\"n\"]", ""), [wanted]);
        let alias = "[[model]]\nname = \"m\"\nto = \"n\"\n";
        assert_eq!(found("models = [\"n\"]", alias), [""; 0]);
        let adapter = "[[adapter]]\nname = \"m\"\npath = \"/m\"\nof = \"n\"\n";
        assert_eq!(found("models = [\"n\"]", adapter), [""; 0]);
        for served in ["models = [\"n\", \"m\"]", "models = [\"*\"]", ""] {
            assert_eq!(found(served, ""), [""; 0], "{served}");
        }
        let further = "[[worker]]\nurl = \"http://b:1\"\n";
        assert_eq!(found("models = [\"n\"]", further), [""; 0], "the worker may serve it");
    }
}
