//! What a request may do and how it may end, without any socket.

mod blame;
mod stop;

pub use blame::{Fault, Known, LegEnd};
pub use stop::{
    Failed, Stop, after, body_too_large, cannot_hand_off, engines_busy, in_flight_full, no_worker,
    stop, waited_too_long,
};
