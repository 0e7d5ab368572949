//! The objects of `--emit k8s` are what Kubernetes knows under these names: nothing missing,
//! nothing that it would ignore.

use clap::Parser;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{EnvVar, Secret, Service};
use regatta_cluster::{Env, Place, PsRole};
use regatta_launch::flags::Flags;
use regatta_launch::run::emit;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    flags: Flags,
}

fn manifests(args: &[&str]) -> Result<Vec<Value>, String> {
    let flags = Cli::parse_from(["x"].iter().chain(args)).flags;
    let command = ["regatta", "train", "-m", "/data/config.yaml"].map(String::from);
    let text = emit(&flags, &Env::default(), &command).map_err(|e| e.to_string())?;
    let documents = serde_yaml_ng::Deserializer::from_str(&text);
    Ok(documents.map(|d| Value::deserialize(d).expect("YAML")).collect())
}

/// Reads an object as its type; a field that the type does not have would be lost on the way back.
fn typed<T: DeserializeOwned + Serialize>(value: &Value) -> T {
    let object: T =
        serde_json::from_value(value.clone()).unwrap_or_else(|e| panic!("{e}: {value}"));
    assert_eq!(serde_json::to_value(&object).unwrap(), *value);
    object
}

/// The variables of a pod as it would see them.
fn env_of(list: &[EnvVar], pod: &str, token: &str, index: Option<&str>) -> Env {
    let mut pairs: Vec<(String, String)> = Vec::new();
    for variable in list {
        let value = match (&variable.value, &variable.value_from) {
            (Some(value), _) => {
                value.replace("$(POD_NAME)", pod).replace("$(RANK)", index.unwrap_or("no index"))
            }
            (None, Some(from)) if from.field_ref.is_some() => {
                let path = &from.field_ref.as_ref().unwrap().field_path;
                match &**path {
                    "metadata.name" => pod.to_string(),
                    path => {
                        assert!(path.ends_with("['batch.kubernetes.io/job-completion-index']"));
                        index.expect("a pod of a Job").to_string()
                    }
                }
            }
            (None, Some(from)) if from.secret_key_ref.is_some() => token.to_string(),
            _ => panic!("{variable:?}"),
        };
        pairs.push((variable.name.clone(), value));
    }
    pairs.extend(index.map(|i| ("JOB_COMPLETION_INDEX".to_string(), i.to_string())));
    pairs.into_iter().collect()
}

#[test]
fn a_parameter_server_job() {
    let args = ["--emit=k8s", "--image=registry/train:1", "--job_id=ads"];
    let counts = ["--worker_num=3", "--server_num=2", "--timeout=120"];
    let all = manifests(&[&args[..], &counts[..]].concat()).unwrap();
    let [secret, service, servers, workers] = &all[..] else { panic!("{all:?}") };

    let secret: Secret = typed(secret);
    let token = secret.string_data.unwrap()["token"].clone();
    assert_eq!(token.strip_prefix("random-").unwrap().len(), 32);
    let service: Service = typed(service);
    let service_name = service.metadata.name.unwrap();
    assert_eq!(service.spec.as_ref().unwrap().cluster_ip.as_deref(), Some("None"));

    let servers: StatefulSet = typed(servers);
    let spec = servers.spec;
    assert_eq!((spec.replicas, spec.service_name.as_deref()), (Some(2), Some(&*service_name)));
    let pod = spec.template.spec.unwrap();
    let labels = spec.template.metadata.unwrap().labels.unwrap();
    assert_eq!(spec.selector.match_labels.unwrap(), labels);
    let selects = service.spec.unwrap().selector.unwrap();
    assert!(selects.iter().all(|(k, v)| labels.get(k) == Some(v)), "the service finds the pods");
    let set = servers.metadata.name.unwrap();
    for i in 0..2 {
        let env =
            env_of(pod.containers[0].env.as_ref().unwrap(), &format!("{set}-{i}"), &token, None);
        let Ok(Place::ParameterServer(place)) = Place::from_env(&env) else { panic!("{env:?}") };
        assert_eq!(place.role, PsRole::Server(i));
        assert_eq!(place.servers[i], format!("{set}-{i}.{service_name}:6174"));
        assert_eq!((place.workers, place.job.token.as_deref()), (3, Some(&*token)));
        assert_eq!(place.job.start_timeout.as_secs(), 120);
    }

    let workers: Job = typed(workers);
    let spec = workers.spec.unwrap();
    assert_eq!(spec.completion_mode.as_deref(), Some("Indexed"));
    assert_eq!((spec.completions, spec.parallelism), (Some(3), Some(3)));
    let pod = spec.template.spec.unwrap();
    assert_eq!(pod.subdomain.as_deref(), Some(&*service_name));
    let container = &pod.containers[0];
    assert_eq!(container.command.as_ref().unwrap().join(" "), "regatta train -m /data/config.yaml");
    assert_eq!(container.image.as_deref(), Some("registry/train:1"));
    let env = env_of(container.env.as_ref().unwrap(), "x", &token, Some("2"));
    let Ok(Place::ParameterServer(place)) = Place::from_env(&env) else { panic!("{env:?}") };
    assert_eq!(place.role, PsRole::Worker(2));
    let own = format!("{}:{}", env.get("POD_IP").unwrap(), env.get("PADDLE_PORT").unwrap());
    assert_eq!(place.endpoint(), Some(&*own));
    assert_eq!(env.get("PADDLE_GLOO_HTTP_ENDPOINT"), Some("ads-server-0.ads:6175"));
    let torch = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"];
    let torch = torch.map(|name| env.get(name).unwrap());
    assert_eq!(torch, ["2", "3", "0", "ads-worker-0.ads", "6175"]);
}

#[test]
fn a_collective_job() {
    let all = manifests(&["--emit=k8s", "--image=i", "--job_id=mlp", "--nnodes=4"]).unwrap();
    let [_, _, ranks] = &all[..] else { panic!("{all:?}") };
    let job: Job = typed(ranks);
    let name = job.metadata.name.clone().unwrap();
    let pod = job.spec.unwrap().template.spec.unwrap();
    let env = env_of(pod.containers[0].env.as_ref().unwrap(), "x", "t", Some("3"));
    let Ok(Place::Collective(place)) = Place::from_env(&env) else { panic!("{env:?}") };
    assert_eq!((place.rank, place.world_size(), place.nodes), (3, 4, 4));
    assert_eq!(place.endpoints[3], format!("{name}-3.mlp:6174"));
}

#[test]
fn what_cannot_be_there_is_refused() {
    let error = |args: &[&str]| manifests(args).unwrap_err();
    let ps = ["--emit=k8s", "--worker_num=1", "--server_num=1"];
    assert!(error(&ps).contains("--image"));
    assert!(error(&[&ps[..], &["--image=i", "--job_id=My_Job"]].concat()).contains("My_Job"));
    let list = ["--emit=k8s", "--image=i", "--servers=a:1", "--worker_num=1"];
    assert!(error(&list).contains("follow from their number"));
    assert!(error(&["--emit=k8s", "--image=i", "--nproc_per_node=2"]).contains("a rank is a pod"));
}
