//! Which devices may be used: `NCCL_IB_HCA`.

use crate::{Error, Result};

/// The environment variable.
pub(super) const VARIABLE: &str = "NCCL_IB_HCA";

/// A choice among devices and their ports.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Hca {
    avoid: bool,
    exact: bool,
    /// Names (or beginnings of them) and ports; none allows all.
    names: Vec<(String, Option<u8>)>,
}

impl Hca {
    /// Exactly this port of this device.
    pub(super) fn only(device: &str, port: u8) -> Self {
        Self { avoid: false, exact: true, names: vec![(device.to_owned(), Some(port))] }
    }

    /// Beginnings of names (`mlx5`), each with a port or without (`mlx5_0:1`), separated by commas; after `=` whole names;
    /// after `^` those to avoid.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming the variable.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let invalid = |reason: &str| Error::Invalid {
            what: format!("environment variable {VARIABLE}"),
            value: text.to_owned(),
            reason: reason.to_owned(),
        };
        let (avoid, rest) = text.strip_prefix('^').map_or((false, text), |rest| (true, rest));
        let (exact, rest) = rest.strip_prefix('=').map_or((false, rest), |rest| (true, rest));
        let mut names = Vec::new();
        for entry in rest.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            names.push(match entry.split_once(':') {
                None => (entry.to_owned(), None),
                Some((name, port)) => {
                    let port = port.parse().map_err(|_| invalid("a port after `:` is a number from 1 on"))?;
                    (name.to_owned(), Some(port))
                }
            });
        }
        if names.is_empty() && !text.trim().is_empty() {
            return Err(invalid("it names no device; write names as `rccl topo` lists them"));
        }
        Ok(Self { avoid, exact, names })
    }

    /// Whether a port may be used.
    pub(super) fn allows(&self, device: &str, port: u8) -> bool {
        let named = self.names.iter().any(|(name, of)| {
            (if self.exact { device == name } else { device.starts_with(name.as_str()) })
                && of.is_none_or(|of| of == port)
        });
        self.names.is_empty() || named != self.avoid
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_ports_and_exceptions() {
        for (text, allowed) in [
            ("", &[("mlx5_0", 1), ("mlx5_10", 2), ("rxe0", 1)][..]),
            ("mlx5_1", &[("mlx5_10", 2)]),
            ("mlx5:1,rxe0", &[("mlx5_0", 1), ("rxe0", 1)]),
            ("=mlx5_1", &[]),
            ("^mlx5", &[("rxe0", 1)]),
            ("^=mlx5_0:1", &[("mlx5_10", 2), ("rxe0", 1)]),
        ] {
            let hca = Hca::parse(text).unwrap();
            let all = [("mlx5_0", 1), ("mlx5_10", 2), ("rxe0", 1)];
            let found: Vec<_> = all.into_iter().filter(|&(name, port)| hca.allows(name, port)).collect();
            assert_eq!(found, allowed, "{text}");
        }
        assert!(Hca::only("rxe0", 1).allows("rxe0", 1) && !Hca::only("rxe0", 1).allows("rxe01", 1));
        for text in ["mlx5_0:x", "^", "=,"] {
            assert!(Hca::parse(text).unwrap_err().to_string().contains(VARIABLE), "{text}");
        }
    }
}
