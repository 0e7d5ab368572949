//! What the variables of the contract are called.

/// `TRAINER` or `PSERVER`.
pub const TRAINING_ROLE: &str = "TRAINING_ROLE";
/// Addresses of all parameter servers, in order.
pub const SERVERS: &str = "PADDLE_PSERVERS_IP_PORT_LIST";
/// Addresses of all workers or ranks, in order.
pub const TRAINER_ENDPOINTS: &str = "PADDLE_TRAINER_ENDPOINTS";
/// Number of workers or ranks.
pub const TRAINERS_NUM: &str = "PADDLE_TRAINERS_NUM";
/// Index of this worker or rank.
pub const TRAINER_ID: &str = "PADDLE_TRAINER_ID";
/// Address of this process, without the port.
pub const POD_IP: &str = "POD_IP";
/// Port of this process.
pub const PORT: &str = "PADDLE_PORT";
/// Whether workers that are PaddlePaddle meet in Gloo: 0 not, 1 workers, 2 servers as well. Regatta
/// itself does not need it.
pub const WITH_GLOO: &str = "PADDLE_WITH_GLOO";
/// How they find each other there: 3 says over HTTP.
pub const GLOO_RENDEZVOUS: &str = "PADDLE_GLOO_RENDEZVOUS";
/// Where the first server of PaddlePaddle listens for that.
pub const GLOO_ENDPOINT: &str = "PADDLE_GLOO_HTTP_ENDPOINT";

/// What `torchrun` calls the index of a worker or rank.
pub const TORCH_RANK: &str = "RANK";
/// Number of workers or ranks, for PyTorch.
pub const TORCH_SIZE: &str = "WORLD_SIZE";
/// Number of this worker or rank within its machine, for PyTorch.
pub const TORCH_LOCAL_RANK: &str = "LOCAL_RANK";
/// Number of workers or ranks on this machine, for PyTorch.
pub const TORCH_LOCAL_SIZE: &str = "LOCAL_WORLD_SIZE";
/// The machine of the first worker or rank.
pub const TORCH_MASTER: &str = "MASTER_ADDR";
/// A port there on which PyTorch listens.
pub const TORCH_PORT: &str = "MASTER_PORT";

/// Address of this rank.
pub const CURRENT_ENDPOINT: &str = "PADDLE_CURRENT_ENDPOINT";
/// Number of this rank within its machine, in two spellings.
pub const RANK_IN_NODE: &str = "PADDLE_RANK_IN_NODE";
/// Number of this rank within its machine.
pub const LOCAL_RANK: &str = "PADDLE_LOCAL_RANK";
/// Number of ranks on this machine.
pub const LOCAL_SIZE: &str = "PADDLE_LOCAL_SIZE";
/// Rank of this process, once more.
pub const GLOBAL_RANK: &str = "PADDLE_GLOBAL_RANK";
/// Number of ranks, once more.
pub const GLOBAL_SIZE: &str = "PADDLE_GLOBAL_SIZE";
/// Number of machines.
pub const NNODES: &str = "PADDLE_NNODES";
/// Where machines meet.
pub const MASTER: &str = "PADDLE_MASTER";
/// Devices of this rank.
pub const LOCAL_DEVICES: &str = "PADDLE_LOCAL_DEVICE_IDS";
/// Devices of all ranks.
pub const WORLD_DEVICES: &str = "PADDLE_WORLD_DEVICE_IDS";
/// Devices of this rank or worker, as the framework's flags say it.
pub const SELECTED_GPUS: &str = "FLAGS_selected_gpus";
/// Devices of the machine that a process sees at all; drivers of NVIDIA read it, too.
pub const VISIBLE_DEVICES: &str = "CUDA_VISIBLE_DEVICES";
/// Devices of this rank, for accelerators of any kind.
pub const SELECTED_ACCELERATORS: &str = "FLAGS_selected_accelerators";
/// How ranks talk: `gloo` says that there is no device.
pub const BACKEND: &str = "PADDLE_DISTRI_BACKEND";
/// Whether training stops at the first NaN or infinity, naming the op.
pub const CHECK_NAN_INF: &str = "FLAGS_check_nan_inf";

/// Name of the job.
pub const JOB_ID: &str = "PADDLE_JOB_ID";
/// Secret that all processes of the job share.
pub const JOB_TOKEN: &str = "REGATTA_JOB_TOKEN";
/// Which connections are encrypted: `on` (those between machines), `always` or `off`.
pub const TLS: &str = "REGATTA_TLS";
/// Certificate chain of this process, if it does not make its own.
pub const TLS_CERT: &str = "REGATTA_TLS_CERT";
/// The private key that belongs to it.
pub const TLS_KEY: &str = "REGATTA_TLS_KEY";
/// Who must have signed the certificates of others.
pub const TLS_CA: &str = "REGATTA_TLS_CA";
/// Where processes report to their launcher how they are doing.
pub const STATUS: &str = "REGATTA_STATUS";
/// Seconds that processes may take to appear.
pub const START_TIMEOUT: &str = "REGATTA_START_TIMEOUT";

/// 1 in processes that run programs of PaddlePaddle on Regatta.
pub const PADDLE: &str = "REGATTA_PADDLE";

/// The older names: `TRAINER` or `PSERVER`.
pub const FLUID_ROLE: &str = "PADDLE_TRAINING_ROLE";
/// The one port of all servers.
pub const FLUID_PORT: &str = "PADDLE_PSERVER_PORT";
/// Addresses of all servers, without the port.
pub const FLUID_IPS: &str = "PADDLE_PSERVER_IPS";
/// Address of this machine.
pub const FLUID_CURRENT_IP: &str = "PADDLE_CURRENT_IP";
/// Number of workers.
pub const FLUID_TRAINERS: &str = "PADDLE_TRAINERS";

/// With a scheduler: how many of the processes are servers.
pub const SERVER_NUM: &str = "PADDLE_SERVER_NUM";
/// With a scheduler: addresses of the machines, in the order of the ranks.
pub const IPS: &str = "PADDLE_IPS";
/// With a scheduler: the first port on each machine.
pub const START_PORT: &str = "PADDLE_START_PORT";

/// Everything that says what the place of a process is. A launcher removes these from what its
/// children inherit, so that a job started inside another one cannot mix the two up.
pub const PLACE: &[&str] = &[
    TRAINING_ROLE,
    SERVERS,
    TRAINER_ENDPOINTS,
    TRAINERS_NUM,
    TRAINER_ID,
    POD_IP,
    PORT,
    TORCH_RANK,
    TORCH_SIZE,
    TORCH_LOCAL_RANK,
    TORCH_LOCAL_SIZE,
    TORCH_MASTER,
    TORCH_PORT,
    // Says that somebody else listens on the port of the master.
    "TORCHELASTIC_USE_AGENT_STORE",
    CURRENT_ENDPOINT,
    RANK_IN_NODE,
    LOCAL_RANK,
    LOCAL_SIZE,
    GLOBAL_RANK,
    GLOBAL_SIZE,
    NNODES,
    MASTER,
    LOCAL_DEVICES,
    WORLD_DEVICES,
    JOB_ID,
    JOB_TOKEN,
    TLS,
    TLS_CERT,
    TLS_KEY,
    TLS_CA,
    START_TIMEOUT,
    STATUS,
    FLUID_ROLE,
    FLUID_PORT,
    FLUID_IPS,
    FLUID_CURRENT_IP,
    FLUID_TRAINERS,
    SERVER_NUM,
    IPS,
    START_PORT,
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_RANK",
    "PMI_SIZE",
    "SLURM_PROCID",
    "JOB_COMPLETION_INDEX",
];

/// Proxies that would stand between the processes of a job.
pub const PROXIES: &[&str] =
    &["http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"];
