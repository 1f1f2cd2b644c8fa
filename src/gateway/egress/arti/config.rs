//! What the operator says about Tor, made into Arti's configuration.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use arti_client::config::{TorClientConfig, TorClientConfigBuilder};
use tor_config::load::{ConfigResolveOptions, resolve_return_results};
use tor_config::sources::{ConfigurationSource, ConfigurationSources, MustRead};
use tor_error::ErrorReport as _;
use tor_geoip::CountryCode;

use super::TorError;

/// What a network file may say: which network, and how to choose paths in it. Storage, timing and
/// logging are not its business.
const NETWORK_KEYS: [&str; 5] = [
    "tor_network",
    "path_rules",
    "override_net_params",
    "address_filter",
    "bridges",
];

/// Pluggable transports that Debian and the Tor Project package, and what they speak.
const TRANSPORTS: [(&str, &[&str]); 3] = [
    ("lyrebird", &["obfs4", "meek_lite", "webtunnel"]),
    ("obfs4proxy", &["obfs4", "meek_lite"]),
    ("snowflake-client", &["snowflake"]),
];
const TRANSPORT_FOLDERS: [&str; 2] = ["/usr/bin", "/usr/local/bin"];

/// How to reach Tor.
#[derive(Clone, Debug)]
pub struct TorConfig {
    /// Guards and keys: of one user, never in an image.
    pub state_dir: PathBuf,
    /// The directory of relays: may be shared by processes of one user.
    pub cache_dir: PathBuf,
    /// A private Tor network: an Arti configuration laid over ours.
    pub network: Option<PathBuf>,
    /// Bridge lines; with any, no relay is contacted but through them.
    pub bridges: Vec<String>,
    /// Two letters, ISO 3166-1.
    pub exit_country: Option<String>,
    /// How long the first bootstrap may take.
    pub bootstrap_timeout: Duration,
}

impl TorConfig {
    /// State and cache beneath `folder`, the public network, a minute to bootstrap.
    pub fn beneath(folder: &Path) -> Self {
        Self {
            state_dir: folder.join("state"),
            cache_dir: folder.join("cache"),
            network: None,
            bridges: Vec::new(),
            exit_country: None,
            bootstrap_timeout: Duration::from_secs(60),
        }
    }

    pub(super) fn country(&self) -> Result<Option<CountryCode>, TorError> {
        let Some(text) = &self.exit_country else {
            return Ok(None);
        };
        let letters = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_alphabetic());
        match text.to_ascii_uppercase().parse() {
            Ok(country) if letters => Ok(Some(country)),
            _ => Err(TorError::Country(text.clone())),
        }
    }

    /// Arti's configuration. Reads the network file, and writes nothing.
    pub(super) fn client(&self) -> Result<TorClientConfig, TorError> {
        // 1. The network file, with nothing in it that it has no say in.
        let mut table = match &self.network {
            Some(path) => read_network(path)?,
            None => toml::Table::new(),
        };
        // 2. Ours on top.
        table.insert("storage".into(), self.storage()?.into());
        if !self.bridges.is_empty() {
            self.add_bridges(&mut table)?;
        }
        // 3. Arti reads the whole, and says what it does not know.
        let text = toml::to_string(&table).map_err(|error| self.bad(&error.to_string()))?;
        let mut sources = ConfigurationSources::new_empty();
        let source = ConfigurationSource::from_verbatim(text.clone());
        sources.push_source(source, MustRead::MustRead);
        let tree = sources
            .load()
            .map_err(|error| self.bad(&error.report().to_string()))?;
        let found =
            resolve_return_results::<TorClientConfig>(&tree, &ConfigResolveOptions::default())
                .map_err(|error| self.bad(&error.report().to_string()))?;
        if let Some(key) = found.unrecognized.first() {
            return Err(self.bad(&format!("unknown key {key}")));
        }
        // 4. Only a builder can be told that no variable of the environment switches the checks of
        //    permissions off.
        let mut builder: TorClientConfigBuilder =
            toml::from_str(&text).map_err(|error| self.bad(&error.to_string()))?;
        builder.storage().permissions().ignore_environment();
        builder
            .build()
            .map_err(|error| self.bad(&error.report().to_string()))
    }

    fn storage(&self) -> Result<toml::Table, TorError> {
        let literal = |path: &Path| {
            let path = std::path::absolute(path).map_err(|source| TorError::Directory {
                path: path.to_owned(),
                source,
            })?;
            let text = path
                .to_str()
                .ok_or_else(|| TorError::NotText(path.clone()))?;
            Ok(toml::Table::from_iter([(
                "literal".to_owned(),
                text.into(),
            )]))
        };
        let mut storage = toml::Table::new();
        storage.insert("state_dir".into(), literal(&self.state_dir)?.into());
        storage.insert("cache_dir".into(), literal(&self.cache_dir)?.into());
        Ok(storage)
    }

    fn add_bridges(&self, table: &mut toml::Table) -> Result<(), TorError> {
        let entry = table
            .entry("bridges")
            .or_insert_with(|| toml::Table::new().into());
        let Some(bridges) = entry.as_table_mut() else {
            return Err(self.bad("bridges is not a table"));
        };
        let lines = self.bridges.iter().map(|line| {
            // A "Bridge" in front is how torrc and bridges.torproject.org write it.
            let line = line.trim();
            line.strip_prefix("Bridge ").unwrap_or(line).to_owned()
        });
        let lines: Vec<String> = lines.collect();
        if !bridges.contains_key("transports") {
            let found = transports(&lines, |path| path.is_file())?;
            if !found.is_empty() {
                bridges.insert("transports".into(), found.into());
            }
        }
        bridges.insert("enabled".into(), true.into());
        bridges.insert("bridges".into(), lines.into());
        Ok(())
    }

    fn bad(&self, problem: &str) -> TorError {
        match &self.network {
            Some(path) => TorError::Network {
                path: path.clone(),
                problem: problem.to_owned(),
            },
            None => TorError::Config(problem.to_owned()),
        }
    }

    /// Makes the directories, and refuses those that others could look into.
    pub(super) fn make_directories(&self) -> Result<(), TorError> {
        for path in [&self.state_dir, &self.cache_dir] {
            let fail = |source| TorError::Directory {
                path: path.clone(),
                source,
            };
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(path)
                .map_err(fail)?;
            let (about, uid) = (fs::metadata(path).map_err(fail)?, nix::unistd::geteuid());
            if about.uid() != uid.as_raw() {
                return Err(TorError::Owner {
                    path: path.clone(),
                    owner: about.uid(),
                    uid: uid.as_raw(),
                });
            }
            if about.mode() & 0o077 != 0 {
                return Err(TorError::Mode {
                    path: path.clone(),
                    mode: about.mode() & 0o7777,
                });
            }
            // The directories above: whoever writes there can put another in its place.
            fs_mistrust::Mistrust::builder()
                .ignore_environment()
                .build()
                .map_err(|error| error.to_string())
                .and_then(|mistrust| {
                    let checked = mistrust.verifier().check(path);
                    checked.map_err(|error| error.report().to_string())
                })
                .map_err(|problem| TorError::Unsafe {
                    path: path.clone(),
                    problem,
                })?;
        }
        Ok(())
    }

    /// Whether another client, in this process or another, owns the state or the cache. Arti then
    /// reads what the owner writes: the same guards, so that nothing is lost but speed.
    pub(super) fn is_owned_elsewhere(&self) -> bool {
        // The names are those of tor-persist's FsStateMgr and tor-dirmgr's SqliteStore.
        let locks = [
            self.state_dir.join("state").join("state.lock"),
            self.cache_dir.join("dir.lock"),
        ];
        locks.iter().any(|path| {
            let Ok(file) = fs::File::open(path) else {
                return false;
            };
            matches!(file.try_lock(), Err(fs::TryLockError::WouldBlock))
        })
    }
}

fn read_network(path: &Path) -> Result<toml::Table, TorError> {
    let bad = |problem: String| TorError::Network {
        path: path.to_owned(),
        problem,
    };
    let text = fs::read_to_string(path).map_err(|error: io::Error| bad(error.to_string()))?;
    let table: toml::Table = toml::from_str(&text).map_err(|error| bad(error.to_string()))?;
    for key in table.keys() {
        if !NETWORK_KEYS.contains(&key.as_str()) {
            let valid = NETWORK_KEYS.join(", ");
            return Err(bad(format!("unknown key {key}; valid: {valid}")));
        }
    }
    Ok(table)
}

/// The transports that the bridge lines need, by the programs that are installed.
fn transports(
    lines: &[String],
    installed: impl Fn(&Path) -> bool,
) -> Result<Vec<toml::Value>, TorError> {
    let mut found: Vec<(PathBuf, Vec<String>)> = Vec::new();
    for line in lines {
        let Some(name) = transport(line) else {
            continue;
        };
        if found.iter().any(|(_, names)| names.contains(&name)) {
            continue;
        }
        let candidates = TRANSPORTS
            .iter()
            .filter(|(_, speaks)| speaks.contains(&name.as_str()))
            .flat_map(|(program, _)| {
                TRANSPORT_FOLDERS.map(|folder| Path::new(folder).join(program))
            });
        match candidates.into_iter().find(|path| installed(path)) {
            Some(path) => match found.iter_mut().find(|(program, _)| *program == path) {
                Some((_, names)) => names.push(name),
                None => found.push((path, vec![name])),
            },
            None => return Err(TorError::Transport(name)),
        }
    }
    let tables = found.into_iter().map(|(path, names)| {
        let mut literal = toml::Table::new();
        literal.insert("literal".into(), path.to_string_lossy().into_owned().into());
        let mut table = toml::Table::new();
        table.insert("protocols".into(), names.into());
        table.insert("path".into(), literal.into());
        // Started when a bridge first needs it.
        table.insert("run_on_startup".into(), false.into());
        table.into()
    });
    Ok(tables.collect())
}

/// A bridge line begins with its transport, or with an address if it has none.
fn transport(line: &str) -> Option<String> {
    let first = line.split_whitespace().next()?;
    first
        .starts_with(|letter: char| letter.is_ascii_alphabetic())
        .then(|| first.to_owned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn with_network(text: &str) -> Result<TorClientConfig, TorError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("network.toml");
        fs::write(&path, text).unwrap();
        let mut config = TorConfig::beneath(folder.path());
        config.network = Some(path);
        config.client()
    }

    #[test]
    fn a_network_file_is_laid_over_ours() {
        let plain = TorConfig::beneath(Path::new("/nonexistent"))
            .client()
            .unwrap();
        let private = with_network(
            r#"
            [path_rules]
            ipv4_subnet_family_prefix = 33
            ipv6_subnet_family_prefix = 129
            [override_net_params]
            hsdir_interval = 30
            [tor_network]
            fallback_caches = [{
                rsa_identity = "B0430D21D6609459D141078C0D7758B5CA753B6F",
                ed_identity = "d1ECNLwmPZBbjQ1YUy5kXWvVTYkUHU5w2hn7jSYy6Bs",
                orports = ["192.0.2.1:9001"],
            }]
            authorities.v3idents = ["27102BC123E7AF1D4741AE047E160C91ADC76B21"]
            "#,
        )
        .unwrap();
        assert_ne!(private, plain);
    }

    #[test]
    fn a_network_file_that_is_wrong_names_the_file_and_the_key() {
        for (text, part) in [
            ("not toml at all", "network.toml"),
            ("[storage]\nstate_dir = '/x'", "unknown key storage"),
            ("[tor_network]\nauthoritys = []", "tor_network.authoritys"),
            (
                "[path_rules]\nipv4_subnet_family_prefix = 'x'",
                "ipv4_subnet_family_prefix",
            ),
            (
                "[address_filter]\nallow_local_addr = true",
                "allow_local_addr",
            ),
        ] {
            let error = with_network(text).unwrap_err().to_string();
            assert!(
                error.contains(part) && error.contains("network.toml"),
                "{text}: {error}"
            );
        }
        let mut config = TorConfig::beneath(Path::new("/nonexistent"));
        config.network = Some("/nonexistent/network.toml".into());
        let error = config.client().unwrap_err().to_string();
        assert!(error.contains("/nonexistent/network.toml"), "{error}");
    }

    #[test]
    fn bridges_are_read_and_bad_ones_named() {
        let mut config = TorConfig::beneath(Path::new("/nonexistent"));
        config.bridges =
            vec!["Bridge 192.0.2.83:80 8EA9D2EF5A3C5C0C0F1D5B4A1E1C4B0A4A1B2C3D".into()];
        config.client().unwrap();
        config.bridges = vec!["192.0.2.83".into()];
        let error = config.client().unwrap_err().to_string();
        assert!(error.contains("bridge"), "{error}");
    }

    #[test]
    fn a_bridge_that_needs_a_transport_finds_its_program_or_says_so() {
        let lines =
            ["obfs4 192.0.2.83:80 8EA9D2EF5A3C5C0C0F1D5B4A1E1C4B0A4A1B2C3D cert=x".to_owned()];
        let found = transports(&lines, |path| path == Path::new("/usr/bin/obfs4proxy")).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(
            found[0]["path"]["literal"].as_str(),
            Some("/usr/bin/obfs4proxy")
        );
        let error = transports(&lines, |_| false).unwrap_err().to_string();
        assert!(error.contains("obfs4"), "{error}");
        assert!(
            transports(&["192.0.2.1:9001".to_owned()], |_| false)
                .unwrap()
                .is_empty()
        );
    }

    #[test]
    fn an_exit_country_has_two_letters() {
        let mut config = TorConfig::beneath(Path::new("/nonexistent"));
        for text in ["de", "DE", "nZ"] {
            config.exit_country = Some(text.into());
            assert!(config.country().unwrap().is_some(), "{text}");
        }
        for text in ["", "d", "deu", "d3", "??", "é"] {
            config.exit_country = Some(text.into());
            assert!(
                matches!(config.country(), Err(TorError::Country(_))),
                "{text}"
            );
        }
    }

    #[test]
    fn directories_are_made_private_and_open_ones_refused() {
        let folder = tempfile::tempdir().unwrap();
        let config = TorConfig::beneath(&folder.path().join("new"));
        config.make_directories().unwrap();
        assert_eq!(
            fs::metadata(&config.state_dir).unwrap().mode() & 0o777,
            0o700
        );
        fs::set_permissions(&config.state_dir, fs::Permissions::from_mode(0o777)).unwrap();
        let error = config.make_directories().unwrap_err();
        assert!(error.to_string().contains("0777"), "{error}");
        assert!(error.hint().unwrap().contains("chmod 700"));
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let error = TorConfig::beneath(&file).make_directories().unwrap_err();
        assert!(matches!(error, TorError::Directory { .. }), "{error}");
    }

    #[test]
    fn the_environment_cannot_switch_the_permission_checks_off() {
        const VARIABLE: &str = "ARTI_FS_DISABLE_PERMISSION_CHECKS";
        if std::env::var_os(VARIABLE).is_none() {
            // The same test once more, in a process with that environment.
            let name = "gateway::egress::arti::config::tests::\
                        the_environment_cannot_switch_the_permission_checks_off";
            let mut child = std::process::Command::new(std::env::current_exe().unwrap());
            let output = child
                .args(["--exact", name])
                .env(VARIABLE, "1")
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(
                output.status.success() && text.contains("1 passed"),
                "{text}"
            );
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let open = folder.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        let ours = TorConfig::beneath(folder.path()).client().unwrap();
        assert!(ours.fs_mistrust().check_directory(&open).is_err());
        // Control: Arti's default listens to the environment.
        let default = TorClientConfig::default();
        assert!(default.fs_mistrust().check_directory(&open).is_ok());
    }
}
