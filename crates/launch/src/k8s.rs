//! `--emit k8s`: a job as Kubernetes objects.
//!
//! Servers are a StatefulSet, workers an indexed Job; a headless Service gives both names that
//! last, and a Secret holds the job token. Pods get the variables of the contract; a worker finds
//! its index in an annotation, a server in its own name.

use regatta_cluster::names;
use serde_json::{Value, json};

use crate::flags::{JobRequest, Members, Shape};
use crate::{Error, random_token};

/// The port of servers and ranks; every pod has an address of its own. What other frameworks open
/// is the next one.
const PORT: u16 = 6174;

/// Where Kubernetes says the index of a pod of a Job.
const INDEX: &str = "metadata.annotations['batch.kubernetes.io/job-completion-index']";

/// The objects of a job that runs `command` in `image`, in the order in which to create them.
///
/// # Errors
/// If the name of the job cannot be a name there, or something is missing or senseless.
pub fn objects(
    request: &JobRequest,
    image: Option<&str>,
    command: &[String],
    token: Option<String>,
) -> Result<Vec<Value>, Error> {
    let image = image.ok_or_else(|| Error::Usage("--emit k8s needs --image".into()))?;
    if command.is_empty() {
        return Err(Error::Usage("what should the pods start? add a program".into()));
    }
    let name = label(&request.job_id)?;
    let port = request.start_port.unwrap_or(PORT);
    if port == u16::MAX {
        return Err(Error::Usage(format!("--start_port {port}: there is no port after it")));
    }
    let token = token.map_or_else(random_token, Ok)?;
    let job = Job { request, name, image, command, port };
    let mut objects = vec![job.secret(&token), job.service()];
    match &request.shape {
        Shape::ParameterServer { servers, workers, devices } => {
            if !devices.is_empty() {
                return Err(Error::Usage(
                    "in Kubernetes the devices of a pod are its resources: leave out --gpus".into(),
                ));
            }
            let (s, w) = (count(servers, "servers")?, count(workers, "workers")?);
            objects.push(job.servers(s, w));
            objects.push(job.workers(w, [job.worker_env(w), job.ps_env(s, w)].concat()));
        }
        Shape::Collective { nodes, per_node, ips, .. } => {
            if *per_node > 1 || !ips.is_empty() {
                return Err(Error::Usage(
                    "in Kubernetes a rank is a pod: say --nnodes, and neither --ips nor \
                     --nproc_per_node"
                        .into(),
                ));
            }
            let env = [job.worker_env(*nodes), job.rank_env(*nodes)].concat();
            objects.push(job.workers(*nodes, env));
        }
    }
    Ok(objects)
}

fn count(members: &Members, what: &str) -> Result<usize, Error> {
    match members {
        Members::Count(n) => Ok(*n),
        Members::List(_) => Err(Error::Usage(format!(
            "in Kubernetes the addresses of {what} follow from their number"
        ))),
    }
}

/// Names in Kubernetes are lower-case letters, digits and dashes.
fn label(name: &str) -> Result<&str, Error> {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let is_label = name.len() <= 40
        && name.chars().all(fits)
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && !name.ends_with('-');
    if is_label {
        return Ok(name);
    }
    Err(Error::Usage(format!(
        "--job_id {name}: in Kubernetes it must begin with a letter and have at most 40 lower-case \
         letters, digits and dashes"
    )))
}

struct Job<'a> {
    request: &'a JobRequest,
    name: &'a str,
    image: &'a str,
    command: &'a [String],
    port: u16,
}

impl Job<'_> {
    fn metadata(&self, suffix: &str) -> Value {
        json!({ "name": format!("{}{suffix}", self.name), "labels": self.labels() })
    }

    fn labels(&self) -> Value {
        json!({ "app.kubernetes.io/name": "regatta", "app.kubernetes.io/instance": self.name })
    }

    fn labels_of(&self, role: &str) -> Value {
        let mut labels = self.labels();
        labels["app.kubernetes.io/component"] = json!(role);
        labels
    }

    fn secret(&self, token: &str) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": self.metadata("-token"),
            "stringData": { "token": token },
            "type": "Opaque",
        })
    }

    /// Names are published before pods are ready: they must find each other to become ready.
    fn service(&self) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": self.metadata(""),
            "spec": {
                "clusterIP": "None",
                "publishNotReadyAddresses": true,
                "selector": self.labels(),
                "ports": [{ "name": "job", "port": self.port }],
            },
        })
    }

    fn list(&self, role: &str, n: usize) -> String {
        let name = self.name;
        let entry = |i| format!("{name}-{role}-{i}.{name}:{}", self.port);
        (0..n).map(entry).collect::<Vec<_>>().join(",")
    }

    fn common_env(&self) -> Vec<Value> {
        let secret = json!({ "name": format!("{}-token", self.name), "key": "token" });
        let tls = self.request.tls.to_env();
        let tls = tls.into_iter().map(|(name, value)| variable(&name, value));
        let mut env = vec![
            variable(names::JOB_ID, self.name),
            variable(names::START_TIMEOUT, self.request.timeout.as_secs().max(1)),
            json!({ "name": names::JOB_TOKEN, "valueFrom": { "secretKeyRef": secret } }),
        ];
        env.extend(tls);
        env.extend(self.request.paddle.then(|| variable(names::PADDLE, 1)));
        env
    }

    /// What says a worker or rank its own place, to PaddlePaddle and PyTorch as well.
    fn worker_env(&self, workers: usize) -> Vec<Value> {
        let name = self.name;
        // Kubernetes puts in the value of the variable before.
        let own = format!("{name}-worker-$({}).{name}", names::TORCH_RANK);
        let index = json!({ "fieldRef": { "fieldPath": INDEX } });
        vec![
            json!({ "name": names::TORCH_RANK, "valueFrom": index }),
            variable(names::TRAINER_ID, format!("$({})", names::TORCH_RANK)),
            variable(names::POD_IP, own),
            variable(names::PORT, self.port),
            variable(names::TORCH_SIZE, workers),
            variable(names::TORCH_LOCAL_RANK, 0),
            variable(names::TORCH_LOCAL_SIZE, 1),
            variable(names::TORCH_MASTER, format!("{name}-worker-0.{name}")),
            variable(names::TORCH_PORT, self.port + 1),
        ]
    }

    fn ps_env(&self, servers: usize, workers: usize) -> Vec<Value> {
        let mut env = vec![
            variable(names::TRAINING_ROLE, "TRAINER"),
            variable(names::SERVERS, self.list("server", servers)),
            variable(names::TRAINER_ENDPOINTS, self.list("worker", workers)),
            variable(names::TRAINERS_NUM, workers),
            variable(names::WITH_GLOO, 1),
            variable(names::GLOO_RENDEZVOUS, 3),
            variable(
                names::GLOO_ENDPOINT,
                format!("{0}-server-0.{0}:{1}", self.name, self.port + 1),
            ),
        ];
        env.extend(self.common_env());
        env
    }

    fn rank_env(&self, ranks: usize) -> Vec<Value> {
        let mut env = vec![
            variable(names::TRAINING_ROLE, "TRAINER"),
            variable(names::TRAINER_ENDPOINTS, self.list("worker", ranks)),
            variable(names::TRAINERS_NUM, ranks),
            variable(names::NNODES, ranks),
        ];
        env.extend(self.common_env());
        env
    }

    fn container(&self, name: &str, env: Vec<Value>) -> Value {
        json!({
            "name": name,
            "image": self.image,
            "command": self.command,
            "env": env,
            "ports": [{ "name": "job", "containerPort": self.port }],
        })
    }

    fn servers(&self, servers: usize, workers: usize) -> Value {
        let own_name = json!({ "fieldRef": { "fieldPath": "metadata.name" } });
        let mut env = vec![
            json!({ "name": "POD_NAME", "valueFrom": own_name }),
            // Kubernetes puts in the value of the variable before.
            variable(names::POD_IP, format!("$(POD_NAME).{}", self.name)),
            variable(names::PORT, self.port),
        ];
        env.extend(self.ps_env(servers, workers));
        for entry in &mut env {
            if entry["name"] == names::TRAINING_ROLE {
                entry["value"] = json!("PSERVER");
            }
        }
        let labels = self.labels_of("server");
        json!({
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": self.metadata("-server"),
            "spec": {
                "serviceName": self.name,
                "replicas": servers,
                "podManagementPolicy": "Parallel",
                "selector": { "matchLabels": labels },
                "template": {
                    "metadata": { "labels": labels },
                    "spec": { "containers": [self.container("server", env)] },
                },
            },
        })
    }

    /// Pods of an indexed Job are called after it and their index, and reachable by that name
    /// within the Service.
    fn workers(&self, workers: usize, env: Vec<Value>) -> Value {
        json!({
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": self.metadata("-worker"),
            "spec": {
                "completionMode": "Indexed",
                "completions": workers,
                "parallelism": workers,
                "backoffLimit": self.request.max_restart,
                "template": {
                    "metadata": { "labels": self.labels_of("worker") },
                    "spec": {
                        "subdomain": self.name,
                        "restartPolicy": "Never",
                        "containers": [self.container("worker", env)],
                    },
                },
            },
        })
    }
}

fn variable(name: &str, value: impl ToString) -> Value {
    json!({ "name": name, "value": value.to_string() })
}

/// Several objects as one YAML text for `kubectl apply -f -`.
pub fn to_yaml(objects: &[Value]) -> String {
    let mut out = String::new();
    for object in objects {
        out.push_str("---\n");
        write(&mut out, object, 0);
    }
    out
}

fn write(out: &mut String, value: &Value, depth: usize) {
    let indent = "  ".repeat(depth);
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                out.push_str(&format!("{indent}{key}:"));
                write_nested(out, value, depth + 1);
            }
        }
        Value::Array(list) => {
            for value in list {
                let start = out.len();
                write(out, value, depth + 1);
                // The first line of an entry carries the dash.
                let at = start + 2 * depth;
                out.replace_range(at..at + 2, "- ");
            }
        }
        scalar => out.push_str(&format!("{indent}{scalar}\n")),
    }
}

fn write_nested(out: &mut String, value: &Value, depth: usize) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            out.push('\n');
            write(out, value, depth);
        }
        Value::Array(list) if !list.is_empty() => {
            out.push('\n');
            write(out, value, depth);
        }
        // A string of JSON is one of YAML, too.
        other => out.push_str(&format!(" {other}\n")),
    }
}
