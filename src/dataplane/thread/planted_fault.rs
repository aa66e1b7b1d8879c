//! Injected faults, in debug builds only. Tests of the shard watchdog need shards that hang or die.

use forebay_mailbox::PlantedFault;

/// Injects the fault. A hang blocks this thread. A panic runs in its own task, where nothing
/// catches it.
pub(crate) fn plant(fault: PlantedFault) {
    match fault {
        #[expect(clippy::disallowed_methods, reason = "blocking the shard is what was asked for")]
        PlantedFault::Hang(time) => std::thread::sleep(time),
        #[expect(clippy::panic, reason = "as above")]
        PlantedFault::Panic => forebay_net::spawn(async { panic!("planted by a test") }),
    }
}
