//! Open files: each segment is one, which is one for 64 MB of records on disk.

use std::io;

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Lets this process open as many files as the system allows it. Systems begin with 1024, which is
/// 64 GB of records, because of programs that use `select`.
pub(crate) fn raise_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        // With the old limit a store still works, up to its size.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    }
}

/// Says what to do if there are too many open files; other errors stay as they are.
pub(crate) fn explain(error: io::Error) -> io::Error {
    if Errno::from_io_error(&error) != Some(Errno::MFILE) {
        return error;
    }
    let limit = getrlimit(Resource::Nofile).current.map(|n| n.to_string());
    let limit = limit.unwrap_or_else(|| "no limit".into());
    io::Error::new(
        error.kind(),
        format!(
            "{error}: each segment of rows on disk is an open file, and this process may have \
             {limit}; raise the limit (ulimit -Hn, LimitNOFILE of systemd)"
        ),
    )
}
