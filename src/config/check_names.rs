//! What the keys of sessions and of models' names may get wrong.

use super::check::Check;
use super::schema::{ModelConfig, SessionConfig};
use forebay_base::limits::{MODEL_NAME_BYTES_MAX, MODEL_TABLES_MAX, SESSION_NAMES_MAX};

impl Check<'_> {
    pub(super) fn session(&mut self, session: &SessionConfig) {
        self.field_names("session.fields", &session.fields);
        let lists = [("session.fields", &session.fields), ("session.members", &session.members)];
        for (path, names) in lists {
            if names.len() > SESSION_NAMES_MAX {
                let many = names.len();
                let what = format!("`{path}` has {many} names, more than {SESSION_NAMES_MAX}");
                self.error(path, what, "each costs a comparison for each request; list fewer");
            }
        }
        if session.members.iter().any(String::is_empty) {
            self.error("session.members", "`session.members` has an empty name", "name a member");
        }
    }

    pub(super) fn models(&mut self, models: &[ModelConfig]) {
        if models.len() > MODEL_TABLES_MAX {
            let what = format!("{} tables [[model]], more than {MODEL_TABLES_MAX}", models.len());
            self.error("model", what, "each costs a comparison for each request; list fewer");
        }
        for (position, model) in models.iter().enumerate() {
            for (key, name) in [("name", &model.name), ("to", &model.to)] {
                let path = format!("model.{position}.{key}");
                if name.is_empty() {
                    let help = "give the name that clients ask for, and the one that workers serve";
                    self.error(&path, format!("`model.{key}` is missing"), help);
                } else if name.contains(char::is_control) {
                    let what = format!("`model.{key}` {name:?} has control characters");
                    self.error(&path, what, "give the name as clients and workers write it");
                } else if name.len() > MODEL_NAME_BYTES_MAX {
                    let many = name.len();
                    let what =
                        format!("`model.{key}` has {many} bytes, more than {MODEL_NAME_BYTES_MAX}");
                    self.error(
                        &path,
                        what,
                        "clients with longer names are refused; give a shorter one",
                    );
                }
            }
            let is_same = |other: &ModelConfig| other.name == model.name && other.to == model.to;
            if models.iter().take(position).any(is_same) {
                let what = format!("`{}` stands for `{}` in two tables", model.name, model.to);
                self.error(&format!("model.{position}"), what, "add the weights");
            }
        }
    }

    pub(super) fn field_names(&mut self, path: &'static str, names: &[String]) {
        if let Some(wrong) = names.iter().find(|name| !is_field_name(name)) {
            let help = "give one name in each entry of the list";
            self.error(path, format!("`{path}` {wrong:?} is no name"), help);
        }
    }
}

/// RFC 9110 section 5.1.
pub(super) fn is_field_name(name: &str) -> bool {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.bytes().all(is_token)
}

#[cfg(test)]
mod tests {
    use super::MODEL_TABLES_MAX;
    use crate::test_findings::findings;

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
}
