//! The receiving half of a socket.

use super::*;

#[test]
fn a_socket_whose_bytes_are_not_taken_is_not_read_further() {
    on_both(|| async {
        let (mut receiver, _sender, mut other) = pair().await;
        other.set_nonblocking(true).unwrap();
        let piece = vec![b'x'; 1 << 20];
        let mut cx = Context::from_waker(Waker::noop());
        let mut sent = 0;
        let mut idle_turns = 0;
        while idle_turns < 20 {
            let count = other.write(&piece).unwrap_or(0);
            sent += count;
            idle_turns = if count == 0 { idle_turns + 1 } else { 0 };
            receiver.poll_ahead(&mut cx);
            sleep(Duration::from_millis(1)).await;
        }
        let ahead = receiver.bytes_ahead();
        assert!(ahead <= (CHUNKS_AHEAD_MAX + PROVIDED_BUFFERS) * READ_BYTES, "{ahead}");
        drop(other);
        let mut received = 0;
        while let Ok(bytes) = poll_fn(|cx| receiver.poll_chunk(cx)).await
            && !bytes.is_empty()
        {
            received += bytes.len();
            receiver.recycle(bytes);
        }
        assert_eq!(received, sent, "nothing was lost where reading paused");
    });
}

#[test]
fn more_sockets_than_buffers_lose_nothing() {
    on_both(|| async {
        let mut pairs = Vec::new();
        for _ in 0..PROVIDED_BUFFERS + 40 {
            pairs.push(pair().await);
        }
        for (receiver, ..) in &mut pairs {
            assert!(receiver.is_quiet());
        }
        for (.., other) in &mut pairs {
            other.write_all(&[b'x'; 20_000]).unwrap();
        }
        for (receiver, ..) in &mut pairs {
            let mut received = 0;
            while received < 20_000 {
                received += chunk(receiver).await.len();
            }
        }
    });
}

#[test]
fn one_that_leaves_is_seen_and_a_drop_closes() {
    on_both(|| async {
        let (mut receiver, sender, mut other) = pair().await;
        assert!(receiver.is_quiet());
        drop((receiver, sender));
        other.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        sleep(Duration::from_millis(5)).await;
        assert_eq!(other.read(&mut [0; 8]).unwrap(), 0, "closed");
        let (mut receiver, _sender, mut other) = pair().await;
        assert!(receiver.is_quiet());
        // The end comes together with the last bytes.
        other.write_all(b"last").unwrap();
        drop(other);
        assert_eq!(chunk(&mut receiver).await, b"last");
        assert!(chunk(&mut receiver).await.is_empty());
        assert!(!receiver.is_quiet());
    });
}

#[test]
fn an_end_that_comes_while_the_loop_is_elsewhere_is_seen() {
    on_both(|| async {
        for is_reset in [false, true] {
            let (mut receiver, _sender, mut other) = pair().await;
            assert!(receiver.is_quiet());
            sleep(Duration::from_millis(2)).await;
            // The loop is not in the kernel: both come before it looks.
            other.write_all(b"last").unwrap();
            if is_reset {
                sockopt::set_socket_linger(&other, Some(Duration::ZERO)).unwrap();
            }
            drop(other);
            #[expect(clippy::disallowed_methods, reason = "the loop is to be elsewhere")]
            std::thread::sleep(Duration::from_millis(1));
            let mut ended = false;
            for _ in 0..2 {
                let next = poll_fn(|cx| receiver.poll_chunk(cx)).await;
                ended |= next.is_ok_and(|bytes| bytes.is_empty()) || !receiver.is_quiet();
            }
            assert!(ended, "reset: {is_reset}");
        }
    });
}

#[test]
fn a_closed_connection_that_nobody_waited_for_is_not_quiet() {
    const ANSWER: usize = 40 * READ_BYTES;
    on_both(|| async {
        for _ in 0..10 {
            let (mut receiver, _sender, mut other) = pair().await;
            assert!(receiver.is_quiet());
            let sending = std::thread::spawn(move || {
                other.write_all(&[1; ANSWER]).unwrap();
                other
            });
            let mut received = 0;
            while received < ANSWER {
                let bytes = chunk(&mut receiver).await;
                received += bytes.len();
                receiver.recycle(bytes);
            }
            assert!(receiver.is_quiet());
            drop(sending.join().unwrap());
            sleep(Duration::from_millis(5)).await;
            assert!(!receiver.is_quiet());
        }
    });
}

#[test]
fn a_connection_that_closed_while_none_was_received_from_is_not_quiet() {
    on_both(|| async {
        let (mut receiver, _sender, other) = pair().await;
        assert!(receiver.is_quiet());
        // Too much waits in other sockets, so that this one's receive ends.
        let much = Vec::with_capacity(AHEAD_BYTES_MAX + 1);
        buffers().waits(&much);
        let (mut second, _second, mut writing) = pair().await;
        second.poll_ahead(&mut Context::from_waker(Waker::noop()));
        writing.write_all(b"x").unwrap();
        sleep(Duration::from_millis(2)).await;
        drop(other);
        sleep(Duration::from_millis(2)).await;
        assert!(!receiver.is_quiet());
        buffers().is_taken(&much);
        assert_eq!(chunk(&mut second).await, b"x");
    });
}

#[test]
fn what_all_sockets_have_ahead_is_bounded() {
    const SOCKETS: usize = 100;
    on_both(|| async {
        let mut cx = Context::from_waker(Waker::noop());
        let mut pairs = Vec::new();
        for _ in 0..SOCKETS {
            let (mut receiver, sender, other) = pair().await;
            other.set_nonblocking(true).unwrap();
            receiver.poll_ahead(&mut cx);
            pairs.push((receiver, sender, other));
        }
        let piece = vec![b'x'; 1 << 20];
        let mut sent = 0;
        for (.., other) in &mut pairs {
            for _ in 0..10 {
                sent += other.write(&piece).unwrap_or(0);
                sleep(Duration::from_micros(200)).await;
            }
        }
        let ahead: usize = pairs.iter().map(|(receiver, ..)| receiver.bytes_ahead()).sum();
        let bound = AHEAD_BYTES_MAX + (PROVIDED_BUFFERS + SOCKETS) * READ_BYTES;
        assert!(ahead <= bound && sent > 2 * bound, "{ahead} of {sent}, at most {bound}");
        // Nothing is lost, and the sockets are read as before.
        let mut received = 0;
        for (mut receiver, _sender, other) in pairs {
            drop(other);
            loop {
                let bytes = chunk(&mut receiver).await;
                if bytes.is_empty() {
                    break;
                }
                received += bytes.len();
                receiver.recycle(bytes);
            }
        }
        assert_eq!(received, sent);
    });
}

#[test]
fn bytes_stay_in_order_where_receiving_in_place_begins_and_ends() {
    const BYTES: usize = 8 << 20;
    on_both(|| async {
        let (mut receiver, _sender, mut other) = pair().await;
        let sent: Vec<u8> = (0..BYTES).map(|at| u8::try_from(at % 251).unwrap()).collect();
        let expected = sent.clone();
        let sending = std::thread::spawn(move || {
            let mut random = fastrand::Rng::with_seed(3);
            let mut rest = sent.as_slice();
            while !rest.is_empty() {
                let piece = random.usize(1..=5 * READ_BYTES).min(rest.len());
                other.write_all(&rest[..piece]).unwrap();
                rest = &rest[piece..];
            }
        });
        let mut random = fastrand::Rng::with_seed(4);
        let mut received = Vec::new();
        let mut in_place = 0;
        loop {
            receiver.set_in_place(random.u8(..40) > 0);
            let room = random.usize(..4 * READ_BYTES);
            let mut into = Vec::with_capacity(room);
            let bytes = poll_fn(|cx| receiver.poll_in_place(cx, &mut into)).await.unwrap();
            assert_eq!(bytes, into.len());
            if bytes == 0 {
                break;
            }
            in_place += usize::from(bytes > READ_BYTES);
            received.extend(into);
            if random.u8(..8) == 0 {
                sleep(Duration::from_micros(200)).await;
            }
        }
        sending.join().unwrap();
        assert!(received == expected);
        assert!(in_place > 10, "only {in_place} were received in place");
    });
}
