//! Faults on order, in debug builds only: the tests of what watches the shards need shards that
//! hang or die.

use forebay_fleet::mailbox::PlantedFault;

/// Does it. A hang stops this thread; a panic comes from a task of its own, where nothing catches
/// it.
pub(crate) fn plant(fault: PlantedFault) {
    match fault {
        #[expect(clippy::disallowed_methods, reason = "blocking the shard is what was asked for")]
        PlantedFault::Hang(time) => std::thread::sleep(time),
        #[expect(clippy::panic, reason = "as above")]
        PlantedFault::Panic => forebay_net::spawn(async { panic!("planted by a test") }),
    }
}
