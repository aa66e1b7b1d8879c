//! The event loops: io_uring, and epoll where the host refuses io_uring.

pub(crate) mod driven_socket;
pub(crate) mod driver;
pub(crate) mod epoll;
mod provided;
pub(crate) mod readiness;
pub(crate) mod source;
pub(crate) mod uring;
