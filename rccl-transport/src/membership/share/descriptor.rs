//! Descriptors on their way between processes: by a unix socket, or as a file in a shared directory.

use std::{
    os::{
        fd::OwnedFd,
        unix::net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
};

use rccl_core::Rank;
use rustix::{
    event::PollFlags,
    fs::{FallocateFlags, Mode, OFlags},
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType},
};

use super::{Means, SHM_DIR_VARIABLE, SharedFile, Told};
use crate::{
    Error, Hello, Purpose, Result, Secret,
    deadline::{Deadline, wait_one},
    sys::passing,
};

/// Every member of the largest group may wait at the leader's socket at once.
const BACKLOG: i32 = 4096;

pub(super) fn identify(file: OwnedFd) -> Result<SharedFile> {
    let stat = rustix::fs::fstat(&file).map_err(|errno| Error::io("fstat of the file to share", errno))?;
    Ok(SharedFile { file, device: stat.st_dev, inode: stat.st_ino })
}

pub(super) fn verify(file: OwnedFd, device: u64, inode: u64) -> Told<SharedFile> {
    let shared = identify(file).map_err(|error| error.to_string())?;
    if (shared.device, shared.inode) == (device, inode) {
        return Ok(shared);
    }
    Err(format!("it got another file (device {}, inode {}) than the leader's", shared.device, shared.inode))
}

fn unix_socket(name: &str) -> rustix::io::Result<(OwnedFd, SocketAddrUnix)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    Ok((socket, SocketAddrUnix::new_abstract_name(name.as_bytes())?))
}

pub(super) fn listen(name: &str) -> Told<UnixListener> {
    let open = || {
        let (socket, address) = unix_socket(name)?;
        rustix::net::bind(&socket, &address)?;
        rustix::net::listen(&socket, BACKLOG)?;
        Ok(socket.into())
    };
    open().map_err(|errno: Errno| format!("a unix socket: {errno}"))
}

/// Fetches the descriptor from the leader's socket.
pub(super) fn take(name: &str, secret: &Secret, me: Rank, deadline: &Deadline) -> Told<OwnedFd> {
    let connect = || {
        let (socket, address) = unix_socket(name)?;
        rustix::net::connect(&socket, &address)?;
        Ok(UnixStream::from(socket))
    };
    let unreachable = |errno: Errno| {
        format!("the leader's unix socket cannot be reached ({errno}): another network namespace?")
    };
    let mut stream = connect().map_err(unreachable)?;
    let hello = Hello::initiate(secret, Purpose::FilePassing, &me.0.to_le_bytes());
    let hello = hello.and_then(|hello| hello.with_peer("the leader").finish(&mut stream, deadline));
    hello.map_err(|error| error.to_string())?;
    loop {
        match passing::receive(&stream) {
            Err(Errno::AGAIN | Errno::INTR) => {
                let ready = wait_one(&stream, PollFlags::IN, deadline).map_err(|error| error.to_string())?;
                if !ready {
                    return Err(deadline.error("the leader's file").to_string());
                }
            }
            Ok(Some(file)) => return Ok(file),
            Ok(None) => return Err("the leader passed no file".into()),
            Err(errno) => return Err(format!("receiving the leader's file: {errno}")),
        }
    }
}

/// A name in a directory, removed when dropped.
pub(super) struct Entry(PathBuf);

impl Drop for Entry {
    fn drop(&mut self) {
        if let Err(errno) = rustix::fs::unlink(&self.0) {
            tracing::warn!("{} is left behind: {errno}", self.0.display());
        }
    }
}

fn shared_directory(means: &Means) -> Told<&Path> {
    means.directory.as_deref().ok_or_else(|| {
        format!(
            "{SHM_DIR_VARIABLE} is not set: set it to a directory that the processes share, such as a volume mounted into \
             all containers, or give the containers one network"
        )
    })
}

/// A file in the shared directory, as long as `like`, that only this user can open.
pub(super) fn create(means: &Means, name: &str, like: &OwnedFd) -> Told<(SharedFile, Entry)> {
    let path = shared_directory(means)?.join(name);
    let failed = |errno: Errno| format!("creating {}: {errno}", path.display());
    let len = u64::try_from(rustix::fs::fstat(like).map_err(failed)?.st_size).unwrap_or(0);
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
    let entry = Entry(path.clone());
    if len > 0 {
        // A full disk is an error here, and would be a deadly signal later.
        match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, len) {
            Err(Errno::OPNOTSUPP) => rustix::fs::ftruncate(&file, len).map_err(failed)?,
            other => other.map_err(failed)?,
        }
    }
    Ok((identify(file).map_err(|error| error.to_string())?, entry))
}

/// Opens the file that the leader created in the shared directory.
pub(super) fn open(means: &Means, name: &str) -> Told<OwnedFd> {
    let plain = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    if !plain {
        return Err("the leader's name for the file is none".into());
    }
    let path = shared_directory(means)?.join(name);
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::open(&path, flags, Mode::empty()).map_err(|errno| {
        format!("opening the leader's file in {SHM_DIR_VARIABLE}: {}: {errno}", path.display())
    })
}
