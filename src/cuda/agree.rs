//! What ranks tell each other while their devices are made ready: every step succeeds on all ranks or fails on all.

use crate::{Communicator, Error, Result};

/// Bytes in which a rank says what it has, or why it failed.
const TOLD_BYTES: usize = 512;
const HEAD_BYTES: usize = 3;
const DONE: u8 = 0;
/// This rank's own failure.
const FAILED: u8 = 1;
/// It failed because another rank did, or did not come.
const DRAGGED: u8 = 2;

/// Tells all ranks what this one has, or how it failed; gives what all have. Returns when every rank has called it.
///
/// # Errors
/// On all ranks if it failed on one: this rank's error if it began here, else [`Error::PeerFailed`] naming the rank where it
/// did.
pub(super) fn exchange(
    communicator: &Communicator,
    mine: std::result::Result<&[u8], &Error>,
) -> Result<Vec<Vec<u8>>> {
    let told = tell(mine);
    let mut all = vec![0; TOLD_BYTES * communicator.size() as usize];
    communicator.all_gather(&told, &mut all)?;
    let (all, _) = all.as_chunks::<TOLD_BYTES>();
    let (kinds, texts): (Vec<u8>, Vec<Vec<u8>>) = all.iter().map(hear).unzip();
    let culprit =
        [FAILED, DRAGGED].into_iter().find_map(|wanted| kinds.iter().position(|&kind| kind == wanted));
    let Some(culprit) = culprit else { return Ok(texts) };
    if let Err(error) = mine
        && kinds[communicator.rank() as usize] == kinds[culprit]
    {
        return Err(error.clone());
    }
    let cause = String::from_utf8_lossy(&texts[culprit]).into_owned();
    Err(Error::PeerFailed { rank: culprit as u32, cause })
}

fn tell(mine: std::result::Result<&[u8], &Error>) -> [u8; TOLD_BYTES] {
    let (kind, text) = match mine {
        Ok(bytes) => (DONE, bytes.to_vec()),
        Err(error) => (if is_dragged(error) { DRAGGED } else { FAILED }, error.to_string().into_bytes()),
    };
    let mut told = [0; TOLD_BYTES];
    // What a rank has is short; what it says of a failure may lose its end.
    let len = text.len().min(TOLD_BYTES - HEAD_BYTES);
    debug_assert!(kind != DONE || len == text.len(), "{} bytes to tell", text.len());
    told[0] = kind;
    told[1..HEAD_BYTES].copy_from_slice(&(len as u16).to_le_bytes());
    told[HEAD_BYTES..][..len].copy_from_slice(&text[..len]);
    told
}

fn hear(told: &[u8; TOLD_BYTES]) -> (u8, Vec<u8>) {
    let len = usize::from(u16::from_le_bytes([told[1], told[2]])).min(TOLD_BYTES - HEAD_BYTES);
    (told[0], told[HEAD_BYTES..][..len].to_vec())
}

/// Whether an error is what ranks see when another one fails.
fn is_dragged(error: &Error) -> bool {
    match error {
        Error::PeerFailed { .. } | Error::PeerLost { .. } => true,
        Error::Transport(cause) => {
            matches!(**cause, rccl_transport::Error::PeerLost { .. } | rccl_transport::Error::Timeout { .. })
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;

    /// What every rank hears when each has `tell(rank)` to say.
    fn all(
        size: u32,
        tell: impl Fn(u32) -> std::result::Result<Vec<u8>, Error> + Sync,
    ) -> Vec<Result<Vec<Vec<u8>>>> {
        let group = Communicator::local(size, &Options::default()).unwrap();
        std::thread::scope(|threads| {
            let tell = &tell;
            let ranks: Vec<_> = group
                .iter()
                .map(|rank| {
                    threads.spawn(move || {
                        let mine = tell(rank.rank());
                        exchange(rank, mine.as_ref().map(Vec::as_slice))
                    })
                })
                .collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    fn argument(reason: &str) -> Error {
        Error::Argument { what: "a test", reason: reason.to_owned() }
    }

    #[test]
    fn everyone_hears_what_everyone_has() {
        for heard in all(3, |rank| Ok(vec![rank as u8; rank as usize])) {
            assert_eq!(heard.unwrap(), [vec![], vec![1], vec![2, 2]]);
        }
    }

    #[test]
    fn the_rank_where_it_began_is_named_not_those_that_it_dragged_along() {
        let heard = all(3, |rank| match rank {
            0 => Err(Error::PeerLost { rank: 2, cause: "its connection broke".to_owned() }),
            2 => Err(argument(&"no memory. ".repeat(100))),
            _ => Ok(Vec::new()),
        });
        for (rank, error) in heard.into_iter().map(Result::unwrap_err).enumerate() {
            match error {
                Error::Argument { .. } => assert_eq!(rank, 2),
                Error::PeerFailed { rank: 2, cause } => assert!(cause.starts_with("a test: no memory.")),
                other => panic!("{other}"),
            }
        }
    }
}
