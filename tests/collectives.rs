//! Every collective, algorithm, type and operator between threads, against the oracle, bit for bit.

mod common;

use rccl::{Algorithm, Collective, DataType, Options, Rank, ReduceOp, Request, Scalar, TransportChoice};
use rccl_core::{Group, oracle};

const TRANSPORTS: [TransportChoice; 2] = [TransportChoice::Shm, TransportChoice::Tcp];

/// The counts that a group of `size` ranks is tried with.
fn counts(size: u32) -> Vec<u64> {
    let size = u64::from(size);
    vec![0, 1, size - 1, size, size + 1, 17, 1009, 40_009]
}

/// Runs `request` on every rank, out of place and in place, with random inputs, and compares with `expected`, which gets
/// the inputs and a rank.
fn run_and_compare(
    communicator: &rccl::Communicator,
    request: &Request,
    seed: u64,
    expected: impl Fn(&[Vec<u8>], u32) -> Vec<u8>,
) {
    let group = Group::new(communicator.size(), communicator.rank()).unwrap();
    let element = request.data_type.size_bytes();
    let inputs: Vec<Vec<u8>> = (0..communicator.size())
        .map(|rank| common::bytes(seed * 1000 + u64::from(rank), request.input_len(group) as usize * element))
        .collect();
    let mine = &inputs[communicator.rank() as usize];
    let expected = expected(&inputs, communicator.rank());
    let case = || format!("{request:?} on rank {} of {}", communicator.rank(), communicator.size());

    // Out of place, with bytes around the output that must stay.
    let mut output = vec![0xa5; expected.len() + 128];
    // SAFETY: both buffers have the request's lengths.
    unsafe { communicator.run(request, mine.as_ptr(), output[64..].as_mut_ptr()) }.unwrap();
    let result = &output[64..64 + expected.len()];
    assert_eq!(oracle::wrong(request.data_type, result, &expected), 0, "{}", case());
    assert!(
        output[..64].iter().chain(&output[64 + expected.len()..]).all(|&byte| byte == 0xa5),
        "{}",
        case()
    );

    let Some(offset) = request.in_place_offset(group) else { return };
    let offset = offset as usize * element;
    let gathers = request.collective == Collective::AllGather;
    let (input_at, output_at) = if gathers { (offset, 0) } else { (0, offset) };
    let mut buffer = vec![0; mine.len().max(expected.len())];
    buffer[input_at..input_at + mine.len()].copy_from_slice(mine);
    let start = buffer.as_mut_ptr();
    // SAFETY: the buffer has the longer of the two lengths, and the parts lie as in place requires.
    unsafe { communicator.run(request, start.wrapping_add(input_at), start.wrapping_add(output_at)) }
        .unwrap();
    let result = &buffer[output_at..output_at + expected.len()];
    assert_eq!(oracle::wrong(request.data_type, result, &expected), 0, "in place: {}", case());
}

fn reduced(request: &Request, algorithm: Algorithm, inputs: &[Vec<u8>], rank: u32) -> Vec<u8> {
    let inputs: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
    let op = request.op.unwrap();
    match request.collective {
        Collective::AllReduce => oracle::all_reduce(algorithm, request.data_type, op, &inputs),
        _ => oracle::reduce_scatter(algorithm, request.data_type, op, &inputs).swap_remove(rank as usize),
    }
}

#[test]
fn all_reduce_and_reduce_scatter_match_the_oracle() {
    for transport in TRANSPORTS {
        for algorithm in Algorithm::ALL {
            for size in [1, 2, 3, 5] {
                common::group(size, &common::options(transport, Some(algorithm)), |communicator| {
                    for count in counts(size) {
                        let request = Request::all_reduce(count, DataType::Float, ReduceOp::Sum);
                        run_and_compare(communicator, &request, count, |inputs, rank| {
                            reduced(&request, algorithm, inputs, rank)
                        });
                        let request = Request::reduce_scatter(count, DataType::Float, ReduceOp::Sum);
                        let scatter =
                            if algorithm == Algorithm::Ring { algorithm } else { Algorithm::Oneshot };
                        run_and_compare(communicator, &request, count, |inputs, rank| {
                            reduced(&request, scatter, inputs, rank)
                        });
                    }
                });
            }
        }
    }
}

#[test]
fn every_type_and_operator_matches_the_oracle() {
    let scalars = |data_type: DataType| match data_type.is_integer() {
        true => ReduceOp::MulSum(Scalar::from(-3_i64)),
        false => ReduceOp::MulSum(Scalar::from(0.3)),
    };
    for algorithm in Algorithm::ALL {
        common::group(3, &common::options(TransportChoice::Shm, Some(algorithm)), |communicator| {
            for data_type in DataType::ALL {
                let all = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max, ReduceOp::Avg];
                for op in all.into_iter().chain([scalars(data_type)]) {
                    for count in [5, 3001] {
                        let request = Request::all_reduce(count, data_type, op);
                        run_and_compare(communicator, &request, count, |inputs, rank| {
                            reduced(&request, algorithm, inputs, rank)
                        });
                    }
                }
            }
        });
    }
}

#[test]
fn all_gather_and_broadcast_move_the_right_bytes() {
    for transport in TRANSPORTS {
        for algorithm in [Algorithm::Oneshot, Algorithm::Ring] {
            for size in [1, 2, 4, 5] {
                common::group(size, &common::options(transport, Some(algorithm)), |communicator| {
                    for count in counts(size) {
                        let request = Request::all_gather(count, DataType::Int32);
                        run_and_compare(communicator, &request, count, |inputs, _| inputs.concat());
                        for root in 0..size {
                            let request = Request::broadcast(count, DataType::Double, Rank(root));
                            run_and_compare(communicator, &request, count, |inputs, _| {
                                inputs[root as usize].clone()
                            });
                        }
                    }
                });
            }
        }
    }
}

#[test]
fn send_recv_in_rings_pairs_and_to_itself() {
    for transport in TRANSPORTS {
        common::group(4, &common::options(transport, None), |communicator| {
            let (me, size) = (communicator.rank(), communicator.size());
            for count in [0, 1, 13, 100_003] {
                let input: Vec<u64> = (0..count).map(|i| i * 10 + u64::from(me)).collect();
                let from_rank = |rank: u32| (0..count).map(|i| i * 10 + u64::from(rank)).collect::<Vec<_>>();
                for distance in 0..size {
                    let (to, from) = ((me + distance) % size, (me + size - distance) % size);
                    let mut output = vec![u64::MAX; count as usize];
                    communicator.send_recv(&input, to, &mut output, from).unwrap();
                    assert_eq!(output, from_rank(from));
                }
                let partner = me ^ 1;
                let mut output = vec![u64::MAX; count as usize];
                if me < partner {
                    communicator.send(&input, partner).unwrap();
                    communicator.recv(&mut output, partner).unwrap();
                } else {
                    communicator.recv(&mut output, partner).unwrap();
                    communicator.send(&input, partner).unwrap();
                }
                assert_eq!(output, from_rank(partner));
            }
        });
    }
}

#[test]
fn sixteen_ranks_on_few_cores() {
    for transport in TRANSPORTS {
        common::group(16, &common::options(transport, None), |communicator| {
            for count in [1, 1000, 300_000] {
                let request = Request::all_reduce(count, DataType::Int64, ReduceOp::Sum);
                run_and_compare(communicator, &request, count, |inputs, rank| {
                    reduced(&request, Algorithm::Relay, inputs, rank)
                });
            }
        });
    }
}

#[test]
fn large_messages_pass_through_small_slots() {
    for transport in TRANSPORTS {
        let options = Options { slot_bytes: Some(4096), slots: Some(1), ..common::options(transport, None) };
        common::group(3, &options, |communicator| {
            for count in [1_000, 1_000_003] {
                let request = Request::all_reduce(count, DataType::Bfloat16, ReduceOp::Avg);
                run_and_compare(communicator, &request, count, |inputs, rank| {
                    reduced(&request, Algorithm::Relay, inputs, rank)
                });
            }
        });
    }
}

/// A rank that has published everything still has to hand it to the network while it waits for the others' results: the
/// last slots do not fit the sockets' buffers.
#[test]
fn slots_larger_than_socket_buffers() {
    let options = Options { slot_bytes: Some(16 << 20), ..common::options(TransportChoice::Tcp, None) };
    common::group(2, &options, |communicator| {
        let request = Request::all_reduce(20_000_003, DataType::Float, ReduceOp::Sum);
        run_and_compare(communicator, &request, 1, |inputs, rank| {
            reduced(&request, Algorithm::Relay, inputs, rank)
        });
    });
}

#[test]
fn two_communicators_take_turns() {
    let shm = rccl::Communicator::local(2, &common::options(TransportChoice::Shm, None)).unwrap();
    let tcp = rccl::Communicator::local(2, &common::options(TransportChoice::Tcp, None)).unwrap();
    std::thread::scope(|threads| {
        for (shm, tcp) in shm.iter().zip(&tcp) {
            threads.spawn(move || {
                for round in 0..50_u32 {
                    let mut buffer = vec![shm.rank() + round; 3000];
                    shm.all_reduce_in_place(&mut buffer, ReduceOp::Sum).unwrap();
                    tcp.all_reduce_in_place(&mut buffer, ReduceOp::Sum).unwrap();
                    assert!(buffer.iter().all(|&value| value == 2 * (2 * round + 1)));
                }
            });
        }
    });
}
