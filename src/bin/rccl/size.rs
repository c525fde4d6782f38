//! Numbers of bytes as people write them.

/// Parses a number of bytes: digits, then nothing, `K`, `M` or `G` (powers of 1024, any case, optionally followed by
/// `B` or `iB`).
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let lower = text.trim().to_ascii_lowercase();
    let number = lower.trim_end_matches("ib").trim_end_matches('b');
    let (digits, shift) = match number.as_bytes().last() {
        Some(b'k') => (&number[..number.len() - 1], 10),
        Some(b'm') => (&number[..number.len() - 1], 20),
        Some(b'g') => (&number[..number.len() - 1], 30),
        _ => (number, 0),
    };
    let value: u64 = digits
        .parse()
        .map_err(|_| format!("`{text}` is no number of bytes; write for example 512, 64K, 8M or 1G"))?;
    value.checked_mul(1 << shift).ok_or_else(|| format!("`{text}` is more than 2^64 bytes"))
}

/// A number of bytes with the largest binary unit that keeps it above 1, to three digits: `1.5 MiB`.
pub(crate) fn human(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut unit = 0;
    let mut value = bytes as f64;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = usize::from(value < 100.0 && value.fract() > 0.005);
    format!("{value:.digits$} {}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_with_and_without_suffix() {
        for (text, bytes) in [
            ("0", 0),
            ("8", 8),
            ("4k", 4096),
            ("64K", 65_536),
            ("3M", 3 << 20),
            ("2G", 2 << 30),
            ("1MiB", 1 << 20),
            ("7KB", 7168),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused_with_an_example() {
        for text in ["", "K", "-1", "1.5M", "12Q", "99999999999G"] {
            let message = parse(text).unwrap_err();
            assert!(message.contains(&format!("`{text}`")), "{message}");
        }
    }

    #[test]
    fn sizes_for_people() {
        assert_eq!(human(0), "0 B");
        assert_eq!(human(1023), "1023 B");
        assert_eq!(human(1024), "1 KiB");
        assert_eq!(human(3 << 19), "1.5 MiB");
        assert_eq!(human(125 << 30), "125 GiB");
    }
}
