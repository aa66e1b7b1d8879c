//! Findings on certificates, keys and listeners.

use crate::Config;
use crate::ListenerConfig;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, CustomExtension, DnType, IsCa, KeyPair,
    date_time_ymd,
};
use std::path::Path;

const WORKER: &str = "[[worker]]\nurl = \"http://a:1\"\n";

/// Writes `NAME.pem` and `NAME.key`.
fn write(folder: &Path, name: &str, last_year: i32) {
    write_of(folder, name, 2020, last_year);
}

fn write_of(folder: &Path, name: &str, first_year: i32, last_year: i32) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec![format!("{name}.example")]).unwrap();
    params.not_before = date_time_ymd(first_year, 1, 1);
    params.not_after = date_time_ymd(last_year, 1, 1);
    let cert = params.self_signed(&key).unwrap();
    std::fs::write(folder.join(format!("{name}.pem")), cert.pem()).unwrap();
    std::fs::write(folder.join(format!("{name}.key")), key.serialize_pem()).unwrap();
}

/// What there is to say, with `@` in place of the folder.
fn findings(folder: &Path, text: &str) -> Vec<String> {
    let text = format!("{}\n{WORKER}", text.replace('@', folder.to_str().unwrap()));
    let source = crate::ConfigText { name: "f", text: &text };
    let loaded = crate::load(Some(source), &crate::Flags::default());
    let shown =
        |finding: &crate::Finding| finding.to_string().replace(folder.to_str().unwrap(), "@");
    loaded.findings.iter().map(shown).collect()
}

#[test]
fn files_are_read_and_faults_stand_at_their_keys() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for (name, last_year) in [("a", 2999), ("b", 2999), ("old", 2021)] {
        write(folder, name, last_year);
    }
    let good = "[tls]\ncert = \"@/a.pem\"\nkey = \"@/a.key\"\n";
    assert_eq!(findings(folder, good), [""; 0]);
    // On a network, with certificates of clients or with keys.
    let open = "listen = \"0.0.0.0:1\"\n";
    let asking = format!("{open}{good}client_auth = \"required\"\nclient_ca = \"@/b.pem\"");
    assert_eq!(findings(folder, &asking), [""; 0]);
    let keyed = format!("{open}api_keys = \"../../tests/data/api_keys/two.toml\"\n{good}");
    assert_eq!(findings(folder, &keyed), [""; 0]);
    let beside = "[[listener]]\naddress = \"0.0.0.0:2\"\ntls = false";
    let found = findings(folder, &format!("{keyed}{beside}"));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("`listener` 0.0.0.0:2 takes keys of clients in clear text"));
    for (text, finding) in [
        ("[tls]\ncert = \"@/a.pem\"", "f:2:8: error: `tls.cert` has no `tls.key`"),
        ("[tls]\nkey = \"@/a.key\"", "f:2:7: error: `tls.key` has no `tls.cert`"),
        (
            "[tls]\ncert = \"@/a.pem\"\nkey = \"@/b.key\"",
            "f:3:7: error: `tls.key` @/b.key is not the key of @/a.pem",
        ),
        (
            "[tls]\ncert = \"@/none\"\nkey = \"@/a.key\"",
            "f:2:8: error: `tls.cert` @/none: No such file",
        ),
        (
            "[tls]\ncert = \"@/old.pem\"\nkey = \"@/old.key\"",
            "f:2:8: warning: `tls.cert` @/old.pem has expired. help: clients refuse this \
             certificate of the router: renew @/old.pem",
        ),
        (
            "[[certificate]]\ncert = \"@/b.pem\"\nkey = \"@/a.pem\"\n[[listener]]\n\
             address = \"127.0.0.1:1\"\ntls = true",
            "f:3:7: error: `certificate.key` @/a.pem: it holds no private key",
        ),
        (
            "[tls]\ncert = \"../../tests/data/tls/rsa4096.pem\"\n\
             key = \"../../tests/data/tls/rsa4096.key\"",
            "f:3:7: warning: `tls.key` ../../tests/data/tls/rsa4096.key: RSA with more",
        ),
        ("[[certificate]]\ncert = \"@/b.pem\"", "f:1:1: error: a certificate needs `cert` and"),
        ("[tls]\nclient_auth = \"required\"", "f:2:15: error: `tls.client_auth` needs"),
        (
            "[tls]\nclient_auth = \"required\"\nclient_ca = \"@/a.pem\"",
            "f:2:15: error: `tls.client_auth` asks no client: without `tls.cert` and `tls.key`",
        ),
        ("[tls]\nclient_ca = \"@/a.pem\"", "f:2:13: warning: `tls.client_ca` is not used"),
        ("[tls]\nclient_ca = \"@/a.key\"", "f:2:13: error: `tls.client_ca` @/a.key: it holds no"),
        ("[[listener]]\ntls = false", "f:1:1: error: a listener has no `address`"),
        (
            "[[listener]]\naddress = \"127.0.0.1:8443\"\ntls = true",
            "f:3:7: error: TLS needs a certificate",
        ),
        (
            "[[listener]]\naddress = \"0.0.0.0:8080\"",
            "f:2:11: error: `listener` 0.0.0.0:8080 collides with `listen` 127.0.0.1:8080",
        ),
        (
            "[[listener]]\naddress = \"[::1]:1\"\n[[listener]]\naddress = \"[::1]:1\"",
            "f:4:11: error: `listener` [::1]:1 collides with `listener` [::1]:1",
        ),
    ] {
        let found = findings(folder, text);
        assert!(found.iter().any(|one| one.starts_with(finding)), "{text}\n{found:?}");
    }
}

/// Method `caIssuers` of `authorityInfoAccess`, and with the last digit 1 `ocsp`.
fn access_extension(method: u8) -> CustomExtension {
    let url = b"http://ca.example/r1";
    let head = [0x30, 0x22, 0x30, 0x20, 6, 8, 0x2b, 6, 1, 5, 5, 7, 0x30, method, 0x86, 0x14];
    let content = head.iter().chain(url).copied().collect();
    CustomExtension::from_oid_content(&[1, 3, 6, 1, 5, 5, 7, 1, 1], content)
}

/// Issue 39: a certificate without its intermediates was silent, and clients refused it.
#[test]
fn a_certificate_without_its_intermediates_is_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut of_issuer = CertificateParams::new(Vec::new()).unwrap();
    of_issuer.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    of_issuer.distinguished_name.push(DnType::CommonName, "R1");
    let issuer = KeyPair::generate().unwrap();
    let issuer = CertifiedIssuer::self_signed(of_issuer, issuer).unwrap();
    let key = KeyPair::generate().unwrap();
    std::fs::write(folder.join("a.key"), key.serialize_pem()).unwrap();
    for (extension, has_chain, is_found) in [
        (Some(access_extension(2)), false, true),
        (Some(access_extension(2)), true, false),
        // A private authority may be a root, which clients have.
        (Some(access_extension(1)), false, false),
        (None, false, false),
    ] {
        let mut params = CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
        params.custom_extensions.extend(extension);
        let mut pem = params.signed_by(&key, &issuer).unwrap().pem();
        if has_chain {
            pem += &issuer.pem();
        }
        std::fs::write(folder.join("a.pem"), pem).unwrap();
        for (table, admin) in [
            ("[tls]", ""),
            (
                "[[certificate]]",
                "[[listener]]\ntls = true\n\
            address = \"127.0.0.1:1\"\n",
            ),
            ("[admin_tls]", ""),
        ] {
            let text = format!("{table}\ncert = \"@/a.pem\"\nkey = \"@/a.key\"\n{admin}");
            let found = findings(folder, &text);
            assert_eq!(found.len(), usize::from(is_found), "{text}: {found:?}");
            let table = table.trim_matches(['[', ']']);
            for found in found {
                let says = format!(
                    "f:2:8: warning: `{table}.cert` @/a.pem has \"a.example\" without the \
                     certificate of its issuer \"R1\". help: append the intermediate certificates"
                );
                assert!(found.starts_with(&says), "{found}");
            }
        }
    }
}

/// Issue 39: a second table of the same certificate was silent.
#[test]
fn a_certificate_of_two_tables_is_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write(folder, "a", 2999);
    write(folder, "b", 2999);
    std::fs::copy(folder.join("b.pem"), folder.join("copy.pem")).unwrap();
    let table = |table: &str, cert: &str, key: &str| {
        format!("{table}\ncert = \"@/{cert}.pem\"\nkey = \"@/{key}.key\"\n")
    };
    let of = |certificates: [(&str, &str); 2]| {
        let first = table("[tls]", "a", "a");
        let further = certificates.map(|(cert, key)| table("[[certificate]]", cert, key));
        findings(folder, &(first + &further.concat()))
    };
    let first = of([("a", "a"), ("b", "b")]);
    let says = "f:5:8: warning: `certificate.cert` @/a.pem has the certificate of `tls.cert`. ";
    assert!(first.len() == 1 && first[0].starts_with(says), "{first:?}");
    let second = of([("b", "b"), ("copy", "b")]);
    let says = "f:8:8: warning: `certificate.cert` @/copy.pem has the certificate of another \
        [[certificate]]. help: remove the table";
    assert!(second.len() == 1 && second[0].starts_with(says), "{second:?}");
}

/// Issue 39: an expired certificate for workers or peers was silent.
#[test]
fn a_certificate_that_others_refuse_is_a_warning_at_each_key() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write(folder, "a", 2999);
    write(folder, "old", 2021);
    let pair = |prefix: &str| {
        let prefix = prefix.to_owned();
        format!("{prefix}cert = \"@/old.pem\"\n{prefix}key = \"@/old.key\"\n")
    };
    let secure = "[[worker]]\nurl = \"https://b:1\"\ntls_ca = \"@/a.pem\"\n";
    for (text, place, key, readers) in [
        (format!("[upstream_tls]\n{}{secure}", pair("")), "2:8", "upstream_tls.cert", "workers"),
        (format!("{secure}{}", pair("tls_")), "4:12", "tls_cert", "workers"),
        (
            format!("[replicas]\n{}peers = [\"https://127.0.0.1:1\"]\nca = \"@/a.pem\"", pair("")),
            "2:8",
            "replicas.cert",
            "peers",
        ),
    ] {
        let found = findings(folder, &text);
        let says = format!(
            "f:{place}: warning: `{key}` @/old.pem has expired. help: {readers} refuse this"
        );
        assert!(found.len() == 1 && found[0].starts_with(&says), "{text}\n{found:?}");
    }
}

/// A certificate of tomorrow was silent: clients refuse it today.
#[test]
fn a_certificate_that_is_not_valid_yet_is_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write_of(folder, "early", 2998, 2999);
    let found = findings(folder, "[tls]\ncert = \"@/early.pem\"\nkey = \"@/early.key\"");
    let is_named = |found: &&String| found.contains("f:2:8: warning: `tls.cert`");
    assert_eq!(found.iter().filter(is_named).count(), 1, "{found:?}");
    assert!(found.concat().contains("is valid only from 2998-01-01 00:00 UTC. "), "{found:?}");
}

#[test]
fn listeners_speak_what_listen_speaks_unless_told_otherwise() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write(folder, "a", 2999);
    let text = "[tls]\ncert = \"@/a.pem\"\nkey = \"@/a.key\"\n\
        [[listener]]\naddress = \"127.0.0.1:1\"\n\
        [[listener]]\naddress = \"127.0.0.1:2\"\ntls = false\n[[worker]]\nurl = \"http://a:1\"\n";
    let text = text.replace('@', folder.to_str().unwrap());
    let mut config = Config::from_toml(&text).unwrap();
    let speaks = |config: &Config| -> Vec<bool> {
        let of = |one: &ListenerConfig| config.listener_speaks_tls(one);
        config.listeners.iter().map(of).collect()
    };
    assert_eq!((config.speaks_tls(), speaks(&config)), (true, vec![true, false]));
    assert_eq!(config.accept_files().unwrap().certificates.len(), 1);
    let again = Config::from_toml(&crate::to_toml(&config)).unwrap();
    assert_eq!(again, config, "as it is printed");

    // A reload takes other files over, and no other listeners.
    let mut wanted = config.clone();
    wanted.tls.cert = Some(folder.join("b.pem"));
    wanted.listeners.pop();
    let changes = config.take_over(&wanted);
    assert_eq!(
        (changes.applied, changes.restart),
        (vec!["tls.cert".into()], vec!["listener".into()])
    );
    wanted.tls = crate::TlsConfig::default();
    let changes = config.take_over(&wanted);
    assert_eq!(changes.restart, ["listener", "tls.cert"]);
    assert!(config.speaks_tls());
}
