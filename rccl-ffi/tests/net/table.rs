//! The plugin as NCCL sees it: opened by dlopen, its tables found by name, their versions under one roof.

use std::{
    ffi::{CString, c_char, c_int, c_ulong, c_void},
    path::PathBuf,
    ptr,
};

use parking_lot::Mutex;
use rccl_ffi::net::{
    abi::{self, CommConfig, Logger, v5, v6, v7, v8, v9, v10, v11, v12},
    handle::Bytes,
};

/// NCCL's codes, as far as they are expected.
pub(crate) const SUCCESS: c_int = 0;
pub(crate) const INVALID_ARGUMENT: c_int = 4;
pub(crate) const INVALID_USAGE: c_int = 5;
pub(crate) const REMOTE: c_int = 6;

/// A pointer that the plugin gave out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Object(pub(crate) *mut c_void);

// SAFETY: the plugin's objects may be used from any thread; a table says so by its contract.
unsafe impl Send for Object {}
// SAFETY: as for `Send`.
unsafe impl Sync for Object {}

impl Object {
    pub(crate) const NULL: Self = Self(ptr::null_mut());

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }
}

/// What an entry answers besides its code.
pub(crate) type Answer<T> = Result<T, c_int>;

/// A table, whatever its version.
pub(crate) trait Api: Sync {
    fn init(&self, logger: Logger) -> Answer<Object>;
    fn devices(&self) -> Answer<c_int>;
    fn name_of(&self, device: c_int) -> Answer<*const c_char>;
    fn listen(&self, device: c_int, handle: &mut Bytes) -> Answer<Object>;
    fn connect(&self, context: Object, device: c_int, handle: &mut Bytes) -> Answer<Object>;
    fn accept(&self, listener: Object) -> Answer<Object>;
    fn register(&self, connection: Object, data: *mut u8, bytes: usize, kind: c_int) -> Answer<Object>;
    fn deregister(&self, connection: Object, memory: Object) -> Answer<()>;
    /// `request` holds what NCCL leaves there before the call.
    fn send(
        &self,
        connection: Object,
        data: (*mut u8, usize),
        tag: c_int,
        memory: Object,
        request: Object,
    ) -> Answer<Object>;
    fn receive(&self, connection: Object, parts: &[Receive], request: Object) -> Answer<Object>;
    /// The lengths, once it is done.
    fn test(&self, request: Object) -> Answer<Option<[c_int; 8]>>;
    fn close_send(&self, connection: Object) -> Answer<()>;
    fn close_receive(&self, connection: Object) -> Answer<()>;
    fn close_listener(&self, listener: Object) -> Answer<()>;
    fn finalize(&self, context: Object) -> Answer<()>;
}

/// One receive of a group.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Receive {
    pub(crate) data: *mut u8,
    pub(crate) bytes: usize,
    pub(crate) tag: c_int,
    pub(crate) memory: Object,
}

/// Calls an entry; every entry that is called here must be there.
macro_rules! call {
    ($self:ident.$entry:ident($($argument:expr),*)) => {{
        let entry = $self.$entry.expect(stringify!($entry));
        // SAFETY: the arguments are those of the entry, and all pointers live for the call or as long as the test.
        let code = unsafe { entry($($argument),*) };
        if code.0 == SUCCESS { Ok(()) } else { Err(code.0) }
    }};
}

macro_rules! common {
    ($version:ident) => {
        fn devices(&self) -> Answer<c_int> {
            let mut count = -1;
            call!(self.devices(&mut count)).map(|()| count)
        }
        fn name_of(&self, device: c_int) -> Answer<*const c_char> {
            let mut properties = std::mem::MaybeUninit::<abi::$version::Properties>::zeroed();
            call!(self.properties(device, properties.as_mut_ptr()))?;
            // SAFETY: written by the call; all zeroes would do too.
            Ok(unsafe { properties.assume_init() }.name)
        }
        fn deregister(&self, connection: Object, memory: Object) -> Answer<()> {
            call!(self.dereg_mr(connection.0, memory.0))
        }
        fn test(&self, request: Object) -> Answer<Option<[c_int; 8]>> {
            let (mut done, mut lengths) = (-1, [0; 8]);
            call!(self.test(request.0, &mut done, lengths.as_mut_ptr()))?;
            Ok((done == 1).then_some(lengths))
        }
        fn close_send(&self, connection: Object) -> Answer<()> {
            call!(self.close_send(connection.0))
        }
        fn close_receive(&self, connection: Object) -> Answer<()> {
            call!(self.close_recv(connection.0))
        }
        fn close_listener(&self, listener: Object) -> Answer<()> {
            call!(self.close_listen(listener.0))
        }
    };
}

macro_rules! init {
    (plain) => {
        fn init(&self, logger: Logger) -> Answer<Object> {
            call!(self.init(Some(logger))).map(|()| Object::NULL)
        }
        init!(@rest);
    };
    (profiler) => {
        fn init(&self, logger: Logger) -> Answer<Object> {
            call!(self.init(Some(logger), None)).map(|()| Object::NULL)
        }
        init!(@rest);
    };
    (context) => {
        fn init(&self, logger: Logger) -> Answer<Object> {
            let (mut context, config) = (ptr::null_mut(), CommConfig { traffic_class: -1 });
            call!(self.init(&mut context, 7, &config, Some(logger), None)).map(|()| Object(context))
        }
        fn finalize(&self, context: Object) -> Answer<()> {
            call!(self.finalize(context.0))
        }
        fn listen(&self, device: c_int, handle: &mut Bytes) -> Answer<Object> {
            let mut listener = ptr::null_mut();
            call!(self.listen(ptr::null_mut(), device, handle.as_mut_ptr().cast(), &mut listener))
                .map(|()| Object(listener))
        }
    };
    (@rest) => {
        fn finalize(&self, _: Object) -> Answer<()> {
            Ok(())
        }
        fn listen(&self, device: c_int, handle: &mut Bytes) -> Answer<Object> {
            let mut listener = ptr::null_mut();
            call!(self.listen(device, handle.as_mut_ptr().cast(), &mut listener)).map(|()| Object(listener))
        }
    };
}

macro_rules! connect {
    ($($context:ident)? ; $($before:expr)?; $($after:expr)?) => {
        fn connect(&self, _context: Object, device: c_int, handle: &mut Bytes) -> Answer<Object> {
            let mut connection = ptr::null_mut();
            let handle: *mut c_void = handle.as_mut_ptr().cast();
            call!(self.connect($(connect!(@$context _context),)? device, $($before,)? handle, &mut connection $(, $after)?))
                .map(|()| Object(connection))
        }
        fn accept(&self, listener: Object) -> Answer<Object> {
            let mut connection = ptr::null_mut();
            call!(self.accept(listener.0, &mut connection $(, $after)?)).map(|()| Object(connection))
        }
    };
    (@context $context:ident) => { $context.0 };
}

macro_rules! transfer {
    ($register:ty, $length:ty; $($handle:expr)?) => {
        fn register(&self, connection: Object, data: *mut u8, bytes: usize, kind: c_int) -> Answer<Object> {
            let mut memory = ptr::null_mut();
            let bytes = <$register>::try_from(bytes).expect("as long as the version allows");
            call!(self.reg_mr(connection.0, data.cast(), bytes, kind, &mut memory)).map(|()| Object(memory))
        }
        fn send(
            &self,
            connection: Object,
            (data, bytes): (*mut u8, usize),
            tag: c_int,
            memory: Object,
            mut request: Object,
        ) -> Answer<Object> {
            let bytes = <$length>::try_from(bytes).expect("as long as the version allows");
            call!(self.isend(connection.0, data.cast(), bytes, tag, memory.0, $($handle,)? &mut request.0))
                .map(|()| request)
        }
        fn receive(&self, connection: Object, parts: &[Receive], mut request: Object) -> Answer<Object> {
            let mut data: Vec<*mut c_void> = parts.iter().map(|it| it.data.cast()).collect();
            let length = |it: &Receive| <$length>::try_from(it.bytes).expect("as long as the version allows");
            let mut lengths: Vec<$length> = parts.iter().map(length).collect();
            let mut tags: Vec<c_int> = parts.iter().map(|it| it.tag).collect();
            let mut memory: Vec<*mut c_void> = parts.iter().map(|it| it.memory.0).collect();
            let (data, lengths) = (data.as_mut_ptr(), lengths.as_mut_ptr());
            let (tags, memory) = (tags.as_mut_ptr(), memory.as_mut_ptr());
            let count = parts.len() as c_int;
            call!(self.irecv(connection.0, count, data, lengths, tags, memory, $($handle,)? &mut request.0))
                .map(|()| request)
        }
    };
}

impl Api for v5::Net {
    common!(v5);
    init!(plain);
    connect!(;;);
    transfer!(c_int, c_int;);
}
impl Api for v6::Net {
    common!(v6);
    init!(plain);
    connect!(;;);
    transfer!(c_int, c_int;);
}
impl Api for v7::Net {
    common!(v7);
    init!(plain);
    connect!(;; ptr::null_mut());
    transfer!(c_int, c_int;);
}
impl Api for v8::Net {
    common!(v8);
    init!(plain);
    connect!(;; ptr::null_mut());
    transfer!(usize, c_int;);
}
impl Api for v9::Net {
    common!(v9);
    init!(plain);
    connect!(;; ptr::null_mut());
    transfer!(usize, usize;);
}
impl Api for v10::Net {
    common!(v10);
    init!(profiler);
    connect!(; ptr::null(); ptr::null_mut());
    transfer!(usize, usize; ptr::null_mut());
}
impl Api for v11::Net {
    common!(v11);
    init!(context);
    connect!(context;; ptr::null_mut());
    transfer!(usize, usize; ptr::null_mut());
}
impl Api for v12::Net {
    common!(v12);
    init!(context);
    connect!(context;; ptr::null_mut());
    transfer!(usize, usize; ptr::null_mut());
}

/// The shared library, which cargo builds beside this test.
pub(crate) fn library() -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    let library = test.parent().expect("the folder of this test").join("librccl_ffi.so");
    assert!(library.is_file(), "{} is not built", library.display());
    library
}

/// Opens the library as NCCL does. Opening it again gives the same handle.
pub(crate) fn open() -> *mut c_void {
    let path = CString::new(library().into_os_string().into_encoded_bytes()).expect("a path");
    // SAFETY: the library's constructors do nothing.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!handle.is_null(), "dlopen of {path:?}");
    handle
}

/// The table of a version in an opened library.
pub(crate) fn table(library: *mut c_void, version: u32) -> &'static dyn Api {
    let name = CString::new(format!("ncclNetPlugin_v{version}")).expect("a name");
    // SAFETY: `library` was opened and never goes away (nodelete).
    let symbol = unsafe { libc::dlsym(library, name.as_ptr()) };
    assert!(!symbol.is_null(), "{name:?} is missing");
    macro_rules! pick {
        ($($number:literal $module:ident)*) => {
            match version {
                // SAFETY: the symbol of this name is such a table.
                $($number => unsafe { &*symbol.cast::<$module::Net>() },)*
                _ => panic!("version {version}"),
            }
        };
    }
    pick!(5 v5 6 v6 7 v7 8 v8 9 v9 10 v10 11 v11 12 v12)
}

/// All versions there are.
pub(crate) const VERSIONS: std::ops::RangeInclusive<u32> = 5..=12;

/// What the plugin has said.
static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// NCCL's logger takes any arguments; the plugin always gives it one string, which is passed like any sixth argument.
unsafe extern "C" fn log(
    _: c_int,
    _: c_ulong,
    _: *const c_char,
    _: c_int,
    format: *const c_char,
    text: *const c_char,
) {
    // SAFETY: the plugin gives strings that end in NUL.
    let [format, text] = [format, text].map(|it| unsafe { std::ffi::CStr::from_ptr(it) });
    assert_eq!(format, c"%s");
    LINES.lock().push(text.to_string_lossy().into_owned());
}

/// A logger that keeps what it is told.
pub(crate) fn logger() -> Logger {
    type Fixed = unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, *const c_char);
    // SAFETY: on the platforms of this project pointers and integers beyond the named arguments of a variadic function are
    // passed as they are to one with named arguments.
    unsafe { std::mem::transmute::<Fixed, Logger>(log) }
}

/// Whether the plugin has said something that contains all of these.
pub(crate) fn has_said(parts: &[&str]) -> bool {
    LINES.lock().iter().any(|line| parts.iter().all(|part| line.contains(part)))
}

/// All that the plugin has said.
pub(crate) fn said() -> String {
    LINES.lock().join("\n")
}
