//! Bytes of bootstrap messages: fields in a fixed order, little endian, and frames of a bounded length.

use std::{
    io::{self, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

/// Bytes that are not what they should be; says what is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Malformed(pub(crate) String);

/// Writes fields one after the other.
#[derive(Debug, Default)]
pub(crate) struct Encoder(pub(crate) Vec<u8>);

impl Encoder {
    pub(crate) fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn u8(&mut self, value: u8) -> &mut Self {
        self.raw(&[value])
    }

    pub(crate) fn u32(&mut self, value: u32) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    pub(crate) fn u64(&mut self, value: u64) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    /// The length and then the bytes.
    ///
    /// # Panics
    /// From 4 GiB on.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.u32(u32::try_from(bytes.len()).expect("fields are shorter than 4 GiB")).raw(bytes)
    }

    /// 7 bytes for IPv4, 19 for IPv6. The scope of a link-local address is left out: it means something only on the host
    /// that it came from.
    pub(crate) fn address(&mut self, address: &SocketAddr) -> &mut Self {
        match address.ip() {
            IpAddr::V4(ip) => self.u8(4).raw(&ip.octets()),
            IpAddr::V6(ip) => self.u8(6).raw(&ip.octets()),
        };
        self.raw(&address.port().to_le_bytes())
    }

    pub(crate) fn addresses(&mut self, addresses: &[SocketAddr]) -> &mut Self {
        self.u32(u32::try_from(addresses.len()).expect("address lists are short"));
        for address in addresses {
            self.address(address);
        }
        self
    }
}

/// Reads fields one after the other.
#[derive(Debug)]
pub(crate) struct Decoder<'a>(&'a [u8]);

type Decoded<T> = Result<T, Malformed>;

impl<'a> Decoder<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn raw(&mut self, len: usize) -> Decoded<&'a [u8]> {
        let Some((field, rest)) = self.0.split_at_checked(len) else {
            return Err(Malformed(format!("it ends {} bytes before its end", len - self.0.len())));
        };
        self.0 = rest;
        Ok(field)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Decoded<[u8; N]> {
        Ok(self.raw(N)?.try_into().expect("raw gives what it was asked for"))
    }

    pub(crate) fn u8(&mut self) -> Decoded<u8> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u32(&mut self) -> Decoded<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Decoded<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// A field of at most `limit` bytes.
    pub(crate) fn bytes(&mut self, limit: usize) -> Decoded<&'a [u8]> {
        let len = self.u32()? as usize;
        if len > limit {
            return Err(Malformed(format!("a field of {len} bytes where at most {limit} are allowed")));
        }
        self.raw(len)
    }

    pub(crate) fn text(&mut self, limit: usize) -> Decoded<String> {
        Ok(String::from_utf8_lossy(self.bytes(limit)?).into_owned())
    }

    pub(crate) fn address(&mut self) -> Decoded<SocketAddr> {
        let ip = match self.u8()? {
            4 => IpAddr::V4(Ipv4Addr::from(self.array::<4>()?)),
            6 => IpAddr::V6(Ipv6Addr::from(self.array::<16>()?)),
            family => return Err(Malformed(format!("an address of family {family}, neither 4 nor 6"))),
        };
        Ok(SocketAddr::new(ip, u16::from_le_bytes(self.array()?)))
    }

    pub(crate) fn addresses(&mut self, limit: usize) -> Decoded<Vec<SocketAddr>> {
        let count = self.u32()? as usize;
        if count > limit {
            return Err(Malformed(format!("{count} addresses where at most {limit} are allowed")));
        }
        (0..count).map(|_| self.address()).collect()
    }

    pub(crate) fn end(self) -> Decoded<()> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed(format!("{} bytes too many", self.0.len()))) }
    }
}

/// Bytes of the length before a frame.
const FRAME_HEADER_BYTES: usize = 4;

/// Reads frames from a non-blocking stream, and no byte beyond the one it is reading.
#[derive(Debug)]
pub(crate) struct FrameReader {
    limit: usize,
    have: usize,
    bytes: Vec<u8>,
}

impl FrameReader {
    /// A reader of frames of at most `limit` bytes.
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, have: 0, bytes: vec![0; FRAME_HEADER_BYTES] }
    }

    /// The next frame, once it has arrived.
    ///
    /// # Errors
    /// What the stream says; `UnexpectedEof` at its end; `InvalidData` for a longer frame.
    pub(crate) fn advance(&mut self, stream: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
        loop {
            if self.have == self.bytes.len() && self.have >= FRAME_HEADER_BYTES {
                let len = u32::from_le_bytes(self.bytes[..FRAME_HEADER_BYTES].try_into().expect("4 bytes"))
                    as usize;
                if len > self.limit {
                    let message =
                        format!("a message of {len} bytes where at most {} are allowed", self.limit);
                    return Err(io::Error::new(io::ErrorKind::InvalidData, message));
                }
                if self.have == FRAME_HEADER_BYTES + len {
                    let mut frame = std::mem::replace(self, Self::new(self.limit)).bytes;
                    frame.drain(..FRAME_HEADER_BYTES);
                    return Ok(Some(frame));
                }
                self.bytes.resize(FRAME_HEADER_BYTES + len, 0);
            }
            match stream.read(&mut self.bytes[self.have..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.have += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }
}

/// Writes one frame to a non-blocking stream. The bytes can be shared by many writers.
#[derive(Debug, Clone)]
pub(crate) struct FrameWriter {
    frame: Arc<[u8]>,
    written: usize,
}

impl FrameWriter {
    /// A writer of `body`, with its length before it.
    pub(crate) fn new(body: &[u8]) -> Self {
        let mut frame = Encoder(Vec::with_capacity(FRAME_HEADER_BYTES + body.len()));
        frame.bytes(body);
        Self { frame: frame.0.into(), written: 0 }
    }

    /// Whether everything has been written.
    pub(crate) fn is_done(&self) -> bool {
        self.written == self.frame.len()
    }

    /// Writes as much as the stream takes; says whether that was all.
    pub(crate) fn advance(&mut self, stream: &mut impl Write) -> io::Result<bool> {
        while !self.is_done() {
            match stream.write(&self.frame[self.written..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn fields_come_back() {
        let addresses: Vec<SocketAddr> =
            vec!["10.0.0.1:80".parse().unwrap(), "[2001:db8::1]:443".parse().unwrap()];
        let mut encoder = Encoder::default();
        encoder.u8(7).u32(1 << 20).u64(1 << 40).bytes(b"text").addresses(&addresses);
        let mut decoder = Decoder::new(&encoder.0);
        assert_eq!(decoder.u8().unwrap(), 7);
        assert_eq!(decoder.u32().unwrap(), 1 << 20);
        assert_eq!(decoder.u64().unwrap(), 1 << 40);
        assert_eq!(decoder.text(4).unwrap(), "text");
        assert_eq!(decoder.addresses(2).unwrap(), addresses);
        decoder.end().unwrap();
    }

    #[test]
    fn frames_come_back_one_by_one_and_never_too_long() {
        let (mut left, mut right) = UnixStream::pair().unwrap();
        right.set_nonblocking(true).unwrap();
        for body in [&b"first"[..], b"", b"third"] {
            assert!(FrameWriter::new(body).advance(&mut left).unwrap());
        }
        let mut reader = FrameReader::new(5);
        assert_eq!(reader.advance(&mut right).unwrap().unwrap(), b"first");
        assert_eq!(reader.advance(&mut right).unwrap().unwrap(), b"");
        assert_eq!(reader.advance(&mut right).unwrap().unwrap(), b"third");
        assert_eq!(reader.advance(&mut right).unwrap(), None);
        FrameWriter::new(b"sixths").advance(&mut left).unwrap();
        assert_eq!(reader.advance(&mut right).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_decoder_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = Decoder::new(&bytes).bytes(10);
            let _ = Decoder::new(&bytes).addresses(4);
            let _ = Decoder::new(&bytes).text(64);
            let mut decoder = Decoder::new(&bytes);
            while decoder.u64().is_ok() {}
        }
    }
}
