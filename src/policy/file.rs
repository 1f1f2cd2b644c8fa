//! The policy file and the flags on top of it become one [`Policy`], or an error that says where.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::Spanned;

use super::index::Index;
use super::pattern::{Pattern, PatternError};
use super::{DefaultAction, Policy};

/// More than 50 000 patterns; less than what would hurt.
const MAX_FILE: u64 = 4 << 20;

/// What the command line and the environment lay over the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// `--allow PATTERN`
    pub allow: Vec<String>,
    /// `--deny PATTERN`
    pub deny: Vec<String>,
    /// `--allow-public-web`
    pub allow_public_web: bool,
}

/// Why there is no policy: nothing starts without one.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    #[error("cannot read policy {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("policy {} is larger than {MAX_FILE} bytes", .0.display())]
    TooLarge(PathBuf),
    #[error("{place}: {message}")]
    Syntax { place: Place, message: String },
    #[error("{place}: {source}")]
    Pattern {
        place: Place,
        source: Box<PatternError>,
    },
    #[error("{place}: {key} = {value} is not available in this version: {instead}")]
    NotAvailable {
        place: Place,
        key: &'static str,
        value: String,
        instead: &'static str,
    },
}

/// Where an error is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    Line {
        file: String,
        line: usize,
        key: Option<&'static str>,
    },
    Flag(&'static str),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Line {
                file,
                line,
                key: None,
            } => write!(f, "{file}:{line}"),
            Place::Line {
                file,
                line,
                key: Some(key),
            } => write!(f, "{file}:{line}: {key}"),
            Place::Flag(flag) => f.write_str(flag),
        }
    }
}

/// The file as it is written. Every key of the format is known here, so that a misspelt one is an
/// error, and so is a value that asks for what this version would not do.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct PolicyFile {
    default_action: Option<Spanned<Action>>,
    allowed_origins: Vec<Spanned<String>>,
    denied_origins: Vec<Spanned<String>>,
    subresources: Option<Spanned<Subresources>>,
    dns: Option<Spanned<Dns>>,
    evaluate: Option<Spanned<bool>>,
    loopback: Loopback,
    workspace_files: WorkspaceFiles,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Action {
    Deny,
    Allow,
    Ask,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Subresources {
    Public,
    Listed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Dns {
    Exit,
    Pinned,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Loopback {
    ports: Option<Spanned<Vec<u16>>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct WorkspaceFiles {
    enabled: Option<Spanned<bool>>,
}

impl Policy {
    /// Reads the file, if there is one, and lays the flags over it. Any error refuses.
    pub fn load(path: Option<&Path>, overrides: &Overrides) -> Result<Self, PolicyError> {
        match path {
            Some(path) => Self::from_toml(&read(path)?, &path.display().to_string(), overrides),
            None => Self::from_toml("", "no policy file", overrides),
        }
    }

    /// The same from text; `name` is what errors call it.
    pub fn from_toml(text: &str, name: &str, overrides: &Overrides) -> Result<Self, PolicyError> {
        let source = Source { text, name };
        let file = source.parse()?;
        source.refuse_what_is_not_available(&file)?;
        let from_file = file.default_action.map(|action| action.into_inner());
        let default_action = match (overrides.allow_public_web, from_file) {
            (true, _) | (false, Some(Action::Allow)) => DefaultAction::Allow,
            (false, Some(Action::Deny | Action::Ask) | None) => DefaultAction::Deny,
        };
        Ok(Policy {
            default_action,
            allowed: source.compile(
                ("allowed_origins", &file.allowed_origins),
                ("--allow", &overrides.allow),
            )?,
            denied: source.compile(
                ("denied_origins", &file.denied_origins),
                ("--deny", &overrides.deny),
            )?,
        })
    }
}

fn read(path: &Path) -> Result<String, PolicyError> {
    let failed = |source| PolicyError::Read {
        path: path.to_owned(),
        source,
    };
    let mut text = String::new();
    let file = File::open(path).map_err(failed)?;
    // Bounded by what is read and not by the size that is stated: /dev/zero states 0.
    let read = file
        .take(MAX_FILE + 1)
        .read_to_string(&mut text)
        .map_err(failed)?;
    if read as u64 > MAX_FILE {
        return Err(PolicyError::TooLarge(path.to_owned()));
    }
    Ok(text)
}

/// The text of a policy and what it is called.
struct Source<'a> {
    text: &'a str,
    name: &'a str,
}

impl Source<'_> {
    fn parse(&self) -> Result<PolicyFile, PolicyError> {
        toml::from_str(self.text).map_err(|error| PolicyError::Syntax {
            place: self.place(error.span().unwrap_or_default(), None),
            message: error.message().trim().to_owned(),
        })
    }

    fn place(&self, span: Range<usize>, key: Option<&'static str>) -> Place {
        let before = self.text.as_bytes().get(..span.start).unwrap_or_default();
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        Place::Line {
            file: self.name.to_owned(),
            line,
            key,
        }
    }

    fn compile(
        &self,
        (key, from_file): (&'static str, &[Spanned<String>]),
        (flag, from_flags): (&'static str, &[String]),
    ) -> Result<Index, PolicyError> {
        let mut index = Index::default();
        for text in from_file {
            let pattern =
                Pattern::parse(text.get_ref()).map_err(|source| PolicyError::Pattern {
                    place: self.place(text.span(), Some(key)),
                    source: source.into(),
                })?;
            index.insert(pattern);
        }
        for text in from_flags {
            let pattern = Pattern::parse(text).map_err(|source| PolicyError::Pattern {
                place: Place::Flag(flag),
                source: source.into(),
            })?;
            index.insert(pattern);
        }
        Ok(index)
    }

    /// A restriction or a permission that is read and then not acted on would be a lie.
    fn refuse_what_is_not_available(&self, file: &PolicyFile) -> Result<(), PolicyError> {
        self.refuse(
            &file.default_action,
            |action| *action == Action::Ask,
            "default_action",
            "use \"deny\" or \"allow\"",
        )?;
        self.refuse(
            &file.subresources,
            |subresources| *subresources == Subresources::Public,
            "subresources",
            "use \"listed\", which judges every connection by the allow list",
        )?;
        self.refuse(
            &file.dns,
            |dns| *dns == Dns::Pinned,
            "dns",
            "use \"exit\", which leaves names to the Tor exit",
        )?;
        self.refuse(&file.evaluate, |on| *on, "evaluate", "use false")?;
        self.refuse(
            &file.loopback.ports,
            |ports| !ports.is_empty(),
            "loopback.ports",
            "use an empty list",
        )?;
        self.refuse(
            &file.workspace_files.enabled,
            |on| *on,
            "workspace_files.enabled",
            "use false",
        )
    }

    fn refuse<T>(
        &self,
        setting: &Option<Spanned<T>>,
        is_not_available: impl Fn(&T) -> bool,
        key: &'static str,
        instead: &'static str,
    ) -> Result<(), PolicyError> {
        match setting {
            Some(value) if is_not_available(value.get_ref()) => Err(PolicyError::NotAvailable {
                place: self.place(value.span(), None),
                key,
                value: self.text.get(value.span()).unwrap_or_default().to_owned(),
                instead,
            }),
            _ => Ok(()),
        }
    }
}
