//! What ranks tell of themselves and their devices, and whether these go together.

use super::{CudaOptions, shapes::Room};
use crate::{Error, Result};

/// What all ranks must have been given alike.
const AGREED: [&str; 4] =
    ["CudaOptions::protocol", "CudaOptions::algorithm", "CudaOptions::ll_bytes", "CudaOptions::bulk_bytes"];

/// A rank's report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seat {
    agreed: [String; AGREED.len()],
    pub(super) host: String,
    pub(super) process: String,
    pub(super) device: String,
    /// Hardware queues between the process and the device.
    pub(super) connections: u32,
    pub(super) room: Room,
}

impl Seat {
    pub(super) fn new(
        options: &CudaOptions,
        [host, process, device]: [String; 3],
        connections: u32,
        room: Room,
    ) -> Self {
        fn or_auto(value: Option<impl ToString>) -> String {
            value.map_or_else(|| "auto".to_owned(), |value| value.to_string())
        }
        let agreed = [
            or_auto(options.protocol),
            or_auto(options.algorithm),
            or_auto(options.ll_bytes),
            or_auto(options.bulk_bytes),
        ];
        Self { agreed, host, process, device, connections, room }
    }

    pub(super) fn report(&self) -> String {
        let Room { ll, stripe, relay } = self.room;
        let numbers = [self.connections, ll, stripe, relay].map(|number| number.to_string());
        let texts = [&self.host, &self.process, &self.device].map(String::clone);
        [&self.agreed[..], &texts, &numbers].concat().join("\n")
    }

    pub(super) fn parse(report: &[u8]) -> Self {
        let report = String::from_utf8_lossy(report);
        let mut lines = report.lines();
        let mut text = || lines.next().unwrap_or_default().to_owned();
        let agreed = [text(), text(), text(), text()];
        let [host, process, device] = [text(), text(), text()];
        let mut number = || text().parse().unwrap_or(0);
        let connections = number();
        let room = Room { ll: number(), stripe: number(), relay: number() };
        Self { agreed, host, process, device, connections, room }
    }

    /// Ranks that share its device.
    pub(super) fn sharing(&self, seats: &[Self]) -> u32 {
        seats.iter().filter(|seat| seat.device == self.device).count() as u32
    }

    /// What is left of its device for one rank's kernels.
    fn share(&self, seats: &[Self]) -> Room {
        let sharing = self.sharing(seats).max(1);
        let Room { ll, stripe, relay } = self.room;
        Room { ll: ll / sharing, stripe: stripe / sharing, relay: relay / sharing }
    }
}

/// What every rank has at least, so that all launch alike.
pub(super) fn common_room(seats: &[Seat]) -> Room {
    let each = seats.iter().map(|seat| seat.share(seats));
    let least = |room: Room, other: Room| Room {
        ll: room.ll.min(other.ll),
        stripe: room.stripe.min(other.stripe),
        relay: room.relay.min(other.relay),
    };
    each.reduce(least).unwrap_or(Room { ll: 0, stripe: 0, relay: 0 })
}

/// Streams of one rank that may stand waiting: the caller's and those of the copy engines.
const WAITING_STREAMS: u32 = 3;

/// The ranks of this one's process that share its device, itself included.
fn together(seat: &Seat, seats: &[Seat]) -> u32 {
    let together = |other: &&Seat| other.device == seat.device && other.process == seat.process;
    seats.iter().filter(together).count() as u32
}

/// Whether copy engines serve one rank each. Ranks of a process that share a device share its queues too: a copy that waits
/// for a peer then holds up all copies behind it, among them those that the peer may do before it calls. Ranks of other
/// processes have queues of their own.
pub(super) fn copies_are_apart(seats: &[Seat]) -> bool {
    seats.iter().all(|seat| together(seat, seats) <= 1)
}

/// Whether no stream that waits stops another rank's stream for sharing a hardware queue with it. One rank alone makes
/// progress in a single queue, since it enqueues everything in an order in which it can be done.
fn has_queues(seats: &[Seat]) -> bool {
    seats.iter().all(|seat| {
        let ranks = together(seat, seats);
        ranks <= 1 || ranks * WAITING_STREAMS <= seat.connections
    })
}

/// Whether all go together, which every rank can tell from all reports, alike but for `allow_shared_gpu`, which is each
/// process's own affair.
pub(super) fn check(seats: &[Seat], options: &CudaOptions) -> Result<()> {
    for (rank, seat) in seats.iter().enumerate() {
        for (what, (ours, theirs)) in AGREED.into_iter().zip(seats[0].agreed.iter().zip(&seat.agreed)) {
            if ours != theirs {
                let (ours, theirs) = (ours.clone(), theirs.clone());
                return Err(Error::Options { rank: rank as u32, what, ours, theirs });
            }
        }
        if seat.host != seats[0].host {
            let reason = format!(
                "rank {rank} lives on another host than rank 0 (or in another container: then set \
                 RCCL_HOSTID alike); devices reduce within one host, so split the communicator by host"
            );
            return Err(Error::Argument { what: "cuda: communicator", reason });
        }
        let Some(other) = seats[..rank].iter().position(|other| other.device == seat.device) else {
            continue;
        };
        let room = seat.share(seats);
        let reason = if !options.allow_shared_gpu {
            "; give each its own, or set CudaOptions::allow_shared_gpu (RCCL_ALLOW_SHARED_GPU=1)"
        } else if room.relay.min(room.ll).min(room.stripe) == 0 {
            "; it is too small for the kernels of all of them"
        } else {
            continue;
        };
        let reason = format!("ranks {other} and {rank} share a device{reason}");
        return Err(Error::Argument { what: "cuda: device", reason });
    }
    if options.protocol == Some(super::CudaProtocol::Bulk) && !has_queues(seats) {
        let reason = "bulk between ranks that share a device needs 3 hardware queues for each: set the environment \
                      variable CUDA_DEVICE_MAX_CONNECTIONS to 32 before the program starts, or name no protocol";
        return Err(Error::Argument { what: "CudaOptions::protocol", reason: reason.to_owned() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: Room = Room { ll: 264, stripe: 132, relay: 132 };

    fn seat(host: &str, process: &str, device: &str) -> Seat {
        Seat::new(&CudaOptions::default(), [host, process, device].map(str::to_owned), 8, ROOM)
    }

    fn refused(seats: &[Seat], options: &CudaOptions) -> String {
        check(seats, options).unwrap_err().to_string()
    }

    #[test]
    fn a_report_survives_the_way() {
        let options = CudaOptions {
            algorithm: Some(rccl_core::Algorithm::Relay),
            ll_bytes: Some(512),
            ..CudaOptions::default()
        };
        let seat = Seat::new(&options, ["host", "process", "device"].map(str::to_owned), 8, ROOM);
        assert_eq!(Seat::parse(seat.report().as_bytes()), seat);
    }

    #[test]
    fn groups_that_cannot_work_are_refused_with_the_ranks_named() {
        let own = CudaOptions::default();
        let shared = CudaOptions { allow_shared_gpu: true, ..own.clone() };
        check(&[seat("a", "p", "0"), seat("a", "q", "1")], &own).unwrap();
        let apart = refused(&[seat("a", "p", "0"), seat("b", "q", "0")], &own);
        assert!(apart.contains("rank 1 lives on another host"), "{apart}");
        let together = [seat("a", "p", "0"), seat("a", "p", "1"), seat("a", "p", "0")];
        assert!(refused(&together, &own).contains("ranks 0 and 2 share a device"));
        check(&together, &shared).unwrap();
        let mut other = seat("a", "p", "1");
        other.agreed[2] = "512".to_owned();
        let error = check(&[seat("a", "p", "0"), other], &own).unwrap_err();
        assert!(matches!(error, Error::Options { rank: 1, what: "CudaOptions::ll_bytes", .. }), "{error}");
        let tiny = Seat { room: Room { ll: 1, ..ROOM }, ..seat("a", "p", "0") };
        assert!(refused(&[tiny.clone(), tiny], &shared).contains("too small"));
    }

    #[test]
    fn shared_devices_share_their_room_and_their_queues() {
        let alone = [seat("a", "p", "0"), seat("a", "p", "1")];
        assert_eq!(common_room(&alone), ROOM);
        let shared: Vec<_> = (0..3).map(|_| seat("a", "p", "0")).collect();
        assert_eq!(common_room(&shared), Room { ll: 88, stripe: 44, relay: 44 });
        let narrow = |seats: &[Seat]| -> Vec<Seat> {
            seats.iter().map(|seat| Seat { connections: 1, ..seat.clone() }).collect()
        };
        assert!(has_queues(&narrow(&alone)) && has_queues(&shared[..2]));
        assert!(!has_queues(&shared) && !has_queues(&narrow(&shared[..2])));
        assert!(copies_are_apart(&alone) && !copies_are_apart(&shared[..2]));
        let processes = [seat("a", "p", "0"), seat("a", "q", "0")];
        assert!(has_queues(&narrow(&processes)) && copies_are_apart(&processes));
        let bulk = CudaOptions {
            protocol: Some(super::super::CudaProtocol::Bulk),
            allow_shared_gpu: true,
            ..CudaOptions::default()
        };
        let reported = shared.iter().map(|seat| {
            let texts = [&seat.host, &seat.process, &seat.device].map(String::clone);
            Seat::new(&bulk, texts, seat.connections, seat.room)
        });
        assert!(refused(&reported.collect::<Vec<_>>(), &bulk).contains("CUDA_DEVICE_MAX_CONNECTIONS"));
    }
}
