//! What the keys about clients may get wrong.

use super::check::Check;
use super::client::{ClientConfig, CorsConfig};
use super::schema::{ModelConfig, SessionConfig};
use forebay_base::limits::{
    MODEL_NAME_BYTES_MAX, MODEL_TABLES_MAX, ORIGINS_MAX, SESSION_NAMES_MAX,
};
use forebay_identity::{TrustedNets, origin_fault};

impl Check<'_> {
    pub(super) fn client(&mut self, client: &ClientConfig) {
        let trusted = TrustedNets::parse(client.trusted.iter().map(String::as_str));
        match trusted {
            Err(what) => {
                let help = "list addresses or networks, for example [\"10.0.0.0/8\", \"::1\"]";
                self.error("client.trusted", format!("`client.trusted`: {what}"), help);
            }
            Ok(nets) if nets.is_everybody() => {
                let what = "`client.trusted` holds every address: each client can claim another's";
                self.warning("client.trusted", what, "list the addresses of your proxies");
            }
            Ok(_) => {}
        }
        if client.proxy_protocol && client.trusted.is_empty() {
            let what = "`client.proxy_protocol` is on, and `client.trusted` is empty";
            let help = "list the proxies that send PROXY headers; others are not believed";
            self.error("client.proxy_protocol", what, help);
        }
    }

    pub(super) fn cors(&mut self, cors: &CorsConfig) {
        if cors.origins.len() > ORIGINS_MAX {
            let what = format!("{} origins, more than {ORIGINS_MAX}", cors.origins.len());
            self.error("cors.origins", what, "list the sites that need an answer, or \"*\"");
        }
        for fault in cors.origins.iter().filter_map(|origin| origin_fault(origin)) {
            self.error("cors.origins", format!("`cors.origins`: {fault}"), "");
        }
        if cors.credentials && cors.origins.iter().any(|origin| origin == "*") {
            let what = "`cors.credentials` with the origin `*`";
            let help = "browsers refuse both together, and any site could use a user's cookies; \
                list the origins";
            self.error("cors.credentials", what, help);
        }
        self.field_names("cors.methods", &cors.methods);
        self.field_names("cors.headers", &cors.headers);
    }

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
            self.error("model", what, "each costs a comparison for each request");
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
                    self.error(&path, what, "clients with longer names are refused");
                }
            }
            let is_same = |other: &ModelConfig| other.name == model.name && other.to == model.to;
            if models.iter().take(position).any(is_same) {
                let what = format!("`{}` stands for `{}` in two tables", model.name, model.to);
                self.error(&format!("model.{position}"), what, "add the weights");
            }
        }
    }

    fn field_names(&mut self, path: &'static str, names: &[String]) {
        let is_name = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
        let is_wrong = |name: &&String| name.is_empty() || !name.bytes().all(is_name);
        if let Some(wrong) = names.iter().find(is_wrong) {
            let help = "give one name in each entry of the list";
            self.error(path, format!("`{path}` {wrong:?} is no name"), help);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::MODEL_TABLES_MAX;
    use crate::Config;

    fn findings(text: &str) -> Vec<String> {
        let text = format!("{text}\n[[worker]]\nurl = \"http://a:1\"\n");
        let read = Config::from_toml(&text);
        read.err().unwrap_or_default().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn who_is_trusted_is_a_network() {
        assert!(findings("[client]\ntrusted = [\"10.0.0.0/8\", \"::1\"]").is_empty());
        let wrong = findings("[client]\ntrusted = [\"10.0.0.1/8\"]");
        assert!(wrong.len() == 1 && wrong[0].contains("write 10.0.0.0/8"), "{wrong:?}");
        let name = findings("[client]\ntrusted = \"proxy.example\"");
        assert!(name.len() == 1 && name[0].contains("no network"), "{name:?}");
    }

    #[test]
    fn origins_are_those_of_browsers() {
        assert!(
            findings("[cors]\norigins = [\"https://a.example\"]\ncredentials = true").is_empty()
        );
        assert!(findings("[cors]\norigins = \"*\"").is_empty());
        for (text, says) in [
            ("origins = \"https://a.example/\"", "is no origin"),
            ("origins = [\"*\"]\ncredentials = true", "with the origin `*`"),
            ("methods = [\"GET, POST\"]", "is no name"),
            ("headers = [\"\"]", "is no name"),
        ] {
            let found = findings(&format!("[cors]\n{text}"));
            assert!(found.len() == 1 && found[0].contains(says), "{found:?}");
        }
    }

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

    #[test]
    fn somebody_has_to_send_proxy_headers() {
        let alone = findings("[client]\nproxy_protocol = true");
        assert!(alone.len() == 1 && alone[0].contains("`client.trusted` is empty"), "{alone:?}");
    }
}
