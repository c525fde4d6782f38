//! Asynchronous calls, scopes, threads, splitting, wrong arguments and mismatched calls.

mod common;

use rccl::{Communicator, Error, Options, ReduceOp, TransportChoice};

fn defaults() -> Options {
    common::options(TransportChoice::Auto, None)
}

#[test]
fn one_thread_drives_all_ranks_through_asynchronous_calls() {
    for transport in [TransportChoice::Shm, TransportChoice::Tcp] {
        let group = Communicator::local(4, &common::options(transport, None)).unwrap();
        for count in [1, 5000, 200_000] {
            let pending: Vec<_> = group
                .iter()
                .map(|rank| rank.all_reduce_async(vec![rank.rank() + 1; count], ReduceOp::Sum).unwrap())
                .collect();
            let gathered: Vec<_> =
                group.iter().map(|rank| rank.all_gather_async(vec![rank.rank()]).unwrap()).collect();
            for result in pending {
                assert_eq!(wait_all_first(result), vec![10; count]);
            }
            for result in gathered {
                assert_eq!(result.wait().unwrap(), [0, 1, 2, 3]);
            }
        }
    }
}

/// Waits without driving: the engine alone must finish the call.
fn wait_all_first<T: Send>(pending: rccl::Pending<'_, T>) -> Vec<T> {
    let give_up = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !pending.is_done() {
        assert!(std::time::Instant::now() < give_up, "the engine does not finish the call");
        std::thread::yield_now();
    }
    pending.wait().unwrap()
}

#[test]
fn blocking_calls_come_after_asynchronous_ones() {
    common::group(2, &defaults(), |communicator| {
        for round in 0..100_u64 {
            let first = communicator.all_reduce_async(vec![round; 1000], ReduceOp::Sum).unwrap();
            let mut second = [round + 1];
            communicator.all_reduce_in_place(&mut second, ReduceOp::Sum).unwrap();
            assert_eq!(second, [2 * round + 2]);
            assert!(first.is_done());
            assert_eq!(first.wait().unwrap(), vec![2 * round; 1000]);
        }
    });
}

#[test]
fn dropping_a_pending_call_waits_for_it() {
    common::group(2, &defaults(), |communicator| {
        for _ in 0..50 {
            drop(communicator.all_reduce_async(vec![1_i32; 70_000], ReduceOp::Sum).unwrap());
        }
        let mut check = [1_u8];
        communicator.all_reduce_in_place(&mut check, ReduceOp::Sum).unwrap();
        assert_eq!(check, [2]);
    });
}

#[test]
fn a_scope_borrows_and_ends_complete() {
    common::group(3, &defaults(), |communicator| {
        let (input, mut sum, mut gathered) = ([1.5_f64; 100], [0.0; 100], vec![0_u32; 3]);
        let mine = [communicator.rank()];
        communicator
            .scope(|scope| {
                scope.all_reduce(&input, &mut sum, ReduceOp::Sum)?;
                scope.all_gather(&mine, &mut gathered)
            })
            .unwrap();
        assert_eq!(sum, [4.5; 100]);
        assert_eq!(gathered, [0, 1, 2]);
    });
}

#[test]
fn threads_share_a_communicator() {
    common::group(2, &defaults(), |communicator| {
        // Each thread's calls are the same on both ranks whatever their order, since all threads make the same call.
        std::thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| {
                    for _ in 0..200 {
                        let mut value = [1_u32; 10];
                        communicator.all_reduce_in_place(&mut value, ReduceOp::Sum).unwrap();
                        assert_eq!(value, [2; 10]);
                    }
                });
            }
        });
    });
}

#[test]
fn splitting_by_parity_reversed() {
    common::group(5, &defaults(), |communicator| {
        let me = communicator.rank();
        let color = (me != 4).then_some(me % 2);
        let part = communicator.split(color, -(me as i32), &defaults()).unwrap();
        let Some(part) = part else {
            assert_eq!(me, 4);
            return;
        };
        assert_eq!(part.size(), 2);
        let mut order = [0_u32; 2];
        part.all_gather(&[me], &mut order).unwrap();
        assert_eq!(order, [2 + me % 2, me % 2]);
    });
}

#[test]
fn wrong_arguments_leave_the_communicator_alone() {
    common::group(2, &defaults(), |communicator| {
        let text = |error: Error| error.to_string();
        let mut three = [0_f32; 3];
        let error = text(communicator.all_reduce(&[1.0, 2.0], &mut three, ReduceOp::Sum).unwrap_err());
        assert_eq!(error, "output: all-reduce needs 2 elements here and got 3");
        let error = text(communicator.all_gather(&[1.0, 2.0], &mut three).unwrap_err());
        assert_eq!(error, "output: all-gather needs 4 elements here and got 3");
        let error = text(communicator.reduce_scatter_in_place(&mut three, ReduceOp::Sum).unwrap_err());
        assert!(error.contains("multiple of 2 elements"), "{error}");
        let error = text(communicator.broadcast_in_place(&mut three, 2).unwrap_err());
        assert_eq!(error, "root is rank 2, but the group has ranks 0 to 1");
        let error = text(communicator.send(&three, communicator.rank()).unwrap_err());
        assert!(error.contains("is this rank"), "{error}");
        let error = text(communicator.send(&three, 9).unwrap_err());
        assert_eq!(error, "destination is rank 9, but the group has ranks 0 to 1");
        // SAFETY: nothing is touched through the null pointer; that is what is being tested.
        let error = text(unsafe { communicator.register(std::ptr::null(), 8) }.unwrap_err());
        assert!(error.contains("null"), "{error}");
        communicator.all_reduce_in_place(&mut three, ReduceOp::Sum).unwrap();
        assert!(communicator.async_error().is_none());
    });
}

#[test]
fn null_and_overlapping_buffers_are_refused() {
    common::group(1, &defaults(), |communicator| {
        let request = rccl::Request::all_reduce(4, rccl::DataType::Float, ReduceOp::Sum);
        let mut buffer = [0_f32; 8];
        let start = buffer.as_mut_ptr().cast::<u8>();
        // SAFETY: refused before anything is touched.
        let error = unsafe { communicator.run(&request, std::ptr::null(), start) }.unwrap_err();
        assert!(error.to_string().contains("null"), "{error}");
        // SAFETY: refused before anything is touched.
        let error = unsafe { communicator.run(&request, start, start.wrapping_add(8)) }.unwrap_err();
        assert!(error.to_string().contains("overlap"), "{error}");
        assert!(communicator.async_error().is_none());
    });
}

#[test]
fn a_group_needs_sensible_numbers() {
    let id = rccl::UniqueId::from_address_and_secret(
        "127.0.0.1:1".parse().unwrap(),
        &rccl_transport::Secret::random().unwrap(),
    );
    for (rank, size) in [(0, 0), (2, 2), (0, 5000)] {
        let error = Communicator::create(&id, rank, size, &defaults()).unwrap_err();
        assert!(error.to_string().contains("rank"), "{error}");
    }
    let options = Options { slots: Some(0), ..defaults() };
    assert!(Communicator::local(1, &options).unwrap_err().to_string().contains("slots"));
}

type Call<'a> = &'a (dyn Fn(&Communicator) -> rccl::Result<()> + Sync);

/// What both ranks say when they call different things.
fn disagreement(calls: [Call<'_>; 2]) -> Vec<String> {
    common::group(2, &defaults(), |communicator| {
        let mut result = calls[communicator.rank() as usize](communicator);
        // The rank that could complete its call learns of it with a later one.
        for _ in 0..200 {
            if result.is_err() {
                break;
            }
            result = communicator.barrier();
        }
        result.unwrap_err().to_string()
    })
}

#[test]
fn mismatched_calls_name_both_sides() {
    let sum = |count: usize| {
        move |communicator: &Communicator| {
            communicator.all_reduce_in_place(&mut vec![1_f32; count], ReduceOp::Sum)
        }
    };
    for (left, right, words) in
        [(3, 4, ["of 3 float", "of 4 float"]), (3, 90_000, ["of 3 float", "of 90000 float"])]
    {
        for error in disagreement([&sum(left), &sum(right)]) {
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        }
    }
    let max = |communicator: &Communicator| communicator.all_reduce_in_place(&mut [1_f32; 3], ReduceOp::Max);
    let ints = |communicator: &Communicator| communicator.all_reduce_in_place(&mut [1_i32; 3], ReduceOp::Sum);
    let root =
        |root: u32| move |communicator: &Communicator| communicator.broadcast_in_place(&mut [1_u8; 9], root);
    let gather = |communicator: &Communicator| communicator.all_gather(&[1_f32; 3], &mut [0.0; 6]);
    for error in disagreement([&sum(3), &max]) {
        assert!(error.contains("sum") && error.contains("max"), "{error}");
    }
    for error in disagreement([&sum(3), &ints]) {
        assert!(error.contains("float") && error.contains("int32"), "{error}");
    }
    for error in disagreement([&root(0), &root(1)]) {
        assert!(error.contains("root 0") && error.contains("root 1"), "{error}");
    }
    for error in disagreement([&gather, &sum(3)]) {
        assert!(error.contains("all-gather") && error.contains("all-reduce"), "{error}");
    }
}

#[test]
fn a_send_meets_a_receive_of_another_length() {
    let errors = common::group(2, &defaults(), |communicator| {
        let result = match communicator.rank() {
            0 => communicator.send(&[half(); 5], 1),
            _ => communicator.recv(&mut [half(); 6], 0),
        };
        result.and_then(|()| communicator.barrier()).unwrap_err().to_string()
    });
    for error in errors {
        assert!(error.contains("send-recv of 5 half") && error.contains("send-recv of 6 half"), "{error}");
    }
}

fn half() -> half::f16 {
    half::f16::ONE
}

#[test]
fn different_options_are_refused_at_creation() {
    let (_root, id) = rccl::Root::start(&rccl::RootOptions::default()).unwrap();
    let errors: Vec<String> = std::thread::scope(|threads| {
        let ranks: Vec<_> = [4, 8]
            .into_iter()
            .enumerate()
            .map(|(rank, slots)| {
                let id = &id;
                threads.spawn(move || {
                    let options = Options { slots: Some(slots), ..defaults() };
                    Communicator::create(id, rank as u32, 2, &options).unwrap_err().to_string()
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    for error in errors {
        assert!(error.contains("slots is 4 on rank 0 and 8 on rank 1"), "{error}");
    }
}

#[test]
fn different_heartbeats_are_refused_at_creation() {
    // A rank that is content with rare signs of life gives no more of them than that: others would believe it dead.
    let (_root, id) = rccl::Root::start(&rccl::RootOptions::default()).unwrap();
    std::thread::scope(|threads| {
        for (rank, seconds) in [(0, 1), (1, 60)] {
            let id = &id;
            threads.spawn(move || {
                let options = Options { heartbeat: std::time::Duration::from_secs(seconds), ..defaults() };
                let error = Communicator::create(id, rank, 2, &options).unwrap_err().to_string();
                assert!(error.contains("heartbeat is 1s on rank 0 and 60s on rank 1"), "{error}");
            });
        }
    });
}

#[test]
fn abort_from_another_thread_ends_everybody() {
    for transport in [TransportChoice::Shm, TransportChoice::Tcp] {
        let errors = common::group(3, &common::options(transport, None), |communicator| {
            if communicator.rank() == 0 {
                // Rank 0 never calls; the others wait until it gives up.
                communicator.abort();
                communicator.barrier().unwrap_err()
            } else {
                communicator.barrier().unwrap_err()
            }
        });
        for error in errors {
            assert!(matches!(error, Error::Aborted { rank: 0 }), "{error}");
        }
    }
}

#[test]
fn asynchronous_calls_end_with_the_cause_and_not_with_the_channel_that_broke_after_it() {
    for _ in 0..60 {
        common::group(3, &common::options(TransportChoice::Tcp, None), |communicator| {
            if communicator.rank() == 1 {
                // Leaves at once, so that its channels break while the others hear of the abort.
                communicator.abort();
                return;
            }
            let error = match communicator.all_reduce_async(vec![1_u32; 500_000], ReduceOp::Sum) {
                Ok(pending) => {
                    // Without driving: the engine finds the broken channel.
                    while !pending.is_done() {
                        std::thread::yield_now();
                    }
                    pending.wait().unwrap_err()
                }
                Err(error) => error,
            };
            assert!(matches!(error, Error::Aborted { rank: 1 }), "{error}");
        });
    }
}

#[test]
fn a_deadline_names_the_rank_that_is_waited_for() {
    let options = Options { deadline: std::time::Duration::from_millis(300), ..defaults() };
    let (reported, wait) = std::sync::mpsc::channel();
    let (reported, wait) = (std::sync::Mutex::new(reported), std::sync::Mutex::new(wait));
    common::group(2, &options, |communicator| {
        if communicator.rank() == 1 {
            wait.lock().unwrap().recv().unwrap();
            // What rank 0 had sent before it gave up may still be enough for a call.
            let error = (0..1000).find_map(|_| communicator.barrier().err()).unwrap();
            assert!(error.to_string().contains("rank 0 failed"), "{error}");
        } else {
            let error = communicator.barrier().unwrap_err();
            assert!(
                error.to_string().contains("did not complete within 300ms: it waits for rank 1"),
                "{error}"
            );
            reported.lock().unwrap().send(()).unwrap();
            // The other rank hears of it before this one leaves.
            assert!(communicator.async_error().is_some());
        }
    });
}

#[test]
fn a_rank_that_leaves_while_it_is_needed_is_named() {
    let errors = common::group(2, &defaults(), |communicator| {
        (communicator.rank() == 1).then(|| communicator.barrier().unwrap_err().to_string())
    });
    let error = errors[1].as_ref().unwrap();
    assert!(error.contains("rank 0 has left") || error.contains("rank 0 is lost"), "{error}");
}

#[test]
fn registrations_are_counted() {
    common::group(1, &defaults(), |communicator| {
        let buffer = [0_u8; 64];
        // SAFETY: the buffer outlives the guard.
        let guard = unsafe { communicator.register(buffer.as_ptr(), buffer.len()) }.unwrap();
        assert_eq!(communicator.registrations(), 1);
        drop(guard);
        assert_eq!(communicator.registrations(), 0);
    });
}

/// The root of a broadcast only publishes: it cannot see what the others do while it does. They learn it when it leaves.
#[test]
fn roots_that_all_thought_themselves_the_root_are_told() {
    for transport in [TransportChoice::Shm, TransportChoice::Tcp] {
        let mut ranks = Communicator::local(2, &Options { transport, ..defaults() }).unwrap();
        std::thread::scope(|threads| {
            for communicator in &ranks {
                threads.spawn(|| {
                    communicator.broadcast_in_place(&mut [0.0_f32; 10], communicator.rank()).unwrap()
                });
            }
        });
        drop(ranks.remove(0));
        let give_up = std::time::Instant::now() + std::time::Duration::from_secs(20);
        let error = loop {
            if let Some(error) = ranks[0].async_error() {
                break error;
            }
            assert!(std::time::Instant::now() < give_up, "{transport:?}: nobody noticed");
            std::thread::yield_now();
        };
        let text = error.to_string();
        assert!(
            matches!(error, Error::Mismatch { .. }) && text.contains("root 0") && text.contains("root 1"),
            "{text}"
        );
    }
}

#[test]
fn split_with_options_that_make_no_sense_on_one_rank_fails_on_all_at_once() {
    let ranks = Communicator::local(2, &defaults()).unwrap();
    std::thread::scope(|threads| {
        for communicator in &ranks {
            threads.spawn(move || {
                let slots = (communicator.rank() == 0).then_some(99);
                let error = communicator.split(Some(0), 0, &Options { slots, ..defaults() }).unwrap_err();
                match communicator.rank() {
                    0 => assert!(matches!(error, Error::Argument { .. }), "{error}"),
                    _ => assert!(matches!(error, Error::PeerFailed { rank: 0, .. }), "{error}"),
                }
            });
        }
    });
}
