//! The secret that the members of a group share, and what is derived from it.

use std::{ffi::OsString, fmt, fs::File, io::Read, os::unix::fs::PermissionsExt};

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::{Error, Result};

/// A keyed digest made with a [`Secret`].
pub(crate) type Tag = [u8; 32];

/// The environment variable that holds a secret as text.
pub const SECRET_VARIABLE: &str = "RCCL_SECRET";

/// The environment variable that names a file which holds a secret as text.
pub const SECRET_FILE_VARIABLE: &str = "RCCL_SECRET_FILE";

/// Bytes of the shortest text that is accepted as a secret.
pub const MIN_SECRET_TEXT_BYTES: usize = 16;

/// Bytes of the longest text that is accepted as a secret.
pub const MAX_SECRET_TEXT_BYTES: usize = 4096;

/// 256 bits that only the members of a group know. Never shown: `Debug` hides it, and equality takes constant time.
///
/// ```
/// use rccl_transport::Secret;
///
/// let secret = Secret::random().unwrap();
/// assert_eq!(secret.derive("links"), secret.derive("links"));
/// assert_ne!(secret.derive("links"), secret.derive("files"));
/// assert_eq!(format!("{secret:?}"), "Secret(hidden)");
/// ```
#[derive(Clone)]
pub struct Secret([u8; 32]);

impl Secret {
    /// A fresh secret from the operating system.
    ///
    /// # Errors
    /// [`Error::Io`] if the operating system has no randomness to give.
    pub fn random() -> Result<Self> {
        Ok(Self(random_bytes()?))
    }

    /// The secret with these 32 bytes, which must come from a good source of randomness.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// What stands in for a secret among processes of one host that have none. Everybody knows it.
    pub(crate) const fn well_known() -> Self {
        Self(*b"rccl without a secret, one host!")
    }

    /// The 32 bytes, for passing the secret on.
    #[must_use]
    pub const fn expose(&self) -> &[u8; 32] {
        &self.0
    }

    /// The secret that `RCCL_SECRET` holds or that the file named by `RCCL_SECRET_FILE` holds, `None` if neither is set.
    /// White space around the text does not count; `openssl rand -hex 32` makes a good one.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming the variable if both are set, the text is shorter than [`MIN_SECRET_TEXT_BYTES`] or
    /// longer than [`MAX_SECRET_TEXT_BYTES`], or the file cannot be read.
    pub fn from_env() -> Result<Option<Self>> {
        Self::from_variables(std::env::var_os(SECRET_VARIABLE), std::env::var_os(SECRET_FILE_VARIABLE))
    }

    fn from_variables(text: Option<OsString>, file: Option<OsString>) -> Result<Option<Self>> {
        match (text, file) {
            (None, None) => Ok(None),
            (Some(_), Some(file)) => Err(Error::Invalid {
                what: SECRET_FILE_VARIABLE.into(),
                value: file.display().to_string(),
                reason: format!("{SECRET_VARIABLE} is set too; set one of them"),
            }),
            (Some(text), None) => {
                Self::from_text(text.as_encoded_bytes(), SECRET_VARIABLE, "(hidden)").map(Some)
            }
            (None, Some(path)) => Self::from_file(&path).map(Some),
        }
    }

    fn from_file(path: &OsString) -> Result<Self> {
        let shown = path.display().to_string();
        let unreadable = |error: std::io::Error| Error::Invalid {
            what: SECRET_FILE_VARIABLE.into(),
            value: shown.clone(),
            reason: format!("the file cannot be read: {error}"),
        };
        let file = File::open(path).map_err(unreadable)?;
        let mode = file.metadata().map_err(unreadable)?.permissions().mode();
        if mode & 0o077 != 0 {
            tracing::warn!("{SECRET_FILE_VARIABLE}: {shown} can be read by others (mode {:o})", mode & 0o777);
        }
        let mut text = Vec::new();
        file.take(MAX_SECRET_TEXT_BYTES as u64 + 1).read_to_end(&mut text).map_err(unreadable)?;
        Self::from_text(&text, SECRET_FILE_VARIABLE, &shown)
    }

    fn from_text(text: &[u8], variable: &str, shown: &str) -> Result<Self> {
        let trimmed = text.trim_ascii();
        if trimmed.len() < MIN_SECRET_TEXT_BYTES || text.len() > MAX_SECRET_TEXT_BYTES {
            return Err(Error::Invalid {
                what: variable.into(),
                value: shown.into(),
                reason: format!(
                    "the secret has {} bytes; it takes {MIN_SECRET_TEXT_BYTES} to {MAX_SECRET_TEXT_BYTES} that nobody \
                     can guess, such as the output of `openssl rand -hex 32`",
                    trimmed.len()
                ),
            });
        }
        Ok(Self(Sha256::new().chain_update(b"rccl secret text\0").chain_update(trimmed).finalize().into()))
    }

    /// The secret for another purpose. Knowing it tells nothing about this one or about those of other labels.
    #[must_use]
    pub fn derive(&self, label: &str) -> Self {
        Self(self.tag("derive", &[label.as_bytes()]))
    }

    /// [`Secret::derive`], for one of many things with the same label.
    pub(crate) fn derive_from(&self, label: &str, which: &[u8]) -> Self {
        Self(self.tag("derive", &[label.as_bytes(), which]))
    }

    /// The keyed digest of `parts` for the purpose `label`. Lengths are digested too, so that the same bytes cut
    /// differently have another tag.
    pub(crate) fn tag(&self, label: &str, parts: &[&[u8]]) -> Tag {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        for part in std::iter::once(label.as_bytes()).chain(parts.iter().copied()) {
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        mac.finalize().into_bytes().into()
    }

    /// Whether `tag` is that of `parts` for `label`, in a time that depends on neither.
    pub(crate) fn verify(&self, label: &str, parts: &[&[u8]], tag: &Tag) -> bool {
        self.tag(label, parts).ct_eq(tag).into()
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(hidden)")
    }
}

/// Fresh randomness from the operating system.
pub(crate) fn random_bytes<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| Error::io("getrandom", std::io::Error::from(error)))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: Option<&str>, file: Option<&str>) -> String {
        Secret::from_variables(text.map(Into::into), file.map(Into::into)).unwrap_err().to_string()
    }

    #[test]
    fn text_and_file_give_the_same_secret() {
        let text = "0123456789abcdef0123456789abcdef";
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        std::fs::write(&path, format!("{text}\n")).unwrap();
        let from_text = Secret::from_variables(Some(text.into()), None).unwrap().unwrap();
        let from_file = Secret::from_variables(None, Some(path.into())).unwrap().unwrap();
        assert_eq!(from_text, from_file);
        assert_ne!(
            from_text,
            Secret::from_variables(Some("another secret text".into()), None).unwrap().unwrap()
        );
        assert!(Secret::from_variables(None, None).unwrap().is_none());
    }

    #[test]
    fn nonsense_names_its_variable_and_hides_the_secret() {
        assert!(refusal(Some(""), None).starts_with("RCCL_SECRET is `(hidden)`: the secret has 0 bytes"));
        assert!(!refusal(Some("hunter2"), None).contains("hunter2"));
        assert!(refusal(Some(&"x".repeat(5000)), None).contains("5000 bytes"));
        let both = refusal(Some("0123456789abcdef"), Some("/etc/secret"));
        assert!(both.starts_with("RCCL_SECRET_FILE is `/etc/secret`: RCCL_SECRET is set too"), "{both}");
        let missing = refusal(None, Some("/nonexistent/secret"));
        assert!(missing.starts_with("RCCL_SECRET_FILE is `/nonexistent/secret`: the file cannot be read"));
        assert!(refusal(None, Some("/dev/null")).contains("the secret has 0 bytes"));
        assert!(refusal(None, Some("/dev/zero")).contains("4097 bytes"));
    }

    #[test]
    fn tags_depend_on_key_label_and_cut() {
        let secret = Secret::from_bytes([7; 32]);
        let tag = secret.tag("a", &[b"bc", b"d"]);
        assert!(secret.verify("a", &[b"bc", b"d"], &tag));
        assert!(!secret.verify("a", &[b"b", b"cd"], &tag));
        assert!(!secret.verify("ab", &[b"c", b"d"], &tag));
        assert!(!Secret::from_bytes([8; 32]).verify("a", &[b"bc", b"d"], &tag));
    }
}
