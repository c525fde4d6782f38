//! The plugin's newest table as NCCL sees it: written down once more, since this command takes the plugin from outside.

use std::{
    ffi::{CStr, CString, c_char, c_int, c_ulong, c_void},
    path::Path,
    ptr,
};

use super::Outcome;

/// Bytes of a handle.
pub(super) const HANDLE_BYTES: usize = 128;

const PTR_HOST: c_int = 1;
const SYMBOL: &CStr = c"ncclNetPlugin_v12";

type Pointer = *mut c_void;
type Entry<T> = Option<T>;

/// `ncclNetProperties_v12_t`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Properties {
    name: *const c_char,
    pci_path: *const c_char,
    guid: u64,
    ptr_support: c_int,
    reg_is_global: c_int,
    force_flush: c_int,
    speed: c_int,
    port: c_int,
    latency: f32,
    limits_and_device: [c_int; 4],
    members: [c_int; 9],
    max_p2p_bytes: usize,
    max_coll_bytes: usize,
    max_multi_request_size: c_int,
    rail_and_plane: [i16; 2],
}

/// `ncclNet_v12_t`. Entries that are not called here are pointers only.
#[repr(C)]
struct Net {
    name: *const c_char,
    init: Entry<unsafe extern "C" fn(*mut Pointer, u64, *const c_int, Pointer, Pointer) -> c_int>,
    devices: Entry<unsafe extern "C" fn(*mut c_int) -> c_int>,
    properties: Entry<unsafe extern "C" fn(c_int, *mut Properties) -> c_int>,
    listen: Entry<unsafe extern "C" fn(Pointer, c_int, Pointer, *mut Pointer) -> c_int>,
    connect: Entry<unsafe extern "C" fn(Pointer, c_int, Pointer, *mut Pointer, Pointer) -> c_int>,
    accept: Entry<unsafe extern "C" fn(Pointer, *mut Pointer, Pointer) -> c_int>,
    register: Entry<unsafe extern "C" fn(Pointer, Pointer, usize, c_int, *mut Pointer) -> c_int>,
    register_dma_buf: Pointer,
    deregister: Entry<unsafe extern "C" fn(Pointer, Pointer) -> c_int>,
    send:
        Entry<unsafe extern "C" fn(Pointer, Pointer, usize, c_int, Pointer, Pointer, *mut Pointer) -> c_int>,
    receive: Entry<
        unsafe extern "C" fn(
            Pointer,
            c_int,
            *mut Pointer,
            *mut usize,
            *mut c_int,
            *mut Pointer,
            *mut Pointer,
            *mut Pointer,
        ) -> c_int,
    >,
    flush: Pointer,
    test: Entry<unsafe extern "C" fn(Pointer, *mut c_int, *mut c_int) -> c_int>,
    close_send: Entry<unsafe extern "C" fn(Pointer) -> c_int>,
    close_receive: Entry<unsafe extern "C" fn(Pointer) -> c_int>,
    close_listen: Entry<unsafe extern "C" fn(Pointer) -> c_int>,
    unused: [Pointer; 3],
    finalize: Entry<unsafe extern "C" fn(Pointer) -> c_int>,
    set_attributes: Pointer,
}

const _: () = assert!(size_of::<Properties>() == 128 && size_of::<Net>() == 176);

/// An object of the plugin.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Object(Pointer);

impl Object {
    pub(super) const NONE: Self = Self(ptr::null_mut());
}

/// A device as the plugin describes it.
pub(super) struct Device {
    pub(super) name: String,
    pub(super) pci_path: Option<String>,
    pub(super) speed_mbps: c_int,
}

/// A plugin that has been opened.
pub(super) struct Plugin(&'static Net);

/// What the plugin has to say goes to the standard error.
unsafe extern "C" fn log(
    level: c_int,
    _: c_ulong,
    _: *const c_char,
    _: c_int,
    _: *const c_char,
    text: *const c_char,
) {
    // SAFETY: the plugin's format is one string, which ends in NUL and is passed like any sixth argument.
    let text = unsafe { CStr::from_ptr(text) };
    if level <= 2 {
        eprintln!("{}", text.to_string_lossy());
    }
}

macro_rules! call {
    ($net:expr, $entry:ident($($argument:expr),*)) => {{
        let entry = $net.$entry.ok_or(concat!("the plugin has no entry `", stringify!($entry), "`"))?;
        // SAFETY: an entry of the table, with arguments of its kinds that live for the call.
        match unsafe { entry($($argument),*) } {
            0 => Ok(()),
            code => Err(format!("{} failed with NCCL's code {code}", stringify!($entry))),
        }
    }};
}

impl Plugin {
    /// Opens the library, as NCCL does: a name without a slash is looked for where the loader looks.
    pub(super) fn open(path: &Path) -> Outcome<Self> {
        let name = CString::new(path.as_os_str().as_encoded_bytes()).map_err(|error| error.to_string())?;
        // SAFETY: a path; what its constructors do is the library's affair, as with NCCL.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            // SAFETY: the last failure's text, or NULL.
            let text = unsafe { libc::dlerror() };
            // SAFETY: not NULL after a failure; ends in NUL.
            return Err(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned());
        }
        // SAFETY: opened above.
        let table = unsafe { libc::dlsym(library, SYMBOL.as_ptr()) };
        // SAFETY: a symbol of this name is such a table; the library is never closed.
        let table = unsafe { table.cast::<Net>().as_ref() };
        table.map(Self).ok_or_else(|| format!("{} has no {}", path.display(), SYMBOL.to_string_lossy()))
    }

    /// The name that NCCL_NET compares with.
    pub(super) fn name(&self) -> String {
        // SAFETY: the name in a table ends in NUL.
        unsafe { CStr::from_ptr(self.0.name) }.to_string_lossy().into_owned()
    }

    pub(super) fn init(&self) -> Outcome<Object> {
        let (mut context, class) = (ptr::null_mut(), -1);
        call!(self.0, init(&mut context, 1, &class, log as Pointer, ptr::null_mut()))?;
        Ok(Object(context))
    }

    pub(super) fn devices(&self) -> Outcome<Vec<Device>> {
        let mut count = 0;
        call!(self.0, devices(&mut count))?;
        (0..count).map(|number| self.device(number)).collect()
    }

    fn device(&self, number: c_int) -> Outcome<Device> {
        let mut properties = std::mem::MaybeUninit::<Properties>::zeroed();
        call!(self.0, properties(number, properties.as_mut_ptr()))?;
        // SAFETY: filled by the call; zeroes would do too.
        let properties = unsafe { properties.assume_init() };
        let text = |at: *const c_char| {
            // SAFETY: not NULL; a string of the plugin, which ends in NUL and is never freed.
            (!at.is_null()).then(|| unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned())
        };
        let name = text(properties.name).ok_or("a device without a name")?;
        Ok(Device { name, pci_path: text(properties.pci_path), speed_mbps: properties.speed })
    }

    pub(super) fn listen(&self, context: Object, device: c_int) -> Outcome<(Object, [u8; HANDLE_BYTES])> {
        let (mut listener, mut handle) = (ptr::null_mut(), [0; HANDLE_BYTES]);
        call!(self.0, listen(context.0, device, handle.as_mut_ptr().cast(), &mut listener))?;
        Ok((Object(listener), handle))
    }

    /// NONE as long as it is under way.
    pub(super) fn connect(
        &self,
        context: Object,
        device: c_int,
        handle: &mut [u8; HANDLE_BYTES],
    ) -> Outcome<Object> {
        let mut made = ptr::null_mut();
        call!(self.0, connect(context.0, device, handle.as_mut_ptr().cast(), &mut made, ptr::null_mut()))?;
        Ok(Object(made))
    }

    /// NONE as long as nobody has connected.
    pub(super) fn accept(&self, listener: Object) -> Outcome<Object> {
        let mut made = ptr::null_mut();
        call!(self.0, accept(listener.0, &mut made, ptr::null_mut()))?;
        Ok(Object(made))
    }

    /// Registers memory, which must stay until [`Plugin::deregister`].
    pub(super) fn register(&self, connection: Object, bytes: &mut [u8]) -> Outcome<Object> {
        let mut memory = ptr::null_mut();
        call!(self.0, register(connection.0, bytes.as_mut_ptr().cast(), bytes.len(), PTR_HOST, &mut memory))?;
        Ok(Object(memory))
    }

    pub(super) fn deregister(&self, connection: Object, memory: Object) -> Outcome {
        call!(self.0, deregister(connection.0, memory.0))
    }

    /// NONE if it is to be tried again.
    pub(super) fn send(&self, connection: Object, bytes: &mut [u8], memory: Object) -> Outcome<Object> {
        let (mut request, none) = (ptr::null_mut(), ptr::null_mut());
        let data = bytes.as_mut_ptr().cast();
        call!(self.0, send(connection.0, data, bytes.len(), 0, memory.0, none, &mut request))?;
        Ok(Object(request))
    }

    /// NONE if it is to be tried again.
    pub(super) fn receive(&self, connection: Object, bytes: &mut [u8], memory: Object) -> Outcome<Object> {
        let (mut request, mut tag, mut memory) = (ptr::null_mut(), 0, memory.0);
        let (mut data, mut len) = (bytes.as_mut_ptr().cast(), bytes.len());
        let none = ptr::null_mut();
        call!(
            self.0,
            receive(connection.0, 1, &mut data, &mut len, &mut tag, &mut memory, none, &mut request)
        )?;
        Ok(Object(request))
    }

    /// Whether a request is done, which ends it.
    pub(super) fn is_done(&self, request: Object) -> Outcome<bool> {
        let (mut done, mut lengths) = (0, [0; 64]);
        call!(self.0, test(request.0, &mut done, lengths.as_mut_ptr()))?;
        Ok(done == 1)
    }

    /// Ends a listener and both sides of a connection.
    pub(super) fn close(&self, listener: Object, send: Object, receive: Object) -> Outcome {
        call!(self.0, close_listen(listener.0))?;
        call!(self.0, close_send(send.0))?;
        call!(self.0, close_receive(receive.0))
    }

    /// Ends what [`Plugin::init`] began.
    pub(super) fn finalize(&self, context: Object) -> Outcome {
        call!(self.0, finalize(context.0))
    }
}
