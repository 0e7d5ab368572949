//! The credentials file that the AWS tools write, which the client library does not read.

use std::path::{Path, PathBuf};

/// The file and the profile to use, given what is set; the usual places otherwise.
pub(crate) struct Profile {
    file: PathBuf,
    name: String,
}

impl Profile {
    pub(crate) fn usual(set: impl Fn(&str) -> Option<String>) -> Option<Profile> {
        let named = set("AWS_SHARED_CREDENTIALS_FILE").map(PathBuf::from);
        let file = named.or_else(|| Some(std::env::home_dir()?.join(".aws/credentials")))?;
        let name = set("AWS_PROFILE").unwrap_or_else(|| "default".to_string());
        Some(Profile { file, name })
    }

    /// The keys and values of the profile, empty if there is no such file or profile.
    pub(crate) fn values(&self) -> Vec<(String, String)> {
        read(&self.file).map(|text| section(&text, &self.name)).unwrap_or_default()
    }
}

fn read(file: &Path) -> Option<String> {
    std::fs::read_to_string(file).ok()
}

fn section(text: &str, name: &str) -> Vec<(String, String)> {
    let mut inside = false;
    let mut found = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some(head) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            inside = head.trim() == name;
        } else if let Some((key, value)) = line.split_once('=').filter(|_| inside) {
            found.push((key.trim().to_ascii_lowercase(), value.trim().to_string()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_named_profile_counts() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("credentials");
        let text = "[default]\naws_access_key_id = A\n# no\n[ci]\nAWS_Access_Key_ID=B\n\
                    aws_secret_access_key = s=t\n";
        std::fs::write(&file, text).unwrap();
        let values = |profile: Option<&str>| {
            let set = |name: &str| match name {
                "AWS_SHARED_CREDENTIALS_FILE" => file.to_str().map(str::to_string),
                _ => profile.map(str::to_string),
            };
            Profile::usual(set).unwrap().values()
        };
        let pair = |k: &str, v: &str| (k.to_string(), v.to_string());
        assert_eq!(values(None), [pair("aws_access_key_id", "A")]);
        let ci = [pair("aws_access_key_id", "B"), pair("aws_secret_access_key", "s=t")];
        assert_eq!(values(Some("ci")), ci);
        assert_eq!(values(Some("other")), []);
    }
}
