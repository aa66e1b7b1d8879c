//! `forebay key`: edits the file of client keys. A key is printed once; the file contains its hash.

use crate::cli::process::failed;
use clap::{Args, Subcommand};
use forebay_base::limits::{API_KEYS_MAX, QUEUE_CLASSES, TENANT_NAME_BYTES_MAX};
use forebay_keys::{FreshKey, KEY_START, KeyRing, StoredKey, add, change, parse, read, remove};
use forebay_text::chat::utc_now;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Number of priority classes.
const CLASSES: i64 = QUEUE_CLASSES as i64;

/// Arguments of `forebay key`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    forebay key add --file keys.toml --tenant search\n  \
    forebay key add --file keys.toml --tenant batch --models qwen3-8b,qwen3-32b --class-best 2\n  \
    forebay key list --file keys.toml\n  \
    forebay key remove --file keys.toml fbk_1a2b3c4d\n\n\
    The router reads the file of `api_keys` (--api-keys) at its start and at each reload.\n\
    The file holds hashes. A key is printed once, as the last word of `add`.")]
pub(crate) struct KeyArgs {
    #[command(subcommand)]
    what: KeyCommand,
}

#[derive(Debug, Subcommand)]
enum KeyCommand {
    /// Make a key and print it as the last word; the file is made if it is not there
    Add(AddArgs),
    /// List ids, tenants and rights, without the keys
    List(FileArgs),
    /// Remove a key by its id
    Remove(RemoveArgs),
}

/// Arguments of `forebay key add`.
#[derive(Debug, Args)]
struct AddArgs {
    #[command(flatten)]
    file: FileArgs,
    /// Whose key it is: the `name` of a `[[tenant]]`, or any other name
    #[arg(long, value_name = "NAME")]
    tenant: String,
    /// Models that the key may use [default: all]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    models: Vec<String>,
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u8).range(..CLASSES),
        help = format!(
            "Best class that its requests may have, 0 to {} [default: queue.class_default]",
            CLASSES - 1
        )
    )]
    class_best: Option<u8>,
}

/// The file that `forebay key` works on.
#[derive(Debug, Args)]
struct FileArgs {
    /// The file of keys, as `api_keys` names it
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    file: PathBuf,
}

/// Arguments of `forebay key remove`.
#[derive(Debug, Args)]
struct RemoveArgs {
    #[command(flatten)]
    file: FileArgs,
    /// Id of the key as `list` prints it, or its beginning
    id: String,
}

pub(crate) fn run(args: &KeyArgs) -> ExitCode {
    let mut out = io::stdout().lock();
    let done = match &args.what {
        KeyCommand::Add(args) => add_key(args, &mut out),
        KeyCommand::List(args) => list_keys(&args.file, &mut out),
        KeyCommand::Remove(args) => remove_key(args, &mut out),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => failed(reason),
    }
}

fn add_key(args: &AddArgs, out: &mut impl Write) -> Result<(), String> {
    let is_word = |text: &str| {
        (1..=TENANT_NAME_BYTES_MAX).contains(&text.len())
            && text.bytes().all(|byte| (0x21..0x7f).contains(&byte))
    };
    if !is_word(&args.tenant) {
        return Err(format!(
            "--tenant: give 1 to {TENANT_NAME_BYTES_MAX} visible ASCII characters, no spaces"
        ));
    }
    let fresh = FreshKey::draw().map_err(|_| "the system gives no random bytes")?;
    let stored = StoredKey {
        id: fresh.id.clone(),
        digest: fresh.digest().ok_or("the key has no hash (this is a bug)")?,
        tenant: args.tenant.clone(),
        models: args.models.clone(),
        class_best: args.class_best,
        created: utc_now("%Y-%m-%dT%H:%M:%SZ"),
    };
    change(&args.file.file, |text| {
        let before = parsed(&args.file.file, text)?;
        if before.keys().len() >= API_KEYS_MAX {
            return Err(format!("the file has {API_KEYS_MAX} keys, the most there may be"));
        }
        let text = add(text, &stored)?;
        // Never writes a file that the router would refuse.
        parsed(&args.file.file, &text).map(|_| text)
    })?;
    let printed = writeln!(
        out,
        "{}: key {} for tenant {}. Reload the router. The key is shown only now:\n{}",
        args.file.file.display(),
        fresh.id,
        args.tenant,
        fresh.key
    );
    printed
        .and_then(|()| out.flush())
        .map_err(|error| format!("the key could not be printed, remove {}: {error}", fresh.id))
}

/// The keys of a text, or its first fault with line and column.
fn parsed(path: &Path, text: &str) -> Result<KeyRing, String> {
    parse(text).map_err(|faults| {
        faults.first().map_or_else(String::new, |fault| {
            format!("{}:{}:{}: {}", path.display(), fault.line, fault.column, fault.what)
        })
    })
}

fn list_keys(path: &Path, out: &mut impl Write) -> Result<(), String> {
    let keys = read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut rows = vec![["id", "tenant", "models", "class_best", "created"].map(str::to_owned)];
    rows.extend(keys.keys().iter().map(|key| {
        let models = if key.models.is_empty() { "all".to_owned() } else { key.models.join(",") };
        let class = key.class_best.map_or_else(|| "-".to_owned(), |class| class.to_string());
        [key.id.clone(), key.tenant.clone(), models, class, key.created.clone()]
    }));
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths = [0, 1, 2, 3, 4].map(width);
    for row in &rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        writeln!(out, "{}", line.trim_end()).map_err(|error| error.to_string())?;
    }
    out.flush().map_err(|error| error.to_string())
}

fn remove_key(args: &RemoveArgs, out: &mut impl Write) -> Result<(), String> {
    let path = &args.file.file;
    let mut removed = String::new();
    change(path, |text| {
        let keys = parsed(path, text)?;
        let meant = keys.keys().iter().filter(|key| key.id.starts_with(&args.id));
        let ids: Vec<&str> = meant.map(|key| &*key.id).collect();
        let exact = ids.iter().find(|id| **id == args.id);
        // Each generated id has this beginning, and an unset variable of a script is empty.
        let is_any = KEY_START.starts_with(&*args.id);
        let id = match (exact, &*ids) {
            (Some(id), _) => *id,
            (None, [id]) if is_any => {
                return Err(format!("{:?} names no key; the file has {id}", args.id));
            }
            (None, [id]) => *id,
            (None, []) => {
                return Err(format!("no key of {} begins with {:?}", path.display(), args.id));
            }
            (None, several) => {
                return Err(format!("{:?} may be {}", args.id, several.join(", ")));
            }
        };
        id.clone_into(&mut removed);
        remove(text, id)
    })?;
    writeln!(out, "{}: removed key {removed}. Reload the router", path.display())
        .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_keys::KeyDigest;

    fn at(path: &Path) -> FileArgs {
        FileArgs { file: path.to_owned() }
    }

    fn add_for(path: &Path, tenant: &str, models: &[&str]) -> Result<String, String> {
        let models = models.iter().map(|&name| name.to_owned()).collect();
        let tenant = tenant.to_owned();
        let mut out = Vec::new();
        add_key(&AddArgs { file: at(path), tenant, models, class_best: Some(2) }, &mut out)?;
        Ok(String::from_utf8_lossy(&out).into_owned())
    }

    #[test]
    fn a_key_is_the_last_word_and_its_hash_is_in_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys.toml");
        let line = add_for(&path, "search", &["m", "n"]).unwrap();
        let key = line.split_whitespace().last().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(key.starts_with("fbk_") && !text.contains(key), "{text}");
        let keys = read(&path).unwrap();
        let digest = KeyDigest::of(key.as_bytes()).unwrap();
        let (_, found) = keys.find(&digest).unwrap();
        assert_eq!((&*found.tenant, found.class_best), ("search", Some(2)));
        assert_eq!(found.models, ["m", "n"]);
        assert_eq!(found.created.len(), "2026-11-23T15:04:05Z".len());

        add_for(&path, "batch", &[]).unwrap();
        let mut out = Vec::new();
        list_keys(&path, &mut out).unwrap();
        let list = String::from_utf8(out).unwrap();
        assert_eq!(list.lines().count(), 3);
        assert!(list.contains(&*found.id) && list.contains("batch") && !list.contains(key));

        let gone = |id: &str| {
            let mut out = Vec::new();
            remove_key(&RemoveArgs { file: at(&path), id: id.to_owned() }, &mut out)
        };
        assert!(gone("fbk_").unwrap_err().contains(" may be fbk_"));
        assert!(gone("nope").unwrap_err().contains("no key of"));
        gone(&found.id).unwrap();
        let left = read(&path).unwrap();
        assert_eq!(left.keys().len(), 1);
        assert_eq!(left.keys()[0].tenant, "batch");
        for any in ["", "f", "fbk_"] {
            assert!(gone(any).unwrap_err().contains("names no key"), "{any:?}");
        }
        assert_eq!(read(&path).unwrap().keys().len(), 1, "the last key is still there");
        let digit = left.keys()[0].id.get(..5).unwrap();
        gone(digit).unwrap();
    }

    #[test]
    fn what_the_router_would_refuse_is_not_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys.toml");
        assert!(add_for(&path, "two words", &[]).unwrap_err().contains("--tenant"));
        assert!(add_for(&path, "t", &[""]).unwrap_err().contains("`models` is no list"));
        assert!(!path.exists());
        std::fs::write(&path, "[[key]]\nid = 3\n").unwrap();
        assert!(add_for(&path, "t", &[]).unwrap_err().contains("keys.toml:2:6"));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "[[key]]\nid = 3\n");
    }
}
