//! Configuration files that the pages show: each can be used, and a file that replaces another
//! proxy's has the servers of that proxy.

use forebay::config::{ConfigText, Finding, Flags, FlowConfig, LoadedConfig, Severity, load};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Paths of the pages, and files of the tree in their place.
const FILES: [(&str, &str); 13] = [
    ("/etc/forebay/engine-key", "tests/data/worker_key"),
    ("/etc/forebay/trace-fields", "tests/data/trace_fields"),
    ("/var/lib/models/Qwen3-8B", "tests/data/tokenizer"),
    ("/var/lib/forebay", "/tmp"),
    ("/etc/forebay/keys.toml", "tests/data/shown/keys.toml"),
    ("/etc/forebay/image_key", "tests/data/shown/image_key"),
    ("/etc/forebay/admin.token", "tests/data/shown/admin.token"),
    ("/etc/forebay/read.token", "tests/data/shown/read.token"),
    ("/etc/forebay/tokens/admin", "tests/data/shown/admin.token"),
    ("/etc/forebay/tokens/read", "tests/data/shown/read.token"),
    ("/etc/forebay/a.", "tests/data/tls/router."),
    ("/etc/forebay/b.", "tests/data/tls/rsa2048."),
    ("/etc/ssl/llm.", "tests/data/tls/router."),
];

/// Warnings of files that are right: text of the page's path, and of the warning.
const WARNINGS: [(&str, &str); 5] = [
    // Most pages show one subject, and keys of clients are another.
    ("", "asks clients for no key"),
    // A flag of `serve`, which `check` does not see, has the address.
    ("operate/balancer.md", "peers do not reach `admin` 127.0.0.1:9090"),
    ("examples/ansible", "peers do not reach `admin` 127.0.0.1:9090"),
    // Networks of routers and of pods.
    ("concepts/replicas.md", "takes tokens in clear text"),
    ("examples/kubernetes", "takes tokens in clear text"),
];

/// A code block of a page.
struct Block {
    page: PathBuf,
    language: String,
    text: String,
}

/// The code blocks of a page, in order.
fn blocks_of(page: &Path) -> Vec<Block> {
    let text = fs::read_to_string(page).unwrap();
    let fenced = text.split("\n```").skip(1).step_by(2);
    let block = |fenced: &str| {
        let (language, text) = fenced.split_once('\n').unwrap();
        Block { page: page.to_owned(), language: language.to_owned(), text: text.to_owned() }
    };
    fenced.map(block).collect()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The configuration files of README.md and the book.
fn shown_files() -> Vec<Block> {
    let mut pages = vec![root().join("README.md")];
    let mut folders = vec![root().join("docs")];
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    let all = pages.iter().flat_map(|page| blocks_of(page));
    all.filter(|block| block.language == "toml").collect()
}

/// Configuration files within the YAML files of `docs/examples`: the text below a key such as
/// `forebay.toml: |`, without its indentation.
fn files_in_examples() -> Vec<Block> {
    let mut found = Vec::new();
    let mut folders = vec![root().join("docs/examples")];
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            let is_yaml = path.extension().is_some_and(|end| end == "yaml" || end == "yml");
            if path.is_dir() {
                folders.push(path);
            } else if is_yaml {
                let text = fs::read_to_string(&path).unwrap();
                found.extend(literals_in(&text).map(|text| Block {
                    page: path.clone(),
                    language: "toml".to_owned(),
                    text,
                }));
            }
        }
    }
    found
}

/// Literal blocks of TOML in YAML.
fn literals_in(yaml: &str) -> impl Iterator<Item = String> {
    let keys = ["forebay.toml: |", "forebay_config: |", "forebay_workers: |"];
    let is_key = move |line: &&str| keys.iter().any(|key| line.trim_start() == *key);
    let depth = |line: &str| line.len() - line.trim_start().len();
    let starts = yaml.lines().enumerate().filter(move |(_, line)| is_key(line));
    starts.map(move |(start, key)| {
        let below = yaml.lines().skip(start + 1);
        let own = below.take_while(|line| line.is_empty() || depth(line) > depth(key));
        own.map(str::trim_start).collect::<Vec<_>>().join("\n")
    })
}

/// Workers of a file that shows another subject: the page has a fleet in mind.
const FLEET: &str = "[[worker]]\nurl = \"http://a:1\"\n[[worker]]\nurl = \"http://b:1\"\n";

/// Reads and checks a file as `forebay check` does, with files of the tree in place of its own.
fn check(text: &str) -> LoadedConfig {
    let text = FILES.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to));
    let workers = if text.contains("[[worker]]") { "" } else { FLEET };
    let text = format!("{text}\n{workers}");
    load(Some(ConfigText { name: "forebay.toml", text: &text }), &Flags::default())
}

/// Errors of the file, and warnings that `WARNINGS` does not allow.
fn faults_of(Block { page, text, .. }: &Block) -> Vec<String> {
    let is_right = |finding: &Finding| {
        finding.severity == Severity::Warning
            && WARNINGS.iter().any(|(path, warning)| {
                page.to_string_lossy().contains(path) && finding.what.contains(warning)
            })
    };
    let findings = check(text).findings;
    findings.iter().filter(|finding| !is_right(finding)).map(ToString::to_string).collect()
}

#[test]
fn files_that_the_pages_show_can_be_used() {
    let mut files = shown_files();
    let in_examples = files_in_examples();
    assert_eq!(in_examples.len(), 4, "files of Kubernetes and Ansible");
    files.extend(in_examples);
    assert!(files.len() > 20, "{} files: blocks are fenced in another way now", files.len());
    let faults = files.iter().flat_map(|file| {
        faults_of(file).into_iter().map(|fault| format!("{}: {fault}", file.page.display()))
    });
    assert_eq!(faults.collect::<Vec<_>>(), Vec::<String>::new());
    for faulty in ["[queue]\ndepth = 1\n", "[timeouts]\nfirst_byte = \"1ms\"\n"] {
        let block = Block { page: PathBuf::new(), language: String::new(), text: faulty.into() };
        assert_eq!(faults_of(&block).len(), 1, "passes: {faulty}");
    }
}

#[test]
fn what_the_pages_show_of_back_pressure_is_the_default() {
    let page = root().join("docs/reference/configuration-examples.md");
    let shown = blocks_of(&page).pop().unwrap();
    assert!(shown.text.contains("[rejection]"), "the last file is another one now");
    let shown = check(&shown.text).usable().unwrap().flow;
    assert_eq!(shown.tenants.len(), 1);
    let usual = FlowConfig::default();
    let FlowConfig { rank_concurrency_max, tenants, .. } = shown.clone();
    assert_eq!(shown, FlowConfig { rank_concurrency_max, tenants, ..usual });
}

/// Words like `10.0.0.11:8001` in a text that no address listens on.
fn servers_in(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_digit() || c == '.' || c == ':';
    let words = text.split(|c| !is_part(c)).map(|word| word.trim_matches([':', '.']));
    let is_server = |word: &&str| {
        let Some((host, port)) = word.split_once(':') else { return false };
        host.starts_with("10.") && host.split('.').count() == 4 && port.parse::<u16>().is_ok()
    };
    words.filter(is_server).map(str::to_owned).collect()
}

/// Each file of the page stands behind the file or the command that it replaces.
#[test]
fn a_migrated_file_has_the_servers_of_the_other_proxy() {
    let blocks = blocks_of(&root().join("docs/start/migrate.md"));
    assert_eq!(blocks.len() % 2, 0, "a block without its pair");
    let mut languages = Vec::new();
    for pair in blocks.chunks(2) {
        let [before, after] = pair else { continue };
        assert_eq!(after.language, "toml", "behind:\n{}", before.text);
        let config = check(&after.text).usable().unwrap();
        let events = config.workers.iter().flat_map(|worker| &worker.kv_events);
        let urls = config.workers.iter().map(|worker| &worker.url).chain(events);
        let workers: BTreeSet<String> = urls.flat_map(|url| servers_in(url)).collect();
        assert_eq!(servers_in(&before.text), workers, "in:\n{}", before.text);
        assert_eq!(config.workers.len(), 2, "in:\n{}", after.text);
        languages.push(before.language.as_str());
    }
    assert_eq!(languages, ["nginx", "haproxy", "sh", "sh"]);
}

#[test]
fn servers_are_found_in_any_notation() {
    let text = "server a 10.0.0.1:80 x; http://10.0.0.2:81=tcp://10.0.0.2:82 bind :80 1.2 v10.0";
    let found: Vec<String> = servers_in(text).into_iter().collect();
    assert_eq!(found, ["10.0.0.1:80", "10.0.0.2:81", "10.0.0.2:82"]);
}
