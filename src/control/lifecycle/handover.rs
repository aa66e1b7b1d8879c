//! Takes over from the process before, and hands over to the next process. `forebay_handover` has
//! the sockets of both. This file decides which process answers the admin API, and which is the
//! main process.

use forebay_admin::{Access, AdminListener, ClientCallers, Question};
use forebay_base::Clock;
use forebay_handover::{
    HandoverAddress, HandoverHost, HandoverListener, HostCall, HostSetup, PreviousProcess, Program,
    TakenProcess,
};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tracing::{info, warn};

/// Parts of a handover that the process has at start.
#[derive(Debug, Default)]
pub struct HandoverSetup {
    /// Sockets and state from the process before, if any.
    pub taken: Option<TakenProcess>,
    /// The names that its workers listed, if it handed them over.
    pub models: Option<File>,
    /// Offer for the next process; `None` where no handover is possible.
    pub offer: Option<HandoverOffer>,
}

/// Offer to the next process.
#[derive(Debug)]
pub struct HandoverOffer {
    /// Address at which the next process connects.
    pub place: HandoverAddress,
    /// Everything that this process listens on.
    pub sockets: Arc<[OwnedFd]>,
    /// How this process was started.
    pub program: Program,
}

/// The admin API before it answers.
pub(crate) struct AdminSetup {
    pub(crate) listener: AdminListener,
    pub(crate) callers: Option<ClientCallers>,
    pub(crate) questions: mpsc::Sender<Question>,
    pub(crate) access: Arc<Access>,
}

/// Other processes with the listening sockets.
struct OtherHolders {
    /// The process before, until it has ended.
    before: Option<PreviousProcess>,
    /// Processes that got the sockets from this process, and may have them still.
    heir_count: u32,
}

/// Handover from the process before, and to the next process.
pub(crate) struct Handover {
    setup: HandoverSetup,
    others: OtherHolders,
    clock: Clock,
    calls: mpsc::Sender<HostCall>,
    /// Until this process answers the admin API.
    admin_setup: Option<AdminSetup>,
    admin: Option<AbortHandle>,
    host: Option<HandoverHost>,
    /// The log has why no process can come.
    has_complained: bool,
}

impl Handover {
    /// Opens the admin API, unless the process before still answers it.
    pub(crate) fn start(
        setup: HandoverSetup,
        clock: Clock,
        calls: mpsc::Sender<HostCall>,
        admin_setup: AdminSetup,
    ) -> Self {
        let admin_setup = Some(admin_setup);
        let before = setup.taken.as_ref().zip(setup.offer.as_ref());
        let before =
            before.map(|(taken, own)| PreviousProcess::new(taken.from, Arc::clone(&own.sockets)));
        let mut own = Self {
            setup,
            others: OtherHolders { before, heir_count: 0 },
            clock,
            calls,
            admin_setup,
            admin: None,
            host: None,
            has_complained: false,
        };
        if own.setup.taken.is_none() {
            own.open();
        }
        own
    }

    /// The names that the workers of the process before listed, if it handed them over.
    pub(crate) fn take_models(&mut self) -> Option<File> {
        self.setup.models.take()
    }

    /// This is the process that answers the admin API.
    pub(crate) fn is_open(&self) -> bool {
        self.admin_setup.is_none()
    }

    /// Another process may come.
    pub(crate) fn can_hand_over(&self) -> bool {
        self.setup.offer.is_some() || self.host.is_some()
    }

    /// This process serves: the process before drains.
    pub(crate) fn serves(&mut self) {
        let Some(taken) = self.setup.taken.take() else { return };
        let process = taken.from.as_raw_nonzero().get();
        match taken.serves() {
            Ok(()) => info!(process, "took over; the process before drains"),
            Err(error) => warn!(process, %error, "the process before did not hear of this one"),
        }
        self.open();
    }

    /// Another process serves: closes the admin API, and serves only open connections.
    pub(crate) fn close(&mut self) {
        self.ends();
        if let Some(admin) = self.admin.take() {
            admin.abort();
        }
    }

    /// This process ends without a next process.
    pub(crate) fn ends(&mut self) {
        self.host = None;
        self.setup.offer = None;
        self.others.before = None;
    }

    /// Another process gets the sockets.
    pub(crate) fn gives(&mut self) {
        self.others.heir_count = self.others.heir_count.saturating_add(1);
    }

    /// A process that got the sockets is gone.
    pub(crate) fn takes_back(&mut self) {
        self.others.heir_count = self.others.heir_count.saturating_sub(1);
    }

    /// Another process may have the sockets.
    pub(crate) fn has_heir(&self) -> bool {
        self.others.heir_count > 0
    }

    /// Clients can connect, whatever the process before does to the sockets while it ends.
    pub(crate) fn reopen(&mut self) {
        self.others.before.take_if(|before| !before.reopen());
    }

    /// Waits for the next process. A process that ends may still have the meeting place: each call
    /// tries until the place is free.
    pub(crate) fn wait_for_next(&mut self) {
        if !self.is_open() {
            return;
        }
        let Some(offer) = &self.setup.offer else { return };
        match offer.place.bind() {
            Ok(place) => {
                if std::mem::take(&mut self.has_complained) {
                    info!("another process can take over from this one now");
                }
                self.host = self.setup.offer.take().and_then(|offer| self.host(place, offer));
            }
            Err(error) if !std::mem::replace(&mut self.has_complained, true) => {
                warn!(
                    %error,
                    "no other process can take over from this one without loss; trying on"
                );
            }
            Err(_) => {}
        }
    }

    fn open(&mut self) {
        let Some(mut admin_setup) = self.admin_setup.take() else { return };
        if let Err(error) = admin_setup.listener.take_name() {
            warn!(%error, "the admin socket keeps the name that it has beside the configured one");
        }
        let AdminSetup { listener, callers, questions, access } = admin_setup;
        let admin = forebay_admin::serve(listener, callers, questions, access);
        let admin = tokio::task::spawn_local(admin);
        self.admin = Some(admin.abort_handle());
        self.wait_for_next();
    }

    fn host(&self, place: HandoverListener, offer: HandoverOffer) -> Option<HandoverHost> {
        let HandoverOffer { sockets, program, .. } = offer;
        let calls = self.calls.clone();
        let call = Box::new(move |call| calls.blocking_send(call).is_ok());
        let setup = HostSetup { sockets, program, clock: self.clock, call };
        let host = HandoverHost::start(place, setup);
        host.inspect_err(|error| {
            warn!(%error, "no other process can take over from this one without loss");
        })
        .ok()
    }
}
