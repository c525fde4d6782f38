//! Descriptors passed over unix sockets.

use std::{
    io::{IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
};

use rustix::{
    io::Errno,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
        SendFlags, recvmsg, sendmsg,
    },
};

/// Sends the descriptor with one byte, which a fresh socket always has room for.
///
/// # Errors
/// What the operating system says.
pub(crate) fn pass(socket: &UnixStream, file: &OwnedFd) -> Result<(), Errno> {
    let files = [file.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&files)) {
        return Err(Errno::NOBUFS);
    }
    sendmsg(socket, &[IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL).map(drop)
}

/// Receives what [`pass`] sent; `None` if it was a byte without a descriptor, or nothing more comes.
///
/// # Errors
/// What the operating system says; `AGAIN` if nothing is there yet.
pub(crate) fn receive(socket: &UnixStream) -> Result<Option<OwnedFd>, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    recvmsg(socket, &mut [IoSliceMut::new(&mut [0])], &mut control, flags)?;
    Ok(control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    }))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_descriptor_arrives_and_its_absence_shows() {
        let (near, far) = UnixStream::pair().unwrap();
        assert_eq!(receive(&far).unwrap_err(), Errno::AGAIN);
        let (read, write) = rustix::pipe::pipe().unwrap();
        pass(&near, &write).unwrap();
        drop(write);
        let passed = receive(&far).unwrap().unwrap();
        rustix::io::write(&passed, b"x").unwrap();
        assert_eq!(rustix::io::read(&read, &mut [0; 2]).unwrap(), 1);
        (&near).write_all(&[0]).unwrap();
        assert!(receive(&far).unwrap().is_none());
        drop(near);
        assert!(receive(&far).unwrap().is_none());
    }
}
