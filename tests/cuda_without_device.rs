//! CUDA communicators with a driver library that has no device: creation fails on all ranks or on none, and calls are enqueued in
//! the right order. Its own test runner, since the library is chosen once a process.

#[path = "../rccl-transport/tests/fake_cuda/compile.rs"]
mod compile;

mod common;

use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    path::Path,
    process::ExitCode,
};

use libtest_mimic::{Arguments, Trial};
use rccl::{DataType, Error, ReduceOp, TransportChoice, cuda::CudaOptions};
use rccl_transport::cuda::{Device, DeviceMemory, Driver, LIBRARY_VARIABLE, Stream};

fn main() -> ExitCode {
    let (path, _folder) = compile::compile("creation", &[]);
    // SAFETY: no other thread runs yet.
    unsafe { std::env::set_var(LIBRARY_VARIABLE, &path) };
    let fake = Fake::open(&path);
    let mut arguments = Arguments::from_args();
    // What the library counts, it counts for the process.
    arguments.test_threads = Some(1);
    let trials = vec![
        Trial::test("a_failure_is_every_ranks_and_leaves_nothing", move || {
            failures(&fake);
            Ok(())
        }),
        Trial::test("calls_replays_and_captures_follow_each_other", move || {
            order(&fake);
            Ok(())
        }),
        Trial::test("options_that_make_no_sense_are_every_ranks_failure", move || {
            nonsense();
            Ok(())
        }),
    ];
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// The library's handle.
#[derive(Clone, Copy)]
struct Fake(*mut c_void);

// SAFETY: the handle is only passed to `dlsym`, which may be called from any thread.
unsafe impl Send for Fake {}
// SAFETY: as for `Send`.
unsafe impl Sync for Fake {}

impl Fake {
    fn open(path: &Path) -> Self {
        let name = CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: the library was just compiled for this.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null());
        Self(handle)
    }

    fn symbol(self, name: &CStr) -> *mut c_void {
        // SAFETY: the handle is open; the name is a C string.
        let symbol = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!symbol.is_null(), "{name:?}");
        symbol
    }

    fn fail_on(self, device: c_int, name: &CStr, code: u32) {
        // SAFETY: the library defines the function so.
        let fail: extern "C" fn(c_int, *const c_char, u32) =
            unsafe { std::mem::transmute(self.symbol(c"fake_fail_on")) };
        fail(device, name.as_ptr(), code);
    }

    /// What was enqueued since the last time.
    fn enqueued(self) -> String {
        // SAFETY: the library defines the function so.
        let text: extern "C" fn() -> *const c_char =
            unsafe { std::mem::transmute(self.symbol(c"fake_enqueued")) };
        // SAFETY: the library gives a C string, which no other thread changes while the test enqueues.
        let enqueued = unsafe { CStr::from_ptr(text()) }.to_string_lossy().into_owned();
        // SAFETY: the library defines the function so.
        let forget: extern "C" fn() = unsafe { std::mem::transmute(self.symbol(c"fake_forget")) };
        forget();
        enqueued
    }

    fn capture(self, status: c_int, id: u64) {
        // SAFETY: the library defines the function so.
        let capture: extern "C" fn(c_int, u64) = unsafe { std::mem::transmute(self.symbol(c"fake_capture")) };
        capture(status, id);
    }

    fn live_objects(self) -> c_int {
        // SAFETY: the library defines the function so.
        let count: extern "C" fn() -> c_int =
            unsafe { std::mem::transmute(self.symbol(c"fake_live_objects")) };
        count()
    }
}

fn failures(fake: &Fake) {
    let results = common::group(2, &common::options(TransportChoice::Auto, None), |communicator| {
        let rank = communicator.rank();
        let mut seen = Vec::new();
        // Before sharing has begun, after it, and while the last things are allocated.
        for (function, text) in [
            (c"cuModuleLoadData", "cuModuleLoadData"),
            (c"cuMemHostRegister_v2", "cuMemHostRegister_v2"),
            (c"cuMemAlloc_v2", "cuMemAlloc_v2"),
        ] {
            communicator.barrier().unwrap();
            if rank == 1 {
                fake.fail_on(1, function, 999);
            }
            communicator.barrier().unwrap();
            let error = communicator.cuda(rank, &CudaOptions::default()).unwrap_err();
            seen.push((text, error));
        }
        communicator.barrier().unwrap();
        if rank == 1 {
            fake.fail_on(-1, c"", 0);
        }
        communicator.barrier().unwrap();
        // The communicator is as it was.
        let cuda = communicator.cuda(rank, &CudaOptions::default()).unwrap();
        assert!(cuda.describe().device_bytes <= 32 << 20, "{}", cuda.describe());
        communicator.barrier().unwrap();
        drop(cuda);
        seen
    });
    for (rank, seen) in results.into_iter().enumerate() {
        for (function, error) in seen {
            let (message, named) = (error.to_string(), matches!(error, Error::PeerFailed { rank: 1, .. }));
            assert!(message.contains(function) && message.contains("999"), "rank {rank}: {message}");
            assert_eq!(named, rank == 0, "rank {rank}: {message}");
        }
    }
    assert_eq!(fake.live_objects(), 0);
}

fn nonsense() {
    let results = common::group(2, &common::options(TransportChoice::Auto, None), |communicator| {
        let ring = CudaOptions { algorithm: Some(rccl::Algorithm::Ring), ..CudaOptions::default() };
        let wrong = if communicator.rank() == 1 { ring } else { CudaOptions::default() };
        let differs = CudaOptions { ll_bytes: Some(8 << communicator.rank()), ..CudaOptions::default() };
        [&wrong, &differs].map(|options| communicator.cuda(communicator.rank(), options).unwrap_err())
    });
    for (rank, [wrong, differs]) in results.into_iter().enumerate() {
        assert!(wrong.to_string().contains("not ring"), "rank {rank}: {wrong}");
        assert!(matches!(differs, Error::Options { rank: 1, .. }), "rank {rank}: {differs}");
    }
}

/// Letters as in the library: W waits, X waits for an event outside of the capture, R records, K a kernel, N a node that
/// records, D a dependency of that node.
fn order(fake: &Fake) {
    const OPEN: c_int = 1;
    const INVALID: c_int = 2;
    common::group(2, &common::options(TransportChoice::Auto, None), |communicator| {
        let rank = communicator.rank();
        let cuda = communicator.cuda(rank, &CudaOptions::default()).unwrap();
        communicator.barrier().unwrap();
        if rank == 0 {
            let context = Device::by_ordinal(&Driver::open().unwrap(), 0).unwrap().primary_context().unwrap();
            let memory = DeviceMemory::new(&context, 4096).unwrap();
            let stream = Stream::new(&context).unwrap();
            let call = |stream: *mut c_void| {
                let (input, output) = (memory.start(), memory.start() + 2048);
                // SAFETY: the library's kernels touch nothing.
                unsafe { cuda.all_reduce(input, output, 8, DataType::Float, ReduceOp::Sum, stream) }
            };
            let enqueued = || {
                call(stream.raw().0).unwrap();
                fake.enqueued()
            };
            fake.enqueued();
            assert_eq!(enqueued(), "WKR");
            fake.capture(OPEN, 7);
            assert_eq!(enqueued(), "XKRN", "the first of a graph");
            assert_eq!(enqueued(), "WKRD", "a later one moves the node along");
            fake.capture(OPEN, 8);
            assert_eq!(enqueued(), "XKRN", "another graph");
            fake.capture(INVALID, 8);
            assert!(call(stream.raw().0).unwrap_err().to_string().contains("capture again"));
            fake.capture(0, 0);
            assert_eq!(enqueued(), "WKR", "the broken capture has left the communicator as it was");
            let error = call(std::ptr::without_provenance_mut(0xf0e1)).unwrap_err();
            assert!(error.to_string().contains("is not a stream of the primary context"), "{error}");
            assert!(cuda.async_error().is_none());
            assert_eq!(fake.enqueued(), "");
        }
        communicator.barrier().unwrap();
    });
}
