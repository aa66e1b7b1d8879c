//! Where callers come in: a port, or a socket in the file system.

use forebay_config::AdminAddress;
use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// The owner and the group of the socket may call.
const SOCKET_MODE: u32 = 0o660;

/// A bound socket of the admin API, which does not block.
#[derive(Debug)]
pub enum AdminSocket {
    /// A port of the network.
    Tcp(TcpListener),
    /// A socket in the file system, and its name there.
    Unix(UnixListener, SocketFile),
}

/// The name of a socket. Dropping it removes the name, unless it is another socket's by now.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    inode: u64,
}

impl AdminSocket {
    /// Binds. A socket that a process has left behind is replaced.
    ///
    /// # Errors
    /// What the kernel says; [`ErrorKind::AddrInUse`] where a process listens.
    pub fn bind(address: &AdminAddress) -> io::Result<Self> {
        match address {
            AdminAddress::Tcp(address) => {
                let listener = TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                Ok(Self::Tcp(listener))
            }
            AdminAddress::Unix(path) => {
                remove_stale(path)?;
                let listener = UnixListener::bind(path)?;
                listener.set_nonblocking(true)?;
                let file = SocketFile { path: path.clone(), inode: fs::metadata(path)?.ino() };
                fs::set_permissions(path, Permissions::from_mode(SOCKET_MODE))?;
                Ok(Self::Unix(listener, file))
            }
        }
    }

    /// The port, where there is one.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn port(&self) -> io::Result<Option<SocketAddr>> {
        match self {
            Self::Tcp(listener) => listener.local_addr().map(Some),
            Self::Unix(..) => Ok(None),
        }
    }
}

/// Removes a socket on which nobody listens. Anything else that has the name stays.
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
        let is_own = fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode);
        if is_own && let Err(error) = fs::remove_file(&self.path) {
            tracing::debug!(%error, path = %self.path.display(), "the admin socket stays");
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
