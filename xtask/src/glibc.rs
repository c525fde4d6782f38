//! Which glibc a shared library needs, and how to need an older one.
//!
//! Linked on a new system, a library asks for the newest version of every symbol, also of those that have been there for
//! ever: with glibc 2.34 the functions of libpthread and libdl got a new version when they moved into libc. Here such
//! references become references to no version in particular, which every glibc answers with what it has.

use crate::Result;

/// A version of glibc.
pub(crate) type Version = (u32, u32);

/// Functions that were in libpthread or libdl before glibc 2.34, unchanged. Every process that NCCL runs in has both.
const MOVED: &[&str] = &[
    "dlclose",
    "dlerror",
    "dlopen",
    "dlsym",
    "pthread_attr_destroy",
    "pthread_attr_getguardsize",
    "pthread_attr_getstack",
    "pthread_attr_init",
    "pthread_attr_setguardsize",
    "pthread_attr_setstacksize",
    "pthread_create",
    "pthread_detach",
    "pthread_getattr_np",
    "pthread_join",
    "pthread_key_create",
    "pthread_key_delete",
    "pthread_setname_np",
    "pthread_setspecific",
    "pthread_getspecific",
    "pthread_sigmask",
];

/// The bytes of the sections that matter, by offset in the file.
struct Sections {
    symbols: (usize, usize),
    strings: usize,
    versions: usize,
    needs: (usize, usize),
}

/// A 64-bit little-endian shared library.
pub(crate) struct Library(Vec<u8>);

/// One version that the library asks for, and whether it can do without.
#[derive(Debug)]
struct Need {
    at: usize,
    index: u16,
    name: String,
    weak: bool,
}

impl Library {
    /// # Errors
    /// If the bytes are no such library.
    pub(crate) fn new(bytes: Vec<u8>) -> Result<Self> {
        if bytes.get(..6) != Some(b"\x7fELF\x02\x01") {
            return Err("not a 64-bit little-endian ELF file".into());
        }
        Ok(Self(bytes))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Makes references to functions that only moved in glibc 2.34, and to those that it can do without, ones to no version;
    /// the names of those changed.
    ///
    /// # Errors
    /// If the file is damaged.
    pub(crate) fn forget_moves(&mut self) -> Result<Vec<String>> {
        let sections = self.sections()?;
        let needs = self.needs(&sections)?;
        let mut changed = Vec::new();
        for (number, name) in self.symbols(&sections)? {
            let at = sections.versions + 2 * number;
            let index = self.u16(at)? & 0x7fff;
            let recent = needs
                .iter()
                .any(|need| need.index == index && glibc(&need.name).is_some_and(|it| it > (2, 28)));
            // STB_WEAK: it can do without the function, but not without the version.
            let weak = self.byte(sections.symbols.0 + 24 * number + 4)? >> 4 == 2;
            if recent && (weak || MOVED.contains(&&*name)) {
                // VER_NDX_GLOBAL: no version.
                self.0[at..at + 2].copy_from_slice(&1_u16.to_le_bytes());
                changed.push(name);
            }
        }
        self.drop_unused(&sections, &needs)?;
        Ok(changed)
    }

    /// What no symbol refers to any more becomes a second mention of the oldest version, which is always there.
    fn drop_unused(&mut self, sections: &Sections, needs: &[Need]) -> Result {
        let used: Vec<u16> = (0..self.symbols(sections)?.len() + 1)
            .map(|number| Ok(self.u16(sections.versions + 2 * number)? & 0x7fff))
            .collect::<Result<_>>()?;
        let oldest = needs.iter().filter_map(|need| Some((glibc(&need.name)?, need.at))).min();
        let (_, oldest) = oldest.ok_or("it needs no version of glibc")?;
        let (hash, name) = (self.0[oldest..oldest + 4].to_vec(), self.0[oldest + 8..oldest + 12].to_vec());
        for need in needs.iter().filter(|need| glibc(&need.name).is_some() && !used.contains(&need.index)) {
            self.0[need.at..need.at + 4].copy_from_slice(&hash);
            self.0[need.at + 8..need.at + 12].copy_from_slice(&name);
        }
        Ok(())
    }

    /// The oldest glibc that it starts with, and for people the symbols that need it.
    ///
    /// # Errors
    /// If the file is damaged.
    pub(crate) fn oldest_glibc(&self) -> Result<(Version, Vec<String>)> {
        let sections = self.sections()?;
        let needs = self.needs(&sections)?;
        let newest = needs.iter().filter(|need| !need.weak).filter_map(|need| glibc(&need.name)).max();
        let newest = newest.ok_or("it needs no version of glibc")?;
        let mut symbols = Vec::new();
        for (number, name) in self.symbols(&sections)? {
            let index = self.u16(sections.versions + 2 * number)? & 0x7fff;
            if needs.iter().any(|need| need.index == index && glibc(&need.name) == Some(newest)) {
                symbols.push(name);
            }
        }
        Ok((newest, symbols))
    }

    fn sections(&self) -> Result<Sections> {
        let (table, size) = (self.u64(0x28)? as usize, usize::from(self.u16(0x3a)?));
        let find = |kind: u32| -> Result<(usize, usize)> {
            for header in (0..usize::from(self.u16(0x3c)?)).map(|index| table + index * size) {
                if self.u32(header + 4)? == kind {
                    return Ok((self.u64(header + 0x18)? as usize, self.u64(header + 0x20)? as usize));
                }
            }
            Err(format!("it has no section of type {kind:#x}").into())
        };
        // SHT_DYNSYM, SHT_GNU_versym, SHT_GNU_verneed; .dynstr is named by the dynamic symbols' section.
        let (symbols, versions, needs) = (find(11)?, find(0x6fff_ffff)?.0, find(0x6fff_fffe)?);
        let header = (0..usize::from(self.u16(0x3c)?)).map(|index| table + index * size);
        let header = header
            .into_iter()
            .find(|&at| self.u32(at + 4).is_ok_and(|kind| kind == 11))
            .ok_or("no symbols")?;
        let strings = table + self.u32(header + 0x28)? as usize * size;
        Ok(Sections { symbols, strings: self.u64(strings + 0x18)? as usize, versions, needs })
    }

    /// Numbers and names of the dynamic symbols, without the empty first one.
    fn symbols(&self, sections: &Sections) -> Result<Vec<(usize, String)>> {
        let (start, bytes) = sections.symbols;
        let name = |number: usize| -> Result<_> {
            let name = self.u32(start + 24 * number)? as usize;
            Ok((number, self.text(sections.strings + name)?))
        };
        (1..bytes / 24).map(name).collect()
    }

    fn needs(&self, sections: &Sections) -> Result<Vec<Need>> {
        let (mut file, end) = (sections.needs.0, sections.needs.0 + sections.needs.1);
        let mut found = Vec::new();
        while file < end {
            let mut at = file + self.u32(file + 8)? as usize;
            for _ in 0..self.u16(file + 2)? {
                let name = self.text(sections.strings + self.u32(at + 8)? as usize)?;
                // VER_FLG_WEAK: whoever links it in vain only misses the symbol.
                let weak = self.u16(at + 4)? & 2 != 0;
                found.push(Need { at, index: self.u16(at + 6)?, name, weak });
                at += self.u32(at + 12)? as usize;
            }
            match self.u32(file + 12)? {
                0 => break,
                next => file += next as usize,
            }
        }
        Ok(found)
    }

    fn array<const N: usize>(&self, at: usize) -> Result<[u8; N]> {
        let bytes = self.0.get(at..).and_then(|rest| rest.first_chunk());
        bytes.copied().ok_or_else(|| format!("it ends before byte {at}").into())
    }

    fn byte(&self, at: usize) -> Result<u8> {
        self.array::<1>(at).map(|[byte]| byte)
    }

    fn u16(&self, at: usize) -> Result<u16> {
        self.array(at).map(u16::from_le_bytes)
    }

    fn u32(&self, at: usize) -> Result<u32> {
        self.array(at).map(u32::from_le_bytes)
    }

    fn u64(&self, at: usize) -> Result<u64> {
        self.array(at).map(u64::from_le_bytes)
    }

    fn text(&self, at: usize) -> Result<String> {
        let rest = self.0.get(at..).ok_or("a name outside the file")?;
        let end = rest.iter().position(|&byte| byte == 0).ok_or("a name without an end")?;
        Ok(String::from_utf8_lossy(&rest[..end]).into_owned())
    }
}

/// `GLIBC_2.34` as numbers; `None` for the versions of other libraries and private ones.
fn glibc(name: &str) -> Option<Version> {
    let mut numbers = name.strip_prefix("GLIBC_")?.split('.').map(|part| part.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_numbers() {
        assert_eq!([glibc("GLIBC_2.2.5"), glibc("GLIBC_2.34")], [Some((2, 2)), Some((2, 34))]);
        assert_eq!([glibc("GLIBC_PRIVATE"), glibc("GCC_3.0")], [None, None]);
    }

    #[test]
    fn what_is_no_library_is_refused() {
        assert!(Library::new(b"#!/bin/sh".to_vec()).is_err());
        let cut = Library::new([&b"\x7fELF\x02\x01"[..], &[0; 20]].concat()).unwrap();
        assert!(cut.oldest_glibc().is_err());
    }

    #[test]
    fn moves_are_forgotten_in_a_program_of_this_system() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let mut library = Library::new(own).unwrap();
        let (before, _) = library.oldest_glibc().unwrap();
        let changed = library.forget_moves().unwrap();
        let (after, symbols) = library.oldest_glibc().unwrap();
        assert!(
            after <= before && !symbols.iter().any(|name| changed.contains(name)),
            "{after:?} {symbols:?}"
        );
        assert!(library.forget_moves().unwrap().is_empty());
    }
}
