//! The C header, generated from rccl-ffi and committed.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::Result;

/// Writes the header.
///
/// # Errors
/// When the sources do not parse or the file cannot be written.
pub(crate) fn write(root: &Path) -> Result {
    let path = path(root);
    fs::write(&path, generate(root)?).map_err(|e| format!("{}: {e}", path.display()))?;
    println!("wrote {}", path.display());
    Ok(())
}

/// Checks that the committed header is what the sources give.
///
/// # Errors
/// When it differs or is missing, naming the first line that differs.
pub(crate) fn check(root: &Path) -> Result {
    let path = path(root);
    let committed = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let generated = generate(root)?;
    if committed == generated {
        println!("{} is up to date", path.display());
        return Ok(());
    }
    let same = committed.lines().zip(generated.lines()).take_while(|(a, b)| a == b).count();
    Err(format!("{}:{}: differs from the Rust sources; run `cargo xtask header`", path.display(), same + 1)
        .into())
}

fn path(root: &Path) -> PathBuf {
    root.join("rccl-ffi/include/rccl_ffi.h")
}

fn generate(root: &Path) -> Result<String> {
    let package = root.join("rccl-ffi");
    let config = cbindgen::Config::from_file(package.join("cbindgen.toml"))?;
    let bindings = cbindgen::Builder::new().with_crate(&package).with_config(config).generate()?;
    let mut text = Vec::new();
    bindings.write(&mut text);
    Ok(String::from_utf8(text)?)
}
