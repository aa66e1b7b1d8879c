//! Checks the keys of sessions and of model names.

use super::check::Check;
use crate::sections::schema::{AdapterConfig, Config, ModelConfig, Policy};
use crate::values::field_name::{is_field_name, is_hop_field};
use forebay_base::limits::{
    ADAPTER_TABLES_MAX, MODEL_NAME_BYTES_MAX, MODEL_TABLES_MAX, SESSION_NAMES_MAX,
};

impl Check<'_> {
    /// Fields and members that name sessions; a policy of sessions needs either.
    pub(crate) fn session(&mut self, config: &Config) {
        let session = &config.session;
        let has_none = session.fields.is_empty() && session.members.is_empty();
        if config.policy == Policy::Session && has_none {
            let what = "`policy` is \"session\", and `session.fields` and `session.members` are \
                        empty: no request has a session";
            let help = "list fields or members, or set policy = \"least_loaded\", which has the \
                        same effect";
            self.warning("policy", what, help);
        }
        self.field_names("session.fields", &session.fields);
        self.client_fields("session.fields", &session.fields);
        let lists = [("session.fields", &session.fields), ("session.members", &session.members)];
        for (path, names) in lists {
            if names.len() > SESSION_NAMES_MAX {
                let many = names.len();
                let what = format!("`{path}` has {many} names, more than {SESSION_NAMES_MAX}");
                self.error(path, what, "each costs a comparison for each request; list fewer");
            }
        }
        if let Some(path) = session.members.iter().find(|name| name.contains('.')) {
            let what = format!("`session.members` {path:?} is a member with a dot in its name");
            let help = "members are of the body itself, and of no object in it";
            self.warning("session.members", what, help);
        }
        if session.members.iter().any(String::is_empty) {
            self.error("session.members", "`session.members` has an empty name", "name a member");
        }
    }

    pub(crate) fn models(&mut self, models: &[ModelConfig]) {
        if models.len() > MODEL_TABLES_MAX {
            let what = format!("{} tables [[model]], more than {MODEL_TABLES_MAX}", models.len());
            self.error("model", what, "each costs a comparison for each request; list fewer");
        }
        for (position, model) in models.iter().enumerate() {
            for (key, name) in [("name", &model.name), ("to", &model.to)] {
                self.model_name("model", position, key, name);
            }
            let is_same = |other: &ModelConfig| other.name == model.name && other.to == model.to;
            if models.iter().take(position).any(is_same) {
                let what = format!("`{}` stands for `{}` in two tables", model.name, model.to);
                self.error(&format!("model.{position}"), what, "add the weights");
            }
            let weight = format!("model.{position}.weight");
            let is_alone = models.iter().filter(|other| other.name == model.name).count() == 1;
            if is_alone && self.origins.has(&weight) {
                let what = "`model.weight` is not used: no other table has this `name`";
                let help = "write the same `name` in each table that shares its requests";
                self.unused_key(&weight, what.to_owned(), help);
            }
        }
    }

    pub(crate) fn adapters(&mut self, adapters: &[AdapterConfig]) {
        if adapters.len() > ADAPTER_TABLES_MAX {
            let many = adapters.len();
            let what = format!("{many} tables [[adapter]], more than {ADAPTER_TABLES_MAX}");
            self.error("adapter", what, "each costs a comparison for each request; list fewer");
        }
        for (position, adapter) in adapters.iter().enumerate() {
            let AdapterConfig { name, path, of, .. } = adapter;
            for (key, name) in [("name", name), ("path", path), ("of", of)] {
                self.model_name("adapter", position, key, name);
            }
            if adapters.iter().take(position).any(|other| other.name == *name) {
                let what = format!("two tables [[adapter]] have the name `{name}`");
                self.error(&format!("adapter.{position}.name"), what, "keep one of them");
            }
        }
    }

    /// Checks a name that clients and engines write, in a table of a list.
    fn model_name(&mut self, list: &str, position: usize, key: &str, name: &str) {
        let path = format!("{list}.{position}.{key}");
        if name.is_empty() {
            let help = match list {
                "model" => "give the name that clients ask for, and the one that workers serve",
                _ => "give the adapter's name, its path, and the model that it is for",
            };
            self.error(&path, format!("`{list}.{key}` is missing"), help);
        } else if name.contains(char::is_control) {
            let what = format!("`{list}.{key}` {name:?} has control characters");
            self.error(&path, what, "give the name as clients and workers write it");
        } else if name.len() > MODEL_NAME_BYTES_MAX {
            let many = name.len();
            let what = format!("`{list}.{key}` has {many} bytes, more than {MODEL_NAME_BYTES_MAX}");
            self.error(&path, what, "clients with longer names are refused; give a shorter one");
        }
    }

    pub(crate) fn field_names(&mut self, path: &'static str, names: &[String]) {
        if let Some(wrong) = names.iter().find(|name| !is_field_name(name)) {
            let help = "give one name in each entry of the list";
            self.error(path, format!("`{path}` {wrong:?} is no name"), help);
        }
    }

    /// Fields of clients are neither of a connection nor of framing.
    pub(crate) fn client_fields(&mut self, path: &'static str, names: &[String]) {
        for name in names.iter().filter(|name| is_hop_field(name)) {
            let what = format!(
                "`{path}` {name:?} is a field of the connection or of framing, and no client's own"
            );
            self.error(path, what, "name a field that clients choose, such as x-tenant");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ADAPTER_TABLES_MAX, MODEL_TABLES_MAX};
    use crate::checks::test_findings::findings;

    #[test]
    fn sessions_are_named_by_few_fields_and_members() {
        assert!(findings("[session]\nfields = \"x-user\"\nmembers = []").is_empty());
        for (text, says) in [
            ("fields = [\"x session\"]", "is no name"),
            ("members = [\"\"]", "an empty name"),
            (r#"members = ["a","a","a","a","a","a","a","a","a"]"#, "9 names"),
        ] {
            let found = findings(&format!("[session]\n{text}"));
            assert!(found.len() == 1 && found[0].contains(says), "{found:?}");
        }
    }

    #[test]
    fn a_policy_of_sessions_needs_sessions() {
        let text = "policy = \"session\"\n[session]\nfields = []\n";
        assert!(findings(text).is_empty());
        let found = findings(&format!("{text}members = []\n"));
        let start = "forebay.toml:1:10: warning: `policy` is \"session\", and `session.fields`";
        assert!(found.len() == 1 && found[0].starts_with(start), "{found:?}");
    }

    #[test]
    fn names_of_models_are_given_once_for_each_target() {
        let canary = "[[model]]\nname = \"m\"\nto = \"a\"\n[[model]]\nname = \"m\"\nto = \"b\"\n";
        assert!(findings(canary).is_empty());
        for (text, says) in [
            ("to = \"a\"", "`model.name` is missing"),
            ("name = \"m\"", "`model.to` is missing"),
            ("name = \"m\\n\"\nto = \"a\"", "control characters"),
            ("name = \"m\"\nto = \"a\"\n[[model]]\nname = \"m\"\nto = \"a\"", "in two tables"),
            ("name = \"m\"\nto = \"a\"\nweight = 1000001", "should be 0 to 1000000"),
        ] {
            let found = findings(&format!("[[model]]\n{text}"));
            assert!(found.len() == 1 && found[0].contains(says), "{found:?}");
        }
        let many = "[[model]]\nname = \"m\"\nto = \"a\"\n".repeat(MODEL_TABLES_MAX + 1);
        assert!(findings(&many).iter().any(|found| found.contains("more than 256")));
    }

    #[test]
    fn adapters_have_a_name_a_path_and_a_model() {
        let whole = "name = \"a\"\npath = \"/a\"\nof = \"m\"";
        assert!(findings(&format!("[[adapter]]\n{whole}")).is_empty());
        for (text, says) in [
            ("path = \"/a\"\nof = \"m\"".to_owned(), "`adapter.name` is missing"),
            ("name = \"a\"\nof = \"m\"".to_owned(), "`adapter.path` is missing"),
            ("name = \"a\"\npath = \"/a\"".to_owned(), "`adapter.of` is missing"),
            (format!("{whole}\ncopies = 0"), "should be 1 to 1024"),
            (format!("{whole}\n[[adapter]]\n{whole}"), "have the name `a`"),
        ] {
            let found = findings(&format!("[[adapter]]\n{text}"));
            assert!(found.len() == 1 && found[0].contains(says), "{found:?}");
        }
        let many = format!("[[adapter]]\n{whole}\n").repeat(ADAPTER_TABLES_MAX + 1);
        assert!(findings(&many).iter().any(|found| found.contains("more than 256")));
    }
}
