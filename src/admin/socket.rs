//! Listening sockets of the admin API: a TCP port, or a Unix socket.

use forebay_config::AdminAddress;
use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// The owner and the group of the socket file may call.
const SOCKET_MODE: u32 = 0o660;

/// A bound, non-blocking socket of the admin API.
#[derive(Debug)]
pub enum AdminSocket {
    /// A port of the network.
    Tcp(TcpListener),
    /// A Unix socket and its file.
    Unix(UnixListener, SocketFile),
}

/// File of a Unix socket. Drop removes the file, unless another socket has replaced it.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    inode: u64,
    /// Temporary name until the other process gives up `path`.
    beside: Option<PathBuf>,
}

impl SocketFile {
    /// Takes the name over from another process, which no longer serves there.
    ///
    /// # Errors
    /// The file cannot be renamed.
    pub fn take_name(&mut self) -> io::Result<()> {
        self.beside.take().map_or(Ok(()), |beside| fs::rename(beside, &self.path))
    }
}

impl AdminSocket {
    /// Binds. A stale socket file of an ended process is replaced.
    ///
    /// # Errors
    /// The socket cannot be bound; [`ErrorKind::AddrInUse`] if a process listens.
    pub fn bind(address: &AdminAddress) -> io::Result<Self> {
        match address {
            AdminAddress::Tcp(address) => {
                let listener = TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                Ok(Self::Tcp(listener))
            }
            AdminAddress::Unix(path) => {
                remove_stale(path)?;
                bind_file(path, path.clone(), None)
            }
        }
    }

    /// Like [`Self::bind`], while another process serves at the name; that process keeps it until
    /// [`SocketFile::take_name`].
    ///
    /// # Errors
    /// The socket cannot be bound.
    pub fn bind_beside(address: &AdminAddress) -> io::Result<Self> {
        let AdminAddress::Unix(path) = address else { return Self::bind(address) };
        let mut name = path.clone().into_os_string();
        name.push(format!(".{}", std::process::id()));
        let beside = PathBuf::from(name);
        remove_stale(&beside)?;
        bind_file(&beside, path.clone(), Some(beside.clone()))
    }

    /// The bound TCP address; `None` for a Unix socket.
    ///
    /// # Errors
    /// The address cannot be read.
    pub fn port(&self) -> io::Result<Option<SocketAddr>> {
        match self {
            Self::Tcp(listener) => listener.local_addr().map(Some),
            Self::Unix(..) => Ok(None),
        }
    }
}

fn bind_file(at: &Path, path: PathBuf, beside: Option<PathBuf>) -> io::Result<AdminSocket> {
    let listener = UnixListener::bind(at)?;
    listener.set_nonblocking(true)?;
    let file = SocketFile { path, inode: fs::metadata(at)?.ino(), beside };
    fs::set_permissions(at, Permissions::from_mode(SOCKET_MODE))?;
    Ok(AdminSocket::Unix(listener, file))
}

/// Removes a socket file without a listener. Any other file stays.
fn remove_stale(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(io::Error::new(ErrorKind::AlreadyExists, "a file that is no socket"));
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(ErrorKind::AddrInUse.into()),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) => Err(error),
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let name = self.beside.as_ref().unwrap_or(&self.path);
        let is_own = fs::symlink_metadata(name).is_ok_and(|found| found.ino() == self.inode);
        if is_own && let Err(error) = fs::remove_file(name) {
            tracing::debug!(%error, path = %name.display(), "the admin socket stays");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bind(path: &Path) -> io::Result<AdminSocket> {
        AdminSocket::bind(&AdminAddress::Unix(path.into()))
    }

    #[test]
    fn a_socket_that_was_left_is_replaced_and_no_other_file_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("admin.sock");
        drop(UnixListener::bind(&path).unwrap());
        let first = bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, SOCKET_MODE);
        assert_eq!(first.port().unwrap(), None);
        assert_eq!(bind(&path).unwrap_err().kind(), ErrorKind::AddrInUse, "somebody listens");
        drop(first);
        assert!(!path.exists(), "the name goes with the socket");
        fs::write(&path, "a file of somebody").unwrap();
        assert_eq!(bind(&path).unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert!(path.exists());
    }

    #[test]
    fn a_name_is_taken_over_from_whom_it_serves_no_more() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("admin.sock");
        let address = AdminAddress::Unix(path.clone());
        let first = bind(&path).unwrap();
        let entries = || fs::read_dir(folder.path()).unwrap().count();
        drop(AdminSocket::bind_beside(&address).unwrap());
        assert_eq!(entries(), 1, "one that gives up leaves the name");
        let AdminSocket::Unix(second, mut file) = AdminSocket::bind_beside(&address).unwrap()
        else {
            panic!("it has a file")
        };
        file.take_name().unwrap();
        drop(first);
        let _caller = UnixStream::connect(&path).unwrap();
        second.accept().unwrap();
        drop(file);
        assert_eq!(entries(), 0);
    }

    #[test]
    fn a_name_that_is_anothers_by_now_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("admin.sock");
        let first = bind(&path).unwrap();
        fs::rename(&path, folder.path().join("moved")).unwrap();
        let second = bind(&path).unwrap();
        drop(first);
        assert!(path.exists());
        drop(second);
        assert!(!path.exists());
    }
}
