//! What every transport promises, as one suite run over all of them. A transport joins by one line below.

mod cases;
mod endings;
mod strangers;
mod subject;

use subject::Subject;

/// Runs every case over what `$subjects` gives.
macro_rules! conformance {
    ($($transport:ident: $subjects:expr;)*) => { $(mod $transport {
        conformance!(@run $subjects;
            cases::sizes, cases::order, cases::depth, cases::groups, cases::a_single_receive_takes_any_tag,
            cases::late_receives_hold_the_sender_back, cases::both_ways, cases::flush, cases::registration,
            cases::descriptors_tell_when_to_poll, endings::truncation, endings::sender_dies, endings::receiver_dies,
            endings::what_was_sent_arrives_after_the_sender_is_gone, endings::long_messages_arrive_after_the_sender_is_gone, endings::nobody_listens,
            strangers::strangers_are_harmless, strangers::the_secret_is_needed,
        );
        #[test]
        #[ignore = "takes up to 4 GiB of memory, and a while"]
        fn beyond_2_gib() {
            crate::subject::run(|| $subjects, crate::cases::beyond_2_gib);
        }
        conformance!(@run_alone $subjects; endings::nothing_is_left_behind,);
    })* };
    (@$run:ident $subjects:expr; $($file:ident::$case:ident,)*) => { $(
        #[test]
        fn $case() {
            crate::subject::$run(|| $subjects, crate::$file::$case);
        }
    )* };
}

conformance! {
    tcp_v4: crate::Subject::tcp(rccl_transport::tcp::Options::loopback());
    tcp_v4_one_socket: crate::Subject::tcp(rccl_transport::tcp::Options::loopback().with_sockets(1));
    tcp_v4_four_sockets: crate::Subject::tcp(rccl_transport::tcp::Options::loopback().with_sockets(4));
    tcp_v6: crate::Subject::tcp(rccl_transport::tcp::Options::loopback_v6());
    shm: crate::Subject::shm(|transport| transport);
    shm_without_lending: crate::Subject::shm(rccl_transport::shm::Transport::without_lending);
    verbs: crate::Subject::verbs(1);
    verbs_two_queue_pairs: crate::Subject::verbs(2);
    sim: crate::Subject::sims(&rccl_transport::sim::Settings::default());
    sim_registered_deep: crate::Subject::sims(&rccl_transport::sim::Settings {
        needs_registration: true,
        depth: 64,
        delay: 0,
        jitter: 3,
        ..Default::default()
    });
}
