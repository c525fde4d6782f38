//! The compiled kernels, embedded, and which of them a device takes. Rebuilt by `cargo xtask kernels`.

/// A compiled form of all kernels.
#[derive(Debug)]
pub(super) struct Image {
    /// The file's name.
    pub(super) name: &'static str,
    capability: (u32, u32),
    is_ptx: bool,
    /// Its bytes: a cubin, or PTX with a zero byte at its end.
    pub(super) bytes: &'static [u8],
}

macro_rules! images {
    ($($name:literal => $capability:expr, $is_ptx:expr;)*) => {
        &[$(Image {
            name: $name,
            capability: $capability,
            is_ptx: $is_ptx,
            bytes: include_bytes!(concat!("../../../kernels/built/", $name)),
        }),*]
    };
}

/// Best first where several fit.
static IMAGES: &[Image] = images! {
    "sm_120.cubin" => (12, 0), false;
    "sm_100.cubin" => (10, 0), false;
    "sm_90.cubin" => (9, 0), false;
    "sm_80.cubin" => (8, 0), false;
    "sm_75.cubin" => (7, 5), false;
    "compute_80.ptx" => (8, 0), true;
    "compute_75.ptx" => (7, 5), true;
};

impl Image {
    /// Whether a device of this capability can run it. A cubin serves its own major version from its minor version on; PTX
    /// serves everything newer.
    fn serves(&self, capability: (u32, u32)) -> bool {
        self.capability <= capability && (self.is_ptx || self.capability.0 == capability.0)
    }
}

/// The images that a device of this capability can run, best first.
pub(super) fn for_capability(capability: (u32, u32)) -> impl Iterator<Item = &'static Image> {
    IMAGES.iter().filter(move |image| image.serves(capability))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_take_the_nearest_older_cubin_of_their_generation_and_else_ptx() {
        let names = |major, minor| for_capability((major, minor)).map(|image| image.name).collect::<Vec<_>>();
        assert_eq!(names(7, 0), [""; 0]);
        assert_eq!(names(7, 5), ["sm_75.cubin", "compute_75.ptx"]);
        assert_eq!(names(8, 0), ["sm_80.cubin", "compute_80.ptx", "compute_75.ptx"]);
        assert_eq!(names(8, 9), ["sm_80.cubin", "compute_80.ptx", "compute_75.ptx"]);
        assert_eq!(names(9, 0), ["sm_90.cubin", "compute_80.ptx", "compute_75.ptx"]);
        assert_eq!(names(10, 3), ["sm_100.cubin", "compute_80.ptx", "compute_75.ptx"]);
        assert_eq!(names(11, 0), ["compute_80.ptx", "compute_75.ptx"]);
        assert_eq!(names(12, 1), ["sm_120.cubin", "compute_80.ptx", "compute_75.ptx"]);
    }

    #[test]
    fn images_are_whole() {
        for image in IMAGES {
            if image.is_ptx {
                assert_eq!(image.bytes.last(), Some(&0), "{}", image.name);
                assert!(image.bytes.windows(9).any(|text| text == b".version "), "{}", image.name);
            } else {
                assert!(image.bytes.starts_with(b"\x7fELF"), "{}", image.name);
            }
        }
    }
}
