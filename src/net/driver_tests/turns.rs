//! Turns of the loop: tasks, timers, eventfds, and their system calls.

use super::*;

#[test]
fn an_eventfd_of_another_thread_wakes_as_often_as_it_is_signalled() {
    on_both(|| async {
        let bell = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let source = Source::new(bell.try_clone().unwrap()).unwrap();
        for _ in 0..3 {
            let bell = bell.try_clone().unwrap();
            let ringing = std::thread::spawn(move || {
                rustix::io::write(&bell, &1_u64.to_ne_bytes()).unwrap();
            });
            poll_fn(|cx| source.poll_signalled(cx)).await;
            ringing.join().unwrap();
            // A signal is reported once.
            let mut cx = Context::from_waker(Waker::noop());
            sleep(Duration::from_millis(1)).await;
            assert!(source.poll_signalled(&mut cx).is_pending());
        }
    });
}

#[test]
fn tasks_that_never_wait_leave_room_for_sockets_and_timers() {
    on_both(|| async {
        spawn(poll_fn(|cx| {
            cx.waker().wake_by_ref();
            Poll::<()>::Pending
        }));
        let (mut receiver, _sender, mut other) = pair().await;
        other.write_all(b"x").unwrap();
        assert_eq!(chunk(&mut receiver).await, b"x");
        sleep(Duration::from_millis(2)).await;
    });
}

#[test]
fn timers_fire_in_their_order_and_tasks_end_with_the_loop() {
    let dropped = Rc::new(Cell::new(0));
    struct Counts(Rc<Cell<u32>>);
    impl Drop for Counts {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }
    on_both(|| async {
        let order = Rc::new(Cell::new(0));
        for millis in [3_u64, 1, 2] {
            let order = Rc::clone(&order);
            spawn(async move {
                sleep(Duration::from_millis(millis)).await;
                order.set(order.get() * 10 + millis);
            });
        }
        let endless = Counts(Rc::clone(&dropped));
        spawn(async move {
            let _endless = endless;
            sleep(Duration::from_secs(3_600)).await;
        });
        // On a busy machine all of them may be due at once.
        while order.get() < 100 {
            sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(order.get(), 123);
    });
    assert!(dropped.get() >= 1);
    assert!(Socket::from_std(TcpStream::connect(listen().1).unwrap()).is_err(), "no loop here");
}

#[test]
fn what_is_asked_of_the_kernel_is_counted() {
    on_both(|| async {
        let (mut receiver, mut sender, mut other) = pair().await;
        let before = io_counts();
        sender.send(b"there".to_vec()).await.unwrap();
        sleep(Duration::from_millis(1)).await;
        let sent = io_counts();
        assert_eq!(sent.submissions + sent.sends, before.submissions + before.sends + 1);
        assert!(sent.waits > before.waits);
        other.write_all(b"and back").unwrap();
        assert_eq!(chunk(&mut receiver).await, b"and back");
        let received = io_counts();
        assert!(received.submissions + received.receives > sent.submissions + sent.receives);
    });
}

/// Stages of two tasks alternate within a turn, and a task that is alone never waits.
#[test]
fn a_stage_runs_for_all_due_tasks_before_the_next_stage() {
    on_both(|| async {
        let steps = Rc::new(RefCell::new(Vec::new()));
        for name in ["first", "second"] {
            let steps = Rc::clone(&steps);
            spawn(async move {
                for stage in 0..3 {
                    steps.borrow_mut().push((stage, name));
                    join_cohort().await;
                }
            });
        }
        let before = io_counts().waits;
        while steps.borrow().len() < 6 {
            end_turn().await;
        }
        assert!(io_counts().waits - before <= 2, "a stage costs no wait");
        let in_order = [0, 1, 2].map(|stage| [(stage, "first"), (stage, "second")]);
        assert_eq!(*steps.borrow(), in_order.as_flattened());
        let mut alone = pin!(join_cohort());
        let polled = poll_fn(|cx| Poll::Ready(alone.as_mut().poll(cx))).await;
        assert!(polled.is_ready(), "no other task is due");
    });
}

/// What a task does behind its last send delays the peer only in a turn of several tasks.
#[test]
fn a_send_of_a_task_alone_can_leave_before_the_turn_ends() {
    on_both(|| async {
        for others in [0, 1] {
            let (_receiver, mut sender, mut other) = pair().await;
            other.set_nonblocking(true).unwrap();
            let received = Rc::new(Cell::new(None));
            let result = Rc::clone(&received);
            spawn(async move {
                let before = io_counts();
                sender.send(b"answer".to_vec()).await.unwrap();
                submit_alone();
                // Within the same turn.
                let mut buffer = [0; 16];
                result.set(Some(other.read(&mut buffer).unwrap_or(0)));
                let after = io_counts();
                assert_eq!(after.waits, before.waits, "the turn goes on");
                submit_alone();
                assert_eq!(io_counts().sends, after.sends, "nothing is left to submit");
            });
            for _ in 0..others {
                spawn(async {});
            }
            while received.get().is_none() {
                end_turn().await;
            }
            let is_epoll = io_counts().submissions == 0;
            let wanted = if others == 0 || is_epoll { 6 } else { 0 };
            assert_eq!(received.get(), Some(wanted), "{others} other tasks");
        }
    });
}
