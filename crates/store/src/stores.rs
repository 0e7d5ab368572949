//! All stores of a process, each opened when it is first used.

use std::collections::HashMap;
use std::io::Read;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use crate::local::Local;
use crate::{Address, Entry, Error, Store};

/// Opens stores and keeps them, so that all files of a bucket share their connections. Cheap to
/// clone.
#[derive(Clone, Default)]
pub struct Stores {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    opened: Mutex<HashMap<String, Arc<dyn Store>>>,
    settings: Settings,
}

/// What stores need to know beside their address. Not `Debug`: it may hold secrets.
#[derive(Default, Clone)]
pub(crate) struct Settings {
    /// By the names that the stores' own environment variables have.
    pub(crate) values: HashMap<String, String>,
}

impl std::fmt::Debug for Stores {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Stores")
    }
}

impl Stores {
    /// Stores with credentials from the usual places: the stores' own environment variables
    /// (`AWS_*`, `GOOGLE_*`, `AZURE_*`, `HADOOP_CONF_DIR`) and files.
    pub fn new() -> Stores {
        Stores::default()
    }

    /// The same, with values that go before the environment: names are those of the variables, for
    /// example `AWS_ENDPOINT_URL`.
    pub fn with_settings<K: Into<String>, V: Into<String>>(
        values: impl IntoIterator<Item = (K, V)>,
    ) -> Stores {
        let values = values.into_iter().map(|(k, v)| (k.into(), v.into())).collect();
        let inner = Inner { settings: Settings { values }, ..Inner::default() };
        Stores { inner: Arc::new(inner) }
    }

    /// The store of an address.
    ///
    /// # Errors
    /// If this program was built without that kind of store, or its settings are wrong.
    pub fn of(&self, address: &Address) -> Result<Arc<dyn Store>, Error> {
        let Some(root) = address.store() else { return Ok(Arc::new(Local)) };
        let mut opened = self.inner.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = opened.get(root) {
            return Ok(store.clone());
        }
        let store = open_remote(root, &self.inner.settings)?;
        opened.insert(root.to_string(), store.clone());
        Ok(store)
    }

    /// As [`Store::list`]; the entries are whole addresses.
    ///
    /// # Errors
    /// As [`Stores::of`] and [`Store::list`].
    pub fn list(&self, folder: &str) -> Result<Vec<Entry>, Error> {
        let address = Address::parse(folder)?;
        let mut entries = self.of(&address)?.list(address.path())?;
        for entry in &mut entries {
            entry.path = address.with_path(&entry.path).to_string();
        }
        Ok(entries)
    }

    /// As [`Store::size`].
    ///
    /// # Errors
    /// As [`Stores::of`] and [`Store::size`].
    pub fn size(&self, file: &str) -> Result<Option<u64>, Error> {
        let address = Address::parse(file)?;
        self.of(&address)?.size(address.path())
    }

    /// As [`Store::open`].
    ///
    /// # Errors
    /// As [`Stores::of`] and [`Store::open`].
    pub fn open(&self, file: &str) -> Result<Box<dyn Read + Send>, Error> {
        let address = Address::parse(file)?;
        self.of(&address)?.open(address.path())
    }

    /// As [`Store::put`].
    ///
    /// # Errors
    /// As [`Stores::of`] and [`Store::put`].
    pub fn put(&self, file: &Path, to: &str) -> Result<(), Error> {
        let address = Address::parse(to)?;
        self.of(&address)?.put(file, address.path())
    }
}

#[cfg(feature = "remote")]
fn open_remote(root: &str, settings: &Settings) -> Result<Arc<dyn Store>, Error> {
    Ok(Arc::new(crate::remote::Remote::open(root, settings)?))
}

#[cfg(not(feature = "remote"))]
fn open_remote(root: &str, settings: &Settings) -> Result<Arc<dyn Store>, Error> {
    let _ = &settings.values;
    Err(Error::Address {
        address: root.to_string(),
        why: "this program was built without remote stores; build it with `--features remote`"
            .into(),
    })
}
