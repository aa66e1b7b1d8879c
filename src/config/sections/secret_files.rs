//! Files of secrets: the keys that name them, users with access to them, and secrets that share a
//! file.

use super::schema::Config;
use crate::checks::check::Check;
use crate::load::LoadedConfig;
use rustix::fs::{StatVfsMountFlags, statvfs};
use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A file with a secret.
pub(crate) struct SecretFile<'c> {
    /// Path of the key, with the position of its table.
    key: String,
    path: &'c Path,
    /// Keys of the same purpose may share a file.
    purpose: SecretPurpose,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SecretPurpose {
    /// Private keys, which stay in the router.
    PrivateKey,
    /// Tokens that callers of the router and its peers have.
    RouterToken,
    /// Keys that workers are sent.
    WorkerKey,
    ImageKey,
    /// Header fields that a collector is sent.
    CollectorFields,
}

impl SecretFile<'_> {
    /// The key as messages show it.
    fn shown(&self) -> String {
        let mut words = self.key.split('.').filter(|word| word.parse::<u32>().is_err());
        match (words.next(), words.next()) {
            (Some("worker"), Some(name)) => name.to_owned(),
            (Some(table), Some(name)) => format!("{table}.{name}"),
            _ => self.key.clone(),
        }
    }
}

fn file(key: String, path: Option<&PathBuf>, purpose: SecretPurpose) -> Option<SecretFile<'_>> {
    Some(SecretFile { key, path: path?, purpose })
}

impl Config {
    /// Each file with a secret that the configuration names.
    fn secret_files(&self) -> Vec<SecretFile<'_>> {
        use SecretPurpose::{CollectorFields, ImageKey, PrivateKey, RouterToken, WorkerKey};
        let defaults = &self.worker_defaults;
        let router = [
            ("admin_token_file", &self.admin_token_file, RouterToken),
            ("admin_read_token_file", &self.admin_read_token_file, RouterToken),
            ("replicas.token_file", &self.replicas.token_file, RouterToken),
            ("image_key_file", &self.image_key_file, ImageKey),
            ("tls.key", &self.tls.key, PrivateKey),
            ("admin_tls.key", &self.admin_tls.key, PrivateKey),
            ("upstream_tls.key", &self.upstream_tls.key, PrivateKey),
            ("replicas.key", &self.replicas.key, PrivateKey),
            ("traces.headers_file", &self.traces.headers_file, CollectorFields),
            ("worker_defaults.api_key_file", &defaults.api_key_file, WorkerKey),
        ];
        let router = router.into_iter();
        let mut files: Vec<_> = router
            .filter_map(|(key, path, purpose)| file(key.to_owned(), path.as_ref(), purpose))
            .collect();
        for (position, further) in self.certificates.iter().enumerate() {
            files.extend(file(
                format!("certificate.{position}.key"),
                Some(&further.key),
                PrivateKey,
            ));
        }
        for (position, worker) in self.workers.iter().enumerate() {
            let of = |name| format!("worker.{position}.{name}");
            files.extend(file(of("api_key_file"), worker.api_key_file.as_ref(), WorkerKey));
            files.extend(file(of("tls_key"), worker.tls.tls_key.as_ref(), PrivateKey));
        }
        files
    }
}

impl Check<'_> {
    /// Warns of a file with two secrets: the receiver of either has both.
    pub(crate) fn secret_files(&mut self, config: &Config) {
        let mut first = HashMap::new();
        for file in config.secret_files() {
            let real = file.path.canonicalize().unwrap_or_else(|_| file.path.to_owned());
            let shown = file.shown();
            let (other, purpose) =
                first.entry(real).or_insert_with(|| (shown.clone(), file.purpose));
            if *purpose != file.purpose {
                let what =
                    format!("`{shown}` {} is the file of `{other}` too", file.path.display());
                let help = "what has either secret has both: give each key a file of its own";
                self.warning(&file.key, what, help);
            }
        }
    }
}

impl LoadedConfig {
    /// Warns of each secret that other users of this machine may read or replace. A group may read:
    /// the router's user is often of the group of the file.
    pub(crate) fn check_secret_modes(&mut self) {
        let files = self.config.secret_files();
        let found: Vec<_> = files
            .iter()
            .filter_map(|file| {
                let fault = mode_fault(file.path)?;
                let path = file.path.display();
                let what = format!("`{}` {path} {fault}", file.shown());
                Some((file.key.clone(), what, format!("chmod g-w,o= {path}")))
            })
            .collect();
        for (key, what, help) in found {
            self.warn(&key, what, help);
        }
    }
}

/// What other users may do with the file. The runtime of a container sets the modes of files on
/// read-only mounts, where nothing can be written.
fn mode_fault(path: &Path) -> Option<&'static str> {
    const GROUP_WRITES: u32 = 0o020;
    const OTHERS_WRITE: u32 = 0o002;
    const OTHERS_READ: u32 = 0o004;
    let real = path.canonicalize().ok()?;
    let mode = real.metadata().ok()?.mode();
    if statvfs(&real).ok()?.f_flag.contains(StatVfsMountFlags::RDONLY) {
        return None;
    }
    let may_pass = |dir: &Path, bit: u32| dir.metadata().is_ok_and(|of| of.mode() & bit != 0);
    let is_reached = |bit: u32| real.ancestors().skip(1).all(|dir| may_pass(dir, bit));
    let others_reach = is_reached(0o001);
    if mode & OTHERS_WRITE != 0 && others_reach {
        Some("can be written by each user of this machine")
    } else if mode & OTHERS_READ != 0 && others_reach {
        Some("can be read by each user of this machine")
    } else if mode & GROUP_WRITES != 0 && is_reached(0o010) {
        Some("can be written by its group")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use crate::{ConfigSource, Flags};
    use std::fs::{Permissions, set_permissions, write};
    use std::os::unix::fs::PermissionsExt;

    fn found(text: &str, file: &std::path::Path) -> Vec<String> {
        write(file, text).unwrap();
        let source = ConfigSource { file: Some(file.to_owned()), flags: Flags::default() };
        source.load().unwrap().findings.iter().map(ToString::to_string).collect()
    }

    /// Issue 39: a key that each user may read or replace was silent.
    #[test]
    fn a_secret_that_other_users_may_read_or_write_is_a_warning() {
        let folder = tempfile::tempdir().unwrap();
        let key = folder.path().join("key");
        let config = folder.path().join("f.toml");
        write(&key, "0123456789abcdef\n").unwrap();
        let text = format!("[[worker]]\nurl = \"http://a:1\"\napi_key_file = {key:?}\n");
        for (of_folder, mode, says) in [
            (0o755, 0o644, Some("can be read by each user")),
            (0o755, 0o666, Some("can be written by each user")),
            (0o755, 0o660, Some("can be written by its group")),
            (0o755, 0o640, None),
            (0o755, 0o600, None),
            (0o700, 0o666, None),
        ] {
            set_permissions(folder.path(), Permissions::from_mode(of_folder)).unwrap();
            set_permissions(&key, Permissions::from_mode(mode)).unwrap();
            let found = found(&text, &config);
            assert_eq!(found.len(), usize::from(says.is_some()), "{mode:o}: {found:?}");
            let start =
                format!("{}:3:16: warning: `api_key_file` {}", config.display(), key.display());
            for (found, says) in found.iter().zip(says) {
                assert!(found.starts_with(&format!("{start} {says}")), "{found}");
                assert!(found.contains("help: chmod g-w,o= "), "{found}");
            }
        }
    }

    /// Issue 39: workers were sent the token of the admin API.
    #[test]
    fn a_file_of_two_secrets_is_a_warning() {
        let folder = tempfile::tempdir().unwrap();
        let key = folder.path().join("key");
        let link = folder.path().join("link");
        let config = folder.path().join("f.toml");
        write(&key, "0123456789abcdef\n").unwrap();
        set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink(&key, &link).unwrap();
        let workers = |key: &std::path::Path| {
            let worker =
                |name| format!("[[worker]]\nurl = \"http://{name}:1\"\napi_key_file = {key:?}\n");
            worker("a") + &worker("b")
        };
        let twice = found(&format!("admin_token_file = {key:?}\n{}", workers(&link)), &config);
        assert_eq!(twice.len(), 2, "{twice:?}");
        for (line, found) in [4, 7].into_iter().zip(&twice) {
            let start = format!("{}:{line}:16: warning: `api_key_file` ", config.display());
            assert!(found.starts_with(&start), "{found}");
            assert!(found.contains("is the file of `admin_token_file` too"), "{found}");
        }
        assert_eq!(found(&workers(&key), &config), [""; 0], "workers may share a key");
    }
}
