//! The architecture as data, compared with the workspace by the tests of this crate: which crate
//! may depend on which, what some files must not mention, how long lines and functions may be.
//! ARCHITECTURE.md says why.

pub mod source;

/// Each crate (without the prefix `regatta-`) and the crates of this workspace that it depends on,
/// tests aside. Dependencies only point up: a crate may only name crates that stand above it here.
pub const MAY_DEPEND_ON: &[(&str, &[&str])] = &[
    ("tensor", &[]),
    ("kernels", &[]),
    ("net", &[]),
    ("cluster", &[]),
    ("cold", &[]),
    ("store", &["cluster"]),
    ("optim", &["kernels"]),
    ("device", &["optim"]),
    ("ir", &["tensor"]),
    ("features", &[]),
    ("data", &["features", "store", "tensor"]),
    ("table", &["cold", "kernels", "optim", "tensor"]),
    ("checkpoint", &["ir", "table", "tensor"]),
    ("ps", &["checkpoint", "kernels", "net", "optim", "table", "tensor"]),
    ("collective", &["kernels", "net"]),
    ("ops", &["ir", "kernels", "optim", "tensor"]),
    ("passes", &["ir", "ops", "optim", "tensor"]),
    ("exec", &["device", "ir", "kernels", "ops", "optim", "passes", "tensor"]),
    ("eager", &["ir", "kernels", "ops", "optim", "tensor"]),
    // The loop knows every kind of training, but neither who starts it nor how it was written down.
    ("train", TRAIN),
    ("fleet", FLEET),
    // A server of predictions has nothing of training in it.
    ("predict", &["checkpoint", "exec", "features", "ir", "ops", "passes", "table", "tensor"]),
    ("rec", REC),
    ("plan", PLAN),
    ("launch", &["cluster", "net"]),
    ("serve", &["features", "ir", "tensor"]),
    ("regatta", REGATTA),
    ("python", PYTHON),
    ("bench", BENCH),
    ("archtest", &[]),
];

#[rustfmt::skip]
const TRAIN: &[&str] = &[
    "checkpoint", "collective", "data", "device", "exec", "ir", "ops", "optim", "passes", "ps",
    "table", "tensor",
];

#[rustfmt::skip]
const FLEET: &[&str] = &[
    "checkpoint", "cluster", "collective", "data", "exec", "ir", "optim", "passes", "ps", "table",
    "tensor", "train",
];

#[rustfmt::skip]
const REC: &[&str] = &[
    "checkpoint", "collective", "data", "device", "exec", "features", "fleet", "ir", "ops", "optim", "passes",
    "ps", "table", "tensor", "train",
];

#[rustfmt::skip]
const PLAN: &[&str] = &[
    "data", "exec", "fleet", "ir", "optim", "passes", "ps", "rec", "table", "tensor", "train",
];

#[rustfmt::skip]
const REGATTA: &[&str] = &[
    "checkpoint", "cluster", "collective", "data", "device", "exec", "features", "fleet", "ir",
    "launch", "ops",
    "optim", "passes", "plan", "predict", "ps", "rec", "serve", "tensor", "train",
];

#[rustfmt::skip]
const PYTHON: &[&str] = &[
    "checkpoint", "cluster", "collective", "data", "eager", "exec", "features", "fleet", "ir", "ops",
    "optim", "passes", "predict", "ps", "regatta", "table", "tensor", "train",
];

#[rustfmt::skip]
const BENCH: &[&str] = &[
    "checkpoint", "collective", "data", "exec", "ir", "kernels", "net", "ops", "optim", "passes",
    "predict", "ps", "rec", "table", "tensor", "train",
];

/// Words that some sources must not contain, comments aside.
pub struct Ban {
    /// Folders and files below `crates/`.
    pub within: &'static [&'static str],
    /// Those of them that may.
    pub except: &'static [&'static str],
    /// What they must not mention.
    pub words: &'static [&'static str],
    /// Why, and what to do instead.
    pub instead: &'static str,
}

/// What the charters of ARCHITECTURE.md say about words.
pub const BANS: &[Ban] = &[
    Ban {
        within: &["tensor/src", "optim/src", "ir/src", "passes/src", "ops/src"],
        except: &[],
        words: &["std::fs", "std::net", "std::thread", "std::time", "std::process", "std::env"],
        instead: "everything in these crates can be tested by calling it: take what is needed as an \
                  argument",
    },
    Ban {
        within: &["kernels/src"],
        except: &[],
        words: &["std::fs", "std::net", "std::thread", "std::process", "rayon"],
        instead: "a kernel is a loop over slices; whoever calls it divides the work",
    },
    Ban {
        within: &["table/src"],
        except: &[],
        words: &["std::net", "tokio", "async fn"],
        instead: "a table is in one process; what travels belongs to crate ps",
    },
    Ban {
        within: &["cold/src"],
        except: &[],
        words: &["std::net", "SystemTime", "sync_all", "sync_data", "regatta_"],
        instead: "a store of cold rows is memory of one process: it knows records and files, nothing \
                  of tables, and nothing of it survives",
    },
    Ban {
        within: &["cluster/src"],
        except: &[],
        words: &["TcpStream", "TcpListener", "ToSocketAddrs", "std::thread", "std::process"],
        instead: "cluster says who a process is; connections belong to crate net",
    },
    Ban {
        within: &["ps/src/communicator"],
        except: &[],
        words: &["std::net", "regatta_net", "std::thread", "std::time", "Client"],
        instead: "a communicator is a pure state machine: events in, commands out",
    },
    Ban {
        within: BACKENDS,
        except: &[],
        words: &["std::fs", "println!", "observe::", "Observer", "Meter"],
        instead: "a backend never prints, counts examples or touches files: run_pass does, for all",
    },
    Ban {
        within: &["train/src", "fleet/src", "rec/src", "regatta/src/cli"],
        except: &["train/src/pass.rs", "train/src/lookahead.rs"],
        words: &["feed.next()"],
        instead: "run_pass is the only loop over batches: give it a backend or a feed",
    },
    Ban {
        within: &["train/src", "ps/src", "exec/src", "passes/src", "regatta/src", "plan/src"],
        except: &[],
        words: &[
            "== \"sync\"",
            "== \"async\"",
            "== \"geo\"",
            "== \"half_async\"",
            "\"sync\" =>",
            "\"async\" =>",
            "\"geo\" =>",
            "\"half_async\" =>",
            "sync_mode ==",
        ],
        instead: "a mode is text only where it is read (rec/src/config, fleet/src/strategy): match on \
                  regatta_ps::Mode",
    },
];

/// What differs between the kinds of training.
const BACKENDS: &[&str] = &[
    "train/src/local.rs",
    "train/src/servers.rs",
    "train/src/geo.rs",
    "train/src/ranks.rs",
    "train/src/gpubox",
];

/// Folders and files below `crates/` that may contain `unsafe`.
pub const UNSAFE: &[&str] = &[
    "cold/src/ring.rs",
    "collective/src/links/messages.rs",
    "collective/src/memory",
    "device/src/cuda",
    "device/src/host.rs",
    "device/src/opencl/mod.rs",
    "eager/src/kernel.rs",
    "exec/src/mapped.rs",
    "exec/src/segment.rs",
    "kernels/src",
    "launch/src/guard.rs",
    "net/src/arena.rs",
    "ops/src/half.rs",
    "ops/src/interp.rs",
    "ops/src/io.rs",
    "predict/src/mapped.rs",
    "table/src/memory.rs",
];

/// Files with a `static` that changes: numbers that are given out once, prepared ops and freed
/// buffers of tensors that compute at once, and MPI, of which a process has one.
pub const GLOBALS: &[&str] =
    &["collective/src/mpi.rs", "eager/src/global.rs", "exec/src/scope.rs", "python/src/program.rs"];

/// Columns of a line of Rust; rustfmt.toml says the same for what it can break.
pub const RUST_COLUMNS: usize = 100;

/// Crates whose comments are still to be wrapped. The list only gets shorter.
pub const NOT_YET_WRAPPED: &[&str] = &["data"];

/// Columns of a line of a document, tables and code blocks aside.
pub const DOCUMENT_COLUMNS: usize = 120;

/// Lines of a function, from `fn` to its last brace, tests aside.
pub const FUNCTION_LINES: usize = 70;

/// Stops of a walk in ARCHITECTURE.md.
pub const WALK_STOPS: usize = 12;
