//! Which host this is: two processes with equal identities can share memory and pass each other descriptors.

use std::{ffi::OsString, fmt, fs, os::unix::fs::MetadataExt};

use sha2::{Digest, Sha256};

use crate::{Error, Result};

/// Overrides the identity of the host; goes before [`NCCL_HOSTID_VARIABLE`].
pub const HOSTID_VARIABLE: &str = "RCCL_HOSTID";
/// NCCL's variable of the same meaning.
pub const NCCL_HOSTID_VARIABLE: &str = "NCCL_HOSTID";

/// The identity of a host, as its processes see it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub [u8; 16]);

impl HostId {
    /// The identity of this host: `RCCL_HOSTID` or `NCCL_HOSTID`, or else the kernel's boot, the host's name and the
    /// mount and process namespaces. Containers of one host thus count as different hosts, unless told otherwise.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a variable is set to nothing; [`Error::Io`] if the kernel does not tell its boot id.
    pub fn this() -> Result<Self> {
        match Self::overridden(|variable| std::env::var_os(variable))? {
            Some(id) => Ok(id),
            None => Self::detected(),
        }
    }

    /// The identity of the machine: as [`HostId::this`], but `NCCL_HOSTID` does not count. That variable tells NCCL which
    /// ranks it shall take to be on other machines, and says nothing of where memory can be shared.
    ///
    /// # Errors
    /// As [`HostId::this`].
    pub fn machine() -> Result<Self> {
        let own =
            |variable: &str| (variable == HOSTID_VARIABLE).then(|| std::env::var_os(variable)).flatten();
        match Self::overridden(own)? {
            Some(id) => Ok(id),
            None => Self::detected(),
        }
    }

    /// The identity that stands for `text`, as the variables give it.
    #[must_use]
    pub fn from_text(text: &str) -> Self {
        Self::digest(&[b"named", text.as_bytes()])
    }

    fn overridden(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Option<Self>> {
        for variable in [HOSTID_VARIABLE, NCCL_HOSTID_VARIABLE] {
            let Some(text) = lookup(variable) else { continue };
            if text.is_empty() {
                return Err(Error::Invalid {
                    what: variable.into(),
                    value: String::new(),
                    reason: "give the host any name, or leave the variable unset".into(),
                });
            }
            return Ok(Some(Self::from_text(&text.to_string_lossy())));
        }
        Ok(None)
    }

    fn detected() -> Result<Self> {
        let boot = "/proc/sys/kernel/random/boot_id";
        let boot_id = fs::read(boot).map_err(|error| Error::io(format!("read {boot}"), error))?;
        // Where a namespace cannot be looked at, nobody on the host can.
        let namespace =
            |name: &str| fs::metadata(format!("/proc/self/ns/{name}")).map_or(0, |meta| meta.ino());
        let mount = namespace("mnt").to_le_bytes();
        let process = namespace("pid").to_le_bytes();
        Ok(Self::digest(&[b"detected", &boot_id, host_name().as_bytes(), &mount, &process]))
    }

    fn digest(parts: &[&[u8]]) -> Self {
        let mut digest = Sha256::new();
        for part in parts {
            digest.update((part.len() as u64).to_le_bytes());
            digest.update(part);
        }
        let whole: [u8; 32] = digest.finalize().into();
        Self(whole[..16].try_into().expect("half of 32 bytes"))
    }
}

/// The host's name, for people.
#[must_use]
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

impl fmt::Display for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..4].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostId({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_is_always_the_same_and_can_be_overridden() {
        assert_eq!(HostId::detected().unwrap(), HostId::detected().unwrap());
        let named = |variable: &'static str, text: &'static str| {
            HostId::overridden(move |name| (name == variable).then(|| text.into()))
        };
        let one = named("RCCL_HOSTID", "one").unwrap().unwrap();
        assert_eq!(named("NCCL_HOSTID", "one").unwrap().unwrap(), one);
        assert_ne!(named("NCCL_HOSTID", "two").unwrap().unwrap(), one);
        assert_eq!(named("OTHER", "two").unwrap(), None);
        let error = named("NCCL_HOSTID", "").unwrap_err().to_string();
        assert!(error.starts_with("NCCL_HOSTID is ``"), "{error}");
    }
}
