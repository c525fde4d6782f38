//! The CUDA loader and wrappers against a driver library without a device, compiled here: what must hold on every machine.

#[path = "fake_cuda/compile.rs"]
mod compile;

use std::{
    ffi::{CString, c_char, c_int},
    path::Path,
    sync::Arc,
};

use compile::{Folder, compile};

use rccl_core::DataType;
use rccl_transport::{
    Error, Region,
    cuda::{
        Attribute, Capture, Device, DeviceMemory, Driver, Event, HostRegistration, Module, PointerInfo,
        PointerKind, PrimaryContext, Stream, Until, WordOperation,
        kernels::{Kernel, Kernels},
        sys::{CUcontext, Functions, Library},
    },
};

/// A fake of its own for every test: its state is global to the library.
struct Fake {
    driver: Driver,
    handle: *mut libc::c_void,
    _folder: Folder,
}

/// # Safety
/// Only for libraries made by `compile`.
unsafe fn open(path: &Path) -> rccl_transport::Result<Driver> {
    // SAFETY: the fake's functions are what their names promise, as far as these tests go.
    unsafe { Driver::open_path(path.to_str().unwrap()) }
}

impl Fake {
    fn new(test: &str, flags: &[&str]) -> Self {
        let (path, folder) = compile(test, flags);
        // SAFETY: just compiled.
        let driver = unsafe { open(&path) }.unwrap();
        let name = CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: the library is loaded already; this only finds its handle.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null());
        Self { driver, handle, _folder: folder }
    }

    fn context(&self, ordinal: u32) -> PrimaryContext {
        Device::by_ordinal(&self.driver, ordinal).unwrap().primary_context().unwrap()
    }

    fn symbol(&self, name: &str) -> *mut libc::c_void {
        let name = CString::new(name).unwrap();
        // SAFETY: the handle is open; the name is a C string.
        let symbol = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        assert!(!symbol.is_null(), "{name:?}");
        symbol
    }

    fn fail(&self, name: &str, code: u32) {
        let name = CString::new(name).unwrap();
        // SAFETY: the fake defines the function so.
        let fail: extern "C" fn(*const c_char, u32) =
            unsafe { std::mem::transmute(self.symbol("fake_fail")) };
        fail(name.as_ptr(), code);
    }

    fn number(&self, name: &str) -> c_int {
        // SAFETY: the fake defines these functions so.
        let number: extern "C" fn() -> c_int = unsafe { std::mem::transmute(self.symbol(name)) };
        number()
    }

    fn retained(&self, device: c_int) -> c_int {
        // SAFETY: the fake defines the function so.
        let retained: extern "C" fn(c_int) -> c_int =
            unsafe { std::mem::transmute(self.symbol("fake_retained")) };
        retained(device)
    }

    fn current(&self) -> CUcontext {
        // SAFETY: the fake defines the function so.
        let get: extern "C" fn(*mut CUcontext) -> u32 =
            unsafe { std::mem::transmute(self.symbol("cuCtxGetCurrent")) };
        let mut current = CUcontext::NULL;
        assert_eq!(get(&mut current), 0);
        current
    }
}

fn code_of<T: std::fmt::Debug>(result: rccl_transport::Result<T>) -> (&'static str, u32) {
    match result.unwrap_err() {
        Error::Device { call, code, .. } => (call, code),
        other => panic!("{other}"),
    }
}

#[test]
fn no_driver_is_a_value() {
    // SAFETY: there is no such file.
    let error = unsafe { open(Path::new("/nonexistent/libcuda.so.1")) }.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }));
    assert!(error.to_string().contains("/nonexistent/libcuda.so.1"), "{error}");
}

#[test]
fn a_library_that_is_no_driver_is_a_value() {
    let (path, _folder) = compile("empty", &["-DEMPTY"]);
    // SAFETY: an empty library.
    let error = unsafe { open(&path) }.unwrap_err();
    assert!(matches!(&error, Error::Unavailable { what, .. } if what == "cuInit"), "{error}");
}

#[test]
fn failing_initialisation_keeps_its_code() {
    for code in [100, 34, 803] {
        let (path, _folder) = compile(&format!("init-{code}"), &[&format!("-DINIT_CODE={code}")]);
        // SAFETY: just compiled.
        assert_eq!(code_of(unsafe { open(&path) }), ("cuInit", code));
    }
    let (path, _folder) = compile("init-text", &["-DINIT_CODE=100"]);
    // SAFETY: just compiled.
    let error = unsafe { open(&path) }.unwrap_err();
    assert_eq!(
        error.to_string(),
        "cuInit: CUDA_ERROR_NO_DEVICE, no CUDA-capable device is detected (code 100)"
    );
}

#[test]
fn a_code_without_a_name_is_a_value() {
    let fake = Fake::new("unknown-code", &[]);
    fake.fail("cuDeviceGetCount", 721);
    let error = Device::count(&fake.driver).unwrap_err();
    assert_eq!(error.to_string(), "cuDeviceGetCount: a code that the driver has no name for (code 721)");
    fake.fail("cuDeviceGetCount", u32::MAX);
    assert_eq!(code_of(Device::count(&fake.driver)), ("cuDeviceGetCount", u32::MAX));
    fake.fail("", 0);
    assert_eq!(Device::count(&fake.driver).unwrap(), 2);
}

#[test]
fn a_missing_function_is_a_value() {
    let fake = Fake::new("missing", &[]);
    let error = fake.context(0).memory_info().unwrap_err();
    assert!(matches!(&error, Error::Unavailable { what, .. } if what == "cuMemGetInfo_v2"), "{error}");
    assert!(error.to_string().contains("12.9"), "{error}");
    assert_eq!(fake.number("fake_depth"), 0);
}

#[test]
fn the_table_has_what_the_library_has() {
    let (path, _folder) = compile("table", &["-DWITHOUT_BATCH"]);
    // SAFETY: just compiled.
    let functions = Functions::look_up(&unsafe { Library::open(path.to_str().unwrap()) }.unwrap());
    assert!(functions.cuInit.is_some() && functions.cuStreamWaitValue32_v2.is_some());
    assert!(functions.cuStreamBatchMemOp_v2.is_none() && functions.cuGraphLaunch.is_none());
    assert!(Functions::NAMES.len() >= 70, "{}", Functions::NAMES.len());
}

#[test]
fn devices_tell_who_they_are() {
    let fake = Fake::new("devices", &[]);
    let one = Device::by_pci_bus_id(&fake.driver, "0000:2a:00.0").unwrap();
    assert_eq!((one.ordinal(), one.name().unwrap().as_str()), (1, "Fake 1"));
    assert_eq!(one.pci_bus_id().unwrap(), "0000:2a:00.0");
    assert_eq!((one.uuid().unwrap(), one.capability().unwrap()), ([17; 16], (9, 0)));
    assert_eq!(code_of(one.attribute(Attribute(999))), ("cuDeviceGetAttribute", 1));
    assert_eq!(code_of(Device::by_ordinal(&fake.driver, 2)), ("cuDeviceGet", 101));
    assert_eq!(code_of(Device::by_pci_bus_id(&fake.driver, "0000:99:00.0")), ("cuDeviceGetByPCIBusId", 101));
    assert!(matches!(Device::by_pci_bus_id(&fake.driver, "a\0b").unwrap_err(), Error::Invalid { .. }));
    let zero = Device::by_ordinal(&fake.driver, 0).unwrap();
    assert!(zero.can_access_peer(&one).unwrap() && !zero.can_access_peer(&zero).unwrap());
}

#[test]
fn contexts_are_retained_and_released_once() {
    let fake = Fake::new("retain", &[]);
    let context = fake.context(1);
    let clone = context.clone();
    assert_eq!(fake.retained(1), 1);
    drop(context);
    assert_eq!(fake.retained(1), 1);
    drop(clone);
    assert_eq!(fake.retained(1), 0);
}

/// Runs every wrapper once.
fn use_everything(context: &PrimaryContext) -> rccl_transport::Result<()> {
    let stream = Stream::new(context)?;
    let memory = DeviceMemory::new(context, 4096)?;
    let registration = HostRegistration::new(context, &Region::zeroed(4096))?;
    let host = registration.device_start(context)?;
    let event = Event::new(context, false)?;
    // SAFETY: memory and region are alive, and the fake's streams run at once.
    unsafe { stream.fill(memory.start(), 7, 4096)? };
    // SAFETY: as above.
    unsafe { stream.copy(host, memory.start(), 4096)? };
    // SAFETY: as above.
    unsafe { stream.write_word(host, 5)? };
    // SAFETY: as above.
    unsafe { stream.wait_word(host, Until::Equal(5))? };
    let operations = [WordOperation::Wait(host, Until::AtLeast(4)), WordOperation::Write(host, 6)];
    // SAFETY: as above.
    unsafe { stream.word_operations(&operations)? };
    event.record(&stream)?;
    stream.wait_event(&event)?;
    assert!(event.is_done()? && stream.is_idle()? && Capture::of(&stream)?.is_none());
    assert_eq!(stream.owner()?, context.raw());
    stream.wait(std::time::Duration::from_secs(10))?;
    stream.synchronize()?;
    assert_eq!(
        PointerInfo::of(context, memory.start() + 8)?.kind,
        PointerKind::Device { ordinal: context.device().ordinal() }
    );
    Kernels::load(context)?.resident_blocks(Kernel::LlOneshot, DataType::Half, 512)?;
    context.enable_peer_access(context).unwrap_err();
    Ok(())
}

#[test]
fn the_callers_context_is_as_before_after_every_call() {
    let fake = Fake::new("restored", &[]);
    let (mine, callers) = (fake.context(0), fake.context(1));
    assert_eq!(fake.current(), CUcontext::NULL);
    use_everything(&mine).unwrap();
    assert_eq!((fake.number("fake_depth"), fake.current()), (0, CUcontext::NULL));
    let guard = callers.enter().unwrap();
    use_everything(&mine).unwrap();
    assert_eq!((fake.number("fake_depth"), fake.current()), (1, callers.raw()));
    {
        let _inner = mine.enter().unwrap();
        assert_eq!((fake.number("fake_depth"), fake.current()), (2, mine.raw()));
        use_everything(&mine).unwrap();
        let _same = mine.enter().unwrap();
        assert_eq!(fake.number("fake_depth"), 2);
    }
    assert_eq!(fake.current(), callers.raw());
    drop(guard);
    assert_eq!((fake.number("fake_depth"), fake.number("fake_live_objects")), (0, 0));
}

#[test]
fn the_callers_context_is_as_before_after_failures() {
    let fake = Fake::new("restored-failures", &[]);
    let (mine, callers) = (fake.context(0), fake.context(1));
    let _guard = callers.enter().unwrap();
    for name in Functions::NAMES {
        if ["cuCtxGetCurrent", "cuCtxPopCurrent_v2", "cuCtxPushCurrent_v2"].contains(name) {
            continue;
        }
        fake.fail(name, 719);
        let _ = use_everything(&mine);
        fake.fail("", 0);
        assert_eq!((fake.number("fake_depth"), fake.current()), (1, callers.raw()), "after a failing {name}");
    }
}

#[test]
fn failures_in_drop_do_not_panic() {
    let fake = Fake::new("drop", &[]);
    for name in [
        "cuMemFree_v2",
        "cuMemHostUnregister",
        "cuStreamDestroy_v2",
        "cuEventDestroy_v2",
        "cuModuleUnload",
        "cuDevicePrimaryCtxRelease_v2",
        "cuCtxGetCurrent",
        "cuCtxPushCurrent_v2",
    ] {
        let context = fake.context(0);
        let memory = DeviceMemory::new(&context, 64).unwrap();
        let registration = HostRegistration::new(&context, &Region::zeroed(64)).unwrap();
        let (stream, event) = (Stream::new(&context).unwrap(), Event::new(&context, true).unwrap());
        // SAFETY: the fake does not look into the image.
        let module = unsafe { Module::load(&context, b"text\0") }.unwrap();
        fake.fail(name, 719);
        drop((memory, registration, stream, event, module, context));
        fake.fail("", 0);
    }
}

#[test]
fn pointers_are_told_apart() {
    let fake = Fake::new("pointers", &[]);
    let context = fake.context(1);
    let memory = DeviceMemory::new(&context, 100).unwrap();
    let info = PointerInfo::of(&context, memory.start() + 99).unwrap();
    assert_eq!(
        (info.kind, info.range_start, info.range_bytes),
        (PointerKind::Device { ordinal: 1 }, memory.start(), 100)
    );
    let region = Region::zeroed(100);
    let address = region.start().as_ptr().addr() as u64;
    assert_eq!(PointerInfo::of(&context, address).unwrap().kind, PointerKind::Unknown);
    let registration = HostRegistration::new(&context, &region).unwrap();
    assert_eq!(registration.device_start(&context).unwrap(), address);
    assert_eq!(PointerInfo::of(&context, address).unwrap().kind, PointerKind::Host);
    drop(registration);
    let start = memory.start();
    drop(memory);
    for freed in [address, start, 0, u64::MAX] {
        assert_eq!(PointerInfo::of(&context, freed).unwrap().kind, PointerKind::Unknown, "{freed:#x}");
    }
    fake.fail("cuPointerGetAttributes", 1);
    assert_eq!(PointerInfo::of(&context, address).unwrap().kind, PointerKind::Unknown);
    fake.fail("cuPointerGetAttributes", 700);
    assert_eq!(code_of(PointerInfo::of(&context, address)), ("cuPointerGetAttributes", 700));
}

#[test]
fn registration_keeps_its_region() {
    let fake = Fake::new("registration", &[]);
    let context = fake.context(0);
    let region = Region::zeroed(4096);
    let registration = HostRegistration::new(&context, &region).unwrap();
    assert_eq!(Arc::strong_count(&region), 2);
    drop(registration);
    assert_eq!(Arc::strong_count(&region), 1);
    assert_eq!(code_of(HostRegistration::new(&context, &Region::zeroed(0))), ("cuMemHostRegister_v2", 1));
}

#[test]
fn word_operations_do_the_same_with_and_without_batches() {
    for (test, flags, batches) in [("batch", &[][..], 1), ("no-batch", &["-DWITHOUT_BATCH"][..], 0)] {
        let fake = Fake::new(test, flags);
        let context = fake.context(0);
        let stream = Stream::new(&context).unwrap();
        let words = DeviceMemory::new(&context, 8).unwrap();
        let (first, second) = (words.start(), words.start() + 4);
        let run = |operations: &[WordOperation]| {
            // SAFETY: the words are alive; the fake's streams run at once.
            unsafe { stream.word_operations(operations) }
        };
        run(&[
            WordOperation::Write(first, u32::MAX),
            WordOperation::Wait(first, Until::Equal(u32::MAX)),
            WordOperation::Write(second, 3),
            WordOperation::Wait(second, Until::AtLeast(u32::MAX)),
        ])
        .unwrap();
        assert_eq!(code_of(run(&[WordOperation::Wait(second, Until::AtLeast(4))])).1, 702);
        assert_eq!(fake.number("fake_batches") > 0, batches > 0, "{test}");
    }
}

#[test]
fn kernels_fall_back_to_ptx_and_name_what_they_lack() {
    let fake = Fake::new("kernels", &[]);
    let context = fake.context(0);
    let kernels = Kernels::load(&context).unwrap();
    assert_eq!(kernels.image(), "compute_80.ptx");
    assert_eq!(kernels.resident_blocks(Kernel::StripeOneshot, DataType::Float, 512).unwrap(), 4 * 132);
    let error = kernels.function(Kernel::LlOneshot, DataType::Int8).unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    drop(kernels);
    assert_eq!(fake.number("fake_live_objects"), 0);
    fake.fail("cuModuleLoadData", 222);
    assert_eq!(code_of(Kernels::load(&context)), ("cuModuleLoadData", 222));
}

#[test]
fn out_of_memory_is_a_value() {
    let fake = Fake::new("memory", &[]);
    assert_eq!(code_of(DeviceMemory::new(&fake.context(0), 1 << 40)), ("cuMemAlloc_v2", 2));
}
