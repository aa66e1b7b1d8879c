//! The process that listens on a TCP port, as `/proc` shows it: the name that an operator needs
//! when a port is in use.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

/// Tables of TCP sockets of this network namespace.
const TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];
/// State of a listening socket in these tables.
const LISTENS: &str = "0A";
/// Most bytes of a process name.
const NAME_BYTES_MAX: usize = 64;

/// A process that listens on a port, for example `process 4711 (nginx)`. `None` if no process
/// listens, or only root can see the process.
pub(crate) fn process(address: SocketAddr) -> Option<String> {
    let tables = TABLES.map(|table| fs::read_to_string(table).unwrap_or_default());
    let inodes: Vec<u64> =
        tables.iter().flat_map(|table| listeners(table, address.port())).collect();
    if inodes.is_empty() {
        return None;
    }
    let links: Vec<String> = inodes.iter().map(|inode| format!("socket:[{inode}]")).collect();
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let mut numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let process = numbers.find(|process| holds(*process, &links))?;
    let name = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
    let is_plain = |c: &char| c.is_ascii_graphic() || *c == ' ';
    let name: String = name.trim().chars().filter(is_plain).take(NAME_BYTES_MAX).collect();
    Some(if name.is_empty() {
        format!("process {process}")
    } else {
        format!("process {process} ({name})")
    })
}

/// Inodes of the sockets that listen on `port`.
fn listeners(table: &str, port: u16) -> Vec<u64> {
    let inode = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let local = fields.nth(1)?;
        let (_, hexadecimal) = local.rsplit_once(':')?;
        let is_port = u16::from_str_radix(hexadecimal, 16) == Ok(port);
        let state = fields.nth(1)?;
        (is_port && state == LISTENS).then(|| fields.nth(5)?.parse().ok())?
    };
    table.lines().skip(1).filter_map(inode).collect()
}

/// The process has a descriptor with any of these `links`.
fn holds(process: u32, links: &[String]) -> bool {
    let files = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    let is_ours = |path: &Path| path.to_str().is_some_and(|path| links.iter().any(|l| l == path));
    files.filter_map(|file| fs::read_link(file.path()).ok()).any(|target| is_ours(&target))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn the_process_that_listens_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let found = process(address).unwrap();
        assert!(found.starts_with(&format!("process {} (", std::process::id())), "{found}");
        drop(listener);
        assert_eq!(process(address), None, "the port is free");
    }

    #[test]
    fn only_listening_sockets_of_the_port_count() {
        let line = |local: &str, state: &str, inode: u32| {
            format!("  0: {local} 00000000:0000 {state} 0:0 00:0 00 0 0 {inode} 1 0\n")
        };
        let table = [
            "  sl  local_address rem_address   st tx_queue tr retrnsmt   uid  timeout inode\n",
            &line("0100007F:1F90", "0A", 41),
            &line("0100007F:1F90", "01", 42),
            &line("00000000000000000000000000000000:1F90", "0A", 43),
            &line("0100007F:1F91", "0A", 44),
            "    4: broken\n",
        ];
        let table = &table.concat();
        assert_eq!(listeners(table, 8080), [41, 43]);
    }
}
