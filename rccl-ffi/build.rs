//! How the shared library is linked.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        // Never librccl.so: that name belongs to AMD's library.
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,librccl_ffi.so");
        // NCCL closes its plugins; our threads and thread-local values must not lose their code then.
        println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    }
}
