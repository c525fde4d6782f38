//! What goes wrong: aborts, wrong arguments, drops, and what must not be left behind.

use std::time::{Duration, Instant};

use libtest_mimic::Failed;
use rccl::{
    Algorithm, DataType, Error, ReduceOp,
    cuda::{CudaOptions, CudaProtocol},
};
use rccl_transport::{
    Region,
    cuda::{Device, DeviceMemory, Driver, HostRegistration, Stream},
};

use crate::case::{Case, Side, on_devices, shared};

/// Waiting work must be gone within this time after an abort or a death.
pub(crate) const ABORT_LIMIT: Duration = Duration::from_secs(2);

/// Rank 0 alone calls, so that its device waits; another thread of rank 1 aborts.
pub(crate) fn aborts(protocol: CudaProtocol, algorithm: Option<Algorithm>) -> Result<(), Failed> {
    let options = CudaOptions { protocol: Some(protocol), algorithm, ..shared() };
    on_devices(2, &options, |side| {
        let memory = side.memory(32 << 20)?;
        let count = if protocol == CudaProtocol::Ll { 1000 } else { 8 << 20 };
        let case = Case::sum(memory.start(), memory.start(), count, 0);
        side.barrier()?;
        if side.communicator.rank() == 0 {
            side.enqueue(&case, &side.stream)?;
            assert!(!side.stream.is_idle()?, "it waits for rank 1");
        }
        // Rank 1 may abort before this returns here.
        let met = side.barrier();
        assert!(matches!(met, Ok(()) | Err(Error::Aborted { rank: 1 })), "{met:?}");
        let aborted = Instant::now();
        if side.communicator.rank() == 1 {
            std::thread::scope(|threads| {
                threads.spawn(|| side.cuda.abort());
            });
        }
        ended(side, &case, aborted)?;
        let error = side.enqueue(&case, &side.stream).unwrap_err();
        assert!(matches!(error, Error::Aborted { rank: 1 }), "{error}");
        Ok(())
    });
    Ok(())
}

/// Waits until the failure is known and the device idle, and sees that its context still works.
pub(crate) fn ended(side: &Side, case: &Case, since: Instant) -> rccl::Result<()> {
    side.stream.wait(ABORT_LIMIT)?;
    while side.cuda.async_error().is_none() {
        assert!(since.elapsed() < ABORT_LIMIT, "the cause is known everywhere");
        std::thread::yield_now();
    }
    assert!(since.elapsed() < ABORT_LIMIT, "{:?}", since.elapsed());
    side.upload(case.input, &[1, 2, 3])?;
    assert_eq!(side.download(case.input, 3)?, [1, 2, 3]);
    Ok(())
}

pub(crate) fn wrong_arguments(ranks: u32) -> Result<(), Failed> {
    on_devices(ranks, &shared(), |side| {
        let memory = side.memory(4096)?;
        let (start, host) = (memory.start(), [0_f32; 4]);
        let freed = DeviceMemory::new(&side.context, 64 << 20)?.start();
        let region = Region::zeroed(4096);
        let registered = HostRegistration::new(&side.context, &region)?;
        let managed = Managed::new(side)?;
        let elsewhere = Elsewhere::new(side)?;
        side.barrier()?;
        let good = Case::sum(start, start, 4, 0);
        let mut wrong = vec![
            (Case { input: host.as_ptr().addr() as u64, ..good }, "not memory of any device"),
            (Case { input: registered.device_start(&side.context)?, ..good }, "is host memory"),
            (Case { input: managed.0, ..good }, "is managed memory"),
            (Case { input: freed, ..good }, "not memory of any device"),
            (Case { input: start + 2, output: start + 2, ..good }, "not a multiple of 4"),
            (Case { output: start + 8, ..good }, "overlap"),
            (Case { count: 1 << 40, ..good }, "not memory of any device"),
            (Case { data_type: DataType::Int32, ..good }, "use host buffers"),
            (Case { op: ReduceOp::Max, ..good }, "use host buffers"),
        ];
        if let Some(Elsewhere { memory, .. }) = &elsewhere {
            wrong.push((Case { input: memory.start(), ..good }, "is memory of device"));
        }
        for (case, text) in wrong {
            let error = side.enqueue(&case, &side.stream).unwrap_err();
            assert!(matches!(&error, Error::Argument { .. }) && error.to_string().contains(text), "{error}");
        }
        if let Some(Elsewhere { stream, .. }) = &elsewhere {
            let error = side.enqueue(&good, stream).unwrap_err();
            assert!(error.to_string().contains("is not a stream of the primary context"), "{error}");
        }
        side.run(&Case { output: start + 2048, ..good })?;
        side.barrier()
    });
    Ok(())
}

/// Memory and a stream of another device, if there is one.
struct Elsewhere {
    stream: Stream,
    memory: DeviceMemory,
}

impl Elsewhere {
    fn new(side: &Side) -> rccl::Result<Option<Self>> {
        let driver = Driver::open()?;
        let own = side.context.device().ordinal();
        let Some(other) = (0..Device::count(&driver)?).find(|&ordinal| ordinal != own) else {
            return Ok(None);
        };
        let context = Device::by_ordinal(&driver, other)?.primary_context()?;
        Ok(Some(Self { stream: Stream::new(&context)?, memory: DeviceMemory::new(&context, 4096)? }))
    }
}

/// Memory that moves between host and device.
struct Managed(u64);

impl Managed {
    fn new(side: &Side) -> rccl::Result<Self> {
        const ATTACH_GLOBAL: u32 = 1;
        let _guard = side.context.enter()?;
        let mut start = 0_u64;
        // SAFETY: the driver is loaded; this only finds its handle.
        let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
        // SAFETY: the handle is open, or null, which then finds the symbol nowhere.
        let symbol = unsafe { libc::dlsym(library, c"cuMemAllocManaged".as_ptr()) };
        assert!(!symbol.is_null());
        // SAFETY: the driver's documentation gives this type. The few bytes are the driver's until the process ends.
        let allocate: extern "C" fn(*mut u64, usize, u32) -> u32 = unsafe { std::mem::transmute(symbol) };
        assert_eq!(allocate(&raw mut start, 4096, ATTACH_GLOBAL), 0);
        Ok(Self(start))
    }
}

/// Communicators are made, used and dropped while the calls of another one are in progress: taking and giving back memory
/// must not wait for kernels that wait for a rank which cannot launch meanwhile. Streams are made before, since the driver
/// may let that wait as well.
pub(crate) fn made_beside_work(ranks: u32) -> Result<(), Failed> {
    on_devices(ranks, &shared(), |side| {
        let (memory, second) = (side.memory(4 << 20)?, Stream::new(&side.context)?);
        let (first, last) = (memory.start(), memory.start() + (2 << 20));
        let (work, other) = (Case::sum(first, first, 300_000, 1), Case::sum(last, last, 300_000, 2));
        side.fill(&other)?;
        side.barrier()?;
        for _ in 0..5 {
            for _ in 0..10 {
                side.enqueue(&work, &side.stream)?;
            }
            let own = side.communicator.cuda(side.context.device().ordinal(), &shared())?;
            side.enqueue(&work, &side.stream)?;
            // SAFETY: the buffer lives until the streams are done, and nobody else uses it.
            unsafe { own.all_reduce(last, last, other.count, other.data_type, other.op, second.raw().0) }?;
            side.enqueue(&work, &side.stream)?;
        }
        side.stream.wait(crate::case::PATIENCE)?;
        side.barrier()
    });
    Ok(())
}

/// Makes and drops 500 of them, each used once: nothing may be left on the host or the device.
pub(crate) fn leaks(ranks: u32) -> Result<(), Failed> {
    const ROUNDS: usize = 500;
    const WARM: usize = 20;
    on_devices(ranks, &shared(), |side| {
        let memory = side.memory(4096)?;
        let case = Case::sum(memory.start(), memory.start() + 2048, 100, 5);
        let mut before = None;
        for round in 0..ROUNDS {
            let own = Side::new(side.communicator, &shared())?;
            own.enqueue(&case, &own.stream)?;
            own.stream.wait(crate::case::PATIENCE)?;
            drop(own);
            side.barrier()?;
            if round == WARM {
                before = Some(holdings(side)?);
            }
            side.barrier()?;
        }
        let (before, after) = (before.expect("there are more rounds"), holdings(side)?);
        assert_eq!(before[..3], after[..3], "descriptors, mappings of arenas, threads");
        assert!(after[3] <= before[3] + (8 << 20), "resident: {before:?} bytes, then {after:?}");
        assert!(after[4] <= before[4] + (8 << 20), "device memory: {before:?} bytes, then {after:?}");
        side.barrier()
    });
    Ok(())
}

/// What the process and its device hold: descriptors, mappings of arenas, threads, resident bytes, bytes of the device.
fn holdings(side: &Side) -> rccl::Result<[usize; 5]> {
    let count = |path: &str| std::fs::read_dir(path).map_or(0, Iterator::count);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let arenas = maps.lines().filter(|line| line.contains("rccl-cuda")).count();
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap();
    let (free, total) = side.context.memory_info()?;
    Ok([count("/proc/self/fd"), arenas, count("/proc/self/task"), pages * 4096, (total - free) as usize])
}
