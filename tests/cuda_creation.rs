//! How a group gets its devices, with a driver library that has none: it fails on all ranks or on none. Its own test runner,
//! since the library is chosen once a process.

#[path = "../rccl-transport/tests/fake_cuda/compile.rs"]
mod compile;

mod common;

use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    path::Path,
    process::ExitCode,
};

use libtest_mimic::{Arguments, Trial};
use rccl::{Error, TransportChoice, cuda::CudaOptions};
use rccl_transport::cuda::LIBRARY_VARIABLE;

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
